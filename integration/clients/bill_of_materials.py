#!/usr/bin/env python3
"""Prints {"components": [names]} of a bill of materials in CycloneDX 1.5, or {"error": why} if it is none by the schema."""

import json
import pathlib
import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

text = pathlib.Path(sys.argv[1]).read_text()
error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text)
if error:
    print(json.dumps({"error": str(error)}))
else:
    print(json.dumps({"components": [component["name"] for component in json.loads(text)["components"]]}))

#!/usr/bin/env python3
"""Prints a Compose file as JSON, or {"error": why} if it is none by the specification."""

import json
import sys

from compose_spec import PyOptions

options = PyOptions()
options.apply_merge = True
try:
    with open(sys.argv[1]) as file:
        compose = options.from_yaml(file.read())
    compose.validate()
    compose.to_spec()
    print(json.dumps(compose.to_dict()))
except ValueError as error:
    print(json.dumps({"error": str(error)}))

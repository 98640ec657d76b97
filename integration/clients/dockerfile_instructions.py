#!/usr/bin/env python3
"""Prints the instructions of a Dockerfile, as the parser of its own builder understands them."""

import json
import sys

import dockerfile

parsed = dockerfile.parse_file(sys.argv[1])
print(json.dumps([{"name": i.cmd, "flags": i.flags, "exec": i.json, "words": i.value} for i in parsed]))

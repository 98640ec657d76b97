"""Prints the shell steps and the actions of GitHub workflows as JSON.

usage: workflow_steps.py WORKFLOW...
"""

import json
import sys

import yaml


def main():
    steps, actions = [], []
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            workflow = yaml.safe_load(file)
        for job, settings in workflow["jobs"].items():
            for number, step in enumerate(settings.get("steps", []), 1):
                place = f"{path}: step {number} of {job}"
                if "run" in step:
                    steps.append({"place": place, "run": step["run"]})
                else:
                    actions.append({"place": place, "uses": step["uses"]})
    print(json.dumps({"steps": steps, "actions": actions}))


main()

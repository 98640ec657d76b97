#!/usr/bin/env python3
"""Packs a chart and renders the archive as Helm does, many times in one process.

Reads from FILE {"chart": a directory, "cases": [{"name", "namespace", "values"}], "files": [..], "versions": [..]}:
with which values the chart is rendered, files of further objects, and the versions of Kubernetes whose schemas the
objects are held against; fields that they do not know are mistakes. Prints {"chart": .., "values": .., "lint": [..],
"size": .., "cases": [..], "files": [..]}: Chart.yaml, the default values, what `helm lint` complains of, the bytes of
the archive, and of each case and each file {"objects": [..], "notes": .., "unknown": [..], "mistakes": [..]}, or
{"error": ..} of a case that is rejected. `unknown` are the kinds that are none of Kubernetes' own.
"""

import functools
import json
import pathlib
import sys
import tempfile

# jsonschema would compile its grammars for formats that no schema here has: three quarters of this program's time.
sys.modules["rfc3987_syntax"] = None

import helm_python
import jsonschema
import kubernetes_validate
import yaml
from kubernetes_validate import utils

# Below this `helm lint` only recommends.
WARNING = 2


class Loader(yaml.CSafeLoader):
    """As Kubernetes reads YAML: no key twice."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{twice} twice", node.start_mark)
        return super().construct_mapping(node, deep)


# The package reads all definitions again for each object.
utils.schema_contents = functools.cache(utils.schema_contents)


@functools.cache
def known(kind, api_version, version):
    try:
        kubernetes_validate.validate({"kind": kind, "apiVersion": api_version}, version, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        return False
    except kubernetes_validate.ValidationError:
        pass
    return True


def mistakes(thing, version):
    try:
        kubernetes_validate.validate(thing, version, strict=True)
    except jsonschema.ValidationError as error:
        where = "/".join(str(part) for part in error.path)
        yield f"{version}: {thing['kind']} {thing['metadata']['name']}: {where}: {error.message}"


def read(text):
    return [thing for thing in yaml.load_all(text, Loader) if thing]


def held(objects, versions):
    unknown, wrong = set(), []
    for thing in objects:
        for version in versions if "kind" in thing else []:
            if known(thing["kind"], thing["apiVersion"], version):
                wrong.extend(mistakes(thing, version))
            else:
                unknown.add(thing["kind"])
    return {"objects": objects, "unknown": sorted(unknown), "mistakes": wrong}


def rendered(chart, case, versions):
    try:
        files = chart.render(case["values"], name=case["name"], namespace=case["namespace"])
    except helm_python.HelmError as error:
        return {"error": str(error)}
    notes = "".join(files.pop(name) for name in list(files) if name.endswith("NOTES.txt"))
    objects = [thing for text in files.values() for thing in read(text)]
    return {"notes": notes, **held(objects, versions)}


def further(path, versions):
    return {"notes": "", **held(read(pathlib.Path(path).read_text()), versions)}


def main():
    with open(sys.argv[1]) as file:
        asked = json.load(file)
    lint = helm_python.lint(asked["chart"])["messages"]
    with tempfile.TemporaryDirectory() as directory:
        with helm_python.Chart.load(asked["chart"]) as source:
            archive = pathlib.Path(source.save(directory))
        answer = answered(asked, archive, lint)
    print(json.dumps(answer, default=str))


def answered(asked, archive, lint):
    with helm_python.Chart.load(str(archive)) as chart:
        return {
            "chart": chart.metadata,
            "values": chart.values,
            "lint": [message for message in lint if message["severity"] >= WARNING],
            "size": archive.stat().st_size,
            "files": [further(path, asked["versions"]) for path in asked["files"]],
            "cases": [rendered(chart, case, asked["versions"]) for case in asked["cases"]],
        }


main()

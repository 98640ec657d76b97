#!/usr/bin/env python3
"""Prints the bill of materials of `weir` in CycloneDX 1.5: the crates that are linked, and which of them needs which.

usage: sbom.py TARGET [CARGO_METADATA_FLAG...]
"""

import json
import pathlib
import sys
import tomllib

import licenses

LOCK = pathlib.Path(__file__).resolve().parents[2] / "Cargo.lock"


def url(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, kind, checksums):
    found = {"type": kind, "bom-ref": url(package), "purl": url(package)}
    found |= {"name": package["name"], "version": package["version"]}
    if package["license"]:
        # A slash is an old spelling of `OR`.
        expression = " ".join(package["license"].replace("/", " OR ").split())
        found["licenses"] = [{"expression": expression}]
    if checksum := checksums.get((package["name"], package["version"])):
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        found["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return found


def main():
    target, *flags = sys.argv[1:]
    metadata = licenses.metadata(target, flags)
    lock = tomllib.loads(LOCK.read_text(encoding="utf-8"))
    checksums = {(locked["name"], locked["version"]): locked.get("checksum") for locked in lock["package"]}
    root = next(package for package in metadata["packages"] if package["id"] == metadata["resolve"]["root"])
    packages = {package["id"]: package for package in [root, *licenses.linked(metadata)]}
    needs = []
    for node in sorted(metadata["resolve"]["nodes"], key=lambda node: node["id"]):
        if node["id"] in packages:
            needed = {url(packages[name]) for name in licenses.needed(node)}
            needs.append({"ref": url(packages[node["id"]]), "dependsOn": sorted(needed)})
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(root, "application", checksums)},
        "components": [component(package, "library", checksums) for package in packages.values() if package is not root],
        "dependencies": needs,
    }
    print(json.dumps(bill, indent=2))


if __name__ == "__main__":
    main()

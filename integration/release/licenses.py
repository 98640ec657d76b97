#!/usr/bin/env python3
"""Prints the licenses of everything that is linked into `weir`: the crates, Rust's standard library and the C library.

usage: licenses.py TARGET [CARGO_METADATA_FLAG...]

Reads the crates' own files, so it needs no network once `cargo build` has downloaded them.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

NAMES = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)([-._].*)?$", re.IGNORECASE)
# Sources and the like may begin with the same word.
CODE = {".c", ".go", ".h", ".html", ".json", ".pl", ".py", ".rs", ".sh", ".toml"}
# Their licenses are those of programs that are not linked.
SKIPPED = {"tests", "test", "testdata", "examples", "benches", "docs", "target"}

LIBC = """\
The program is linked statically with the GNU C Library, version 2.34 or later, which is under the GNU Lesser General
Public License, version 2.1 or later. Its source is Debian's package `glibc`. Weir's source{place} has the script that builds
it, integration/image/build.sh, so it can be linked with a changed library."""


def metadata(target, flags):
    command = [os.environ.get("CARGO", "cargo"), "metadata", "--locked", "--format-version", "1"]
    output = subprocess.run([*command, "--filter-platform", target, *flags], check=True, stdout=subprocess.PIPE)
    return json.loads(output.stdout)


def needed(node):
    """What a package needs itself, apart from its tests and its build script."""
    return [need["pkg"] for need in node["deps"] if any(kind["kind"] is None for kind in need["dep_kinds"])]


def linked(metadata):
    """The packages that `weir` depends on, without those of tests and of build scripts."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    seen, waiting = set(), [root]
    while waiting:
        identity = waiting.pop()
        if identity in seen:
            continue
        seen.add(identity)
        waiting.extend(needed(nodes[identity]))
    packages = [package for package in metadata["packages"] if package["id"] in seen - {root}]
    return sorted(packages, key=lambda package: (package["name"], package["version"]))


def texts(package):
    """The texts in a package, without repetitions."""
    root = pathlib.Path(package["manifest_path"]).parent
    found = []
    for directory, directories, files in os.walk(root):
        directories[:] = sorted(name for name in directories if name not in SKIPPED)
        for name in sorted(files):
            path = pathlib.Path(directory, name)
            if NAMES.match(name) and path.suffix.lower() not in CODE:
                text = path.read_text(encoding="utf-8", errors="replace").strip()
                if text and text not in found:
                    found.append(text)
    return found


def heading(text):
    return f"{'=' * 100}\n{text}\n{'=' * 100}\n"


def main():
    target, *flags = sys.argv[1:]
    known = metadata(target, flags)
    packages = linked(known)
    print("Weir is under the Apache License 2.0, in LICENSE. It contains these libraries:\n")
    users, without = {}, []
    for package in packages:
        name = f"{package['name']} {package['version']}"
        print(f"  {name}: {package['license'] or 'see below'}, {package['repository'] or 'https://crates.io'}")
        found = texts(package)
        if not found:
            without.append((name, package))
        for text in found:
            # The same text is often wrapped and indented in other ways.
            users.setdefault(" ".join(text.split()), (text, []))[1].append(name)
    print("  the Rust standard library: MIT OR Apache-2.0, https://github.com/rust-lang/rust")
    print("  the GNU C Library: LGPL-2.1-or-later, https://sourceware.org/glibc/\n")
    if without:
        print("These packages contain no text of their license, only its name:\n")
        for name, package in without:
            print(f"  {name}: {package['license']}, by {', '.join(package['authors']) or 'its contributors'}")
        print()
    for text, names in users.values():
        print(heading(", ".join(names)))
        print(f"{text}\n")
    print(heading("the GNU C Library"))
    ours = next(package for package in known["packages"] if package["id"] == known["resolve"]["root"])
    print(LIBC.format(place=f" at {ours['repository']}" if ours["repository"] else ""))
    # Debian's notices of it, and the license that they refer to.
    for path in ("/usr/share/doc/libc6/copyright", "/usr/share/common-licenses/LGPL-2.1"):
        if os.path.isfile(path):
            print("\n" + pathlib.Path(path).read_text(encoding="utf-8", errors="replace").strip())


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Prints the section of a version in CHANGELOG.md, which is the text of its release.

usage: notes.py VERSION [CHANGELOG]
"""

import pathlib
import sys


def section(changes, version):
    """The lines below the version's heading, up to the next version."""
    lines = iter(changes.splitlines())
    for line in lines:
        if line.startswith("## ") and line[3:].split(" - ")[0].strip("[]") == version:
            break
    else:
        return None
    found = []
    for line in lines:
        if line.startswith("## "):
            break
        found.append(line)
    return "\n".join(found).strip()


def main():
    version = sys.argv[1]
    path = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(__file__).parents[2] / "CHANGELOG.md"
    notes = section(path.read_text(encoding="utf-8"), version)
    if not notes:
        sys.exit(f"{path} has no changes below `## {version} - DATE`")
    print(notes)


if __name__ == "__main__":
    main()

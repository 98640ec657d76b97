#!/usr/bin/env python3
"""The names under which Weir is published. All follow from `repository` in Cargo.toml, and there are none without it.

usage: names.py                     prints `repository=`, `image=`, `charts=` and `site=`, for a shell or for a workflow
       names.py write DIRECTORY     writes the chart and the examples into DIRECTORY, at the same paths, with these names
"""

import pathlib
import posixpath
import re
import shutil
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = "helm/weir"
# What integration/examples needs: its Compose file mounts the alerts and the dashboards.
WRITTEN = [CHART, "integration/examples"]
RUNBOOK = "docs/runbook.md#"
NAMES = ("repository", "image", "charts", "site")


class Names:
    def __init__(self, package):
        self.version = package["version"]
        self.repository = package.get("repository", "").rstrip("/")
        self.image = self.charts = self.site = ""
        if not self.repository:
            if "homepage" in package:
                sys.exit("Cargo.toml has a `homepage` and no `repository`, from which the other names follow")
            return
        found = re.fullmatch(r"https://github\.com/([A-Za-z0-9-]+)/([A-Za-z0-9._-]+)", self.repository)
        if not found:
            sys.exit(f"`repository` in Cargo.toml is `{self.repository}`, expected `https://github.com/OWNER/NAME`")
        owner, name = found.groups()
        self.image = f"ghcr.io/{owner}/{name}".lower()
        self.charts = f"ghcr.io/{owner}/charts".lower()
        self.site = package.get("homepage", f"https://{owner.lower()}.github.io/{name}").rstrip("/") + "/"

    def page(self, path):
        """The address of a page of docs/ on the site, such as `kubernetes`."""
        return f"{self.site}{path}/"

    def file(self, path):
        """The address of a file or directory of the repository."""
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{self.repository}/{kind}/HEAD/{path}"


def read():
    with open(ROOT / "Cargo.toml", "rb") as manifest:
        return Names(tomllib.load(manifest)["package"])


# The comment of the chart in whose place its addresses stand.
ADDED = "# The addresses of the project and of the image are added when a release is packaged, by integration/release/names.py.\n"


def edit(path, *changes):
    """Replaces texts in a file. Each must be there."""
    text = path.read_text(encoding="utf-8")
    for before, after in changes:
        if before not in text:
            sys.exit(f"{path} has no {before!r}, where a name of a release belongs")
        text = text.replace(before, after)
    path.write_text(text, encoding="utf-8")


def published(text, names):
    """The text of a page with what it says about published artifacts, such as `{image}`, which is a comment in the repository."""

    def shown(found):
        kept = found[1] if names.repository else ""
        for name in NAMES:
            kept = kept.replace(f"{{{name}}}", getattr(names, name))
        return kept

    return re.sub(r"<!-- published:\n(.*?)-->\n", shown, text, flags=re.DOTALL)


def linked(text, path, names, kept=None):
    """The text of a page without relative links, except those to files below `kept`. Links to other files of the repository become
    absolute, or plain text if there is no repository."""

    def link(found):
        place, _, anchor = found[2].partition("#")
        if not place or ":" in place:
            return found[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), place))
        if kept and target.startswith(f"{kept}/"):
            return found[0]
        if not names.repository:
            return found[1]
        return f"[{found[1]}]({names.file(target)}{anchor and '#' + anchor})"

    return re.sub(r"(?<!!)\[([^\[\]]*)\]\(([^()\s]+)\)", link, text)


def write(names, directory):
    for path in WRITTEN:
        shutil.copytree(ROOT / path, directory / path, dirs_exist_ok=True)
    if not names.repository:
        return
    chart = directory / CHART
    registry, repository = names.image.split("/", 1)
    edit(
        chart / "Chart.yaml",
        (
            ADDED,
            f"home: {names.site}\nicon: {names.site}images/icon.svg\nsources:\n  - {names.repository}\n",
        ),
        (
            "\nannotations:\n",
            f"\nannotations:\n  artifacthub.io/images: |\n    - name: weir\n      image: {names.image}:{names.version}\n"
            "      platforms: [linux/amd64, linux/arm64]\n"
            "  artifacthub.io/links: |\n"
            f"    - name: Documentation\n      url: {names.page('kubernetes')}\n"
            f"    - name: What to do about an alert\n      url: {names.page('runbook')}\n",
        ),
    )
    edit(
        chart / "values.yaml",
        ('\n  registry: ""\n', f"\n  registry: {registry}\n"),
        ("\n  repository: weir\n", f"\n  repository: {repository}\n"),
    )
    edit(
        chart / "README.md",
        ('| `image.registry` | string | `""` |', f'| `image.registry` | string | `"{registry}"` |'),
        ('| `image.repository` | string | `"weir"` |', f'| `image.repository` | string | `"{repository}"` |'),
    )
    for alerts in ("weir.yaml", "weir_test.yaml"):
        edit(chart / "alerts" / alerts, (RUNBOOK, names.page("runbook") + "#"))
    edit(
        directory / "integration/examples/compose/compose.yaml",
        (
            f"    image: weir:{names.version}\n    build: ../../..\n    pull_policy: build\n",
            f"    image: {names.image}:{names.version}\n",
        ),
    )
    for path in directory.rglob("*.md"):
        text = published(path.read_text(encoding="utf-8"), names)
        path.write_text(linked(text, path.relative_to(directory).as_posix(), names), encoding="utf-8")


def main():
    names = read()
    if sys.argv[1:2] == ["write"] and len(sys.argv) == 3:
        write(names, pathlib.Path(sys.argv[2]))
    elif len(sys.argv) == 1:
        for name in NAMES:
            print(f"{name}={getattr(names, name)}")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()

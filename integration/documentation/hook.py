"""Gives the site its addresses, which follow from Cargo.toml, and turns links out of docs/ into links to the repository.

mkdocs.yml names this file, and mkdocs calls its functions.
"""

import html
import json
import logging
import os
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "release"))
import names  # noqa: E402

NAMES = names.read()

SCHEMAS = ["limits.schema.json", "weir.schema.json"]

# The letters of a table's row that a phone shows side by side. Rows of longer tables are blocks there, by wide.css.
NARROW = 45


def on_config(config):
    if NAMES.repository:
        config.site_url = NAMES.site
        config.repo_url = NAMES.repository
        config.repo_name = NAMES.repository.removeprefix("https://github.com/")
    return config


def on_page_markdown(markdown, page, **_):
    return names.linked(names.published(markdown, NAMES), f"docs/{page.file.src_uri}", NAMES, kept="docs")


def on_post_build(config):
    """Copies the schemas that `weir schema` has printed into the directory $SCHEMAS to the addresses that they have as `$id`."""
    for name in SCHEMAS if NAMES.repository else []:
        file = pathlib.Path(os.environ.get("SCHEMAS", "target/schemas")) / name
        found = json.loads(file.read_text()).get("$id") if file.exists() else None
        if found == NAMES.site + name:
            shutil.copy(file, config.site_dir)
        else:
            # An error, as the build is strict.
            logging.getLogger("mkdocs").warning("%s has the `$id` %s, expected %s%s", file, found, NAMES.site, name)


def on_page_content(content, **_):
    return re.sub("<table>.*?</table>", in_blocks, content, flags=re.DOTALL)


def in_blocks(found):
    """A table whose cells have the names of their columns, if its rows are long."""
    text = [re.sub("<[^>]*>|\\n", "", row) for row in re.findall("<tr>.*?</tr>", found[0], re.DOTALL)]
    if max(map(len, text)) <= NARROW:
        return found[0]
    names = [re.sub("<[^>]*>", "", name).strip() for name in re.findall("<th[^>]*>(.*?)</th>", found[0], re.DOTALL)]

    def named(row):
        columns = iter(names)
        return re.sub("<td", lambda _: f'<td data-column="{html.escape(html.unescape(next(columns)))}"', row[0])

    table = found[0].replace("<table>", "<table data-blocks>")
    return re.sub("<tr>.*?</tr>", named, table, flags=re.DOTALL)


def on_post_page(output, **_):
    # The theme's script asks GitHub's API about the repository wherever this attribute is.
    return output.replace(' data-md-component="source"', "")

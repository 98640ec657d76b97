"""Gives the site its addresses, which follow from Cargo.toml, and turns links out of docs/ into links to the repository.

mkdocs.yml names this file, and mkdocs calls its functions.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "release"))
import names  # noqa: E402

NAMES = names.read()


def on_config(config):
    if NAMES.repository:
        config.site_url = NAMES.site
        config.repo_url = NAMES.repository
        config.repo_name = NAMES.repository.removeprefix("https://github.com/")
    return config


def on_page_markdown(markdown, page, **_):
    return names.linked(names.published(markdown, NAMES), f"docs/{page.file.src_uri}", NAMES, kept="docs")


def on_post_page(output, **_):
    # The theme's script asks GitHub's API about the repository wherever this attribute is.
    return output.replace(' data-md-component="source"', "")

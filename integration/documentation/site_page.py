#!/usr/bin/env python3
"""Looks at the pages of the built site as a phone shows them.

    site_page.py SITE

Prints {"passed": [..], "failed": {..}} and ends with 1 if anything failed.
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "clients"), str(HERE.parent / "page")]

import checking
from browser import Browser
from checking import equal

WIDTH, HIGHEST = 375, 15_000


def main():
    site = pathlib.Path(sys.argv[1])
    pages = sorted(site.rglob("index.html"))
    sizes = {}
    with Browser() as browser, browser.open("about:blank", width=WIDTH, height=740) as page:
        # The theme's scripts take most of the time, and do not change the size.
        page.call("Emulation.setScriptExecutionDisabled", value=True)
        for path in pages:
            page.call("Page.navigate", url=path.as_uri())
            page.until(f"location.href === {path.as_uri()!r} && document.readyState === 'complete'")
            size = "[document.querySelector('.md-content').scrollWidth, document.documentElement.scrollHeight]"
            sizes[path.parent.relative_to(site).as_posix()] = page.run(size)

    def there_are_pages():
        equal(len(pages) > 50, True)

    def no_page_is_wider_than_the_screen():
        equal({name: width for name, (width, _) in sizes.items() if width > WIDTH}, {})

    def no_page_is_too_long_to_read():
        equal({name: height for name, (_, height) in sizes.items() if height > HIGHEST}, {})

    checking.run([there_are_pages, no_page_is_wider_than_the_screen, no_page_is_too_long_to_read])


if __name__ == "__main__":
    main()

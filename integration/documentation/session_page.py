#!/usr/bin/env python3
"""Looks at the pictures of a session in headless Chromium.

    session_page.py

Prints {"passed": [..], "failed": {..}} and ends with 1 if anything failed.
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "clients"), str(HERE.parent / "page")]

import checking
from browser import Browser
from checking import equal

import session

# The width of the screen, and the smallest letters there, in pixels. The pictures are as wide as the screen.
SCREENS = {"session.svg": (800, 12), "session-narrow.svg": (360, 11)}

# The lines that are not wholly seen: hidden, clipped, outside the picture, or smaller than letters may be.
UNREADABLE = """
(() => {
    const whole = document.documentElement.getBoundingClientRect();
    return [...document.querySelectorAll('text')].filter((line) => {
        const box = line.getBoundingClientRect(), style = getComputedStyle(line);
        const scale = whole.width / document.documentElement.viewBox.baseVal.width;
        return style.opacity !== '1' || style.clipPath !== 'none' || style.visibility !== 'visible'
            || parseFloat(style.fontSize) * scale < SMALLEST
            || box.left < whole.left || box.right > whole.right || box.top < whole.top || box.bottom > whole.bottom;
    }).map((line) => line.textContent);
})()
"""


def shows_all_lines_at_once(page, name, smallest):
    page.until("document.querySelectorAll('text').length > 20")
    equal(page.run(UNREADABLE.replace("SMALLEST", str(smallest))), [])


def does_not_move(page, name, smallest):
    equal(page.run("document.getAnimations({ subtree: true }).length"), 0)


def loads_nothing(page, name, smallest):
    equal(page.run("performance.getEntriesByType('resource').length"), 0)


def main():
    checks = []
    with Browser() as browser:
        for name, (width, smallest) in SCREENS.items():
            page = browser.open((session.IMAGES / name).as_uri(), width=width, height=700)
            for check in [shows_all_lines_at_once, does_not_move, loads_nothing]:

                def checked(check=check, page=page, name=name, smallest=smallest):
                    check(page, name, smallest)

                checked.__name__ = f"{name}: {check.__name__}"
                checks.append(checked)
        checking.run(checks)


if __name__ == "__main__":
    main()

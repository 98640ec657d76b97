#!/usr/bin/env python3
"""Reads a report of `weir simulate --format html` in headless Chromium.

    page.py --report FILE

Prints {"passed": [..], "failed": {..}} and ends with 1 if anything failed. `page.rs` writes the report.
"""

import argparse
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "clients"), str(HERE.parent / "page")]

import checking
from browser import Browser
from checking import equal

# It would change the title of a page that takes text for markup.
HOSTILE = "<img src=x onerror=document.title='taken'>"


def loads_nothing_and_runs_nothing(page):
    equal(page.problems(), [])
    equal(page.run("performance.getEntriesByType('resource').length"), 0)
    equal(page.run("document.images.length + document.scripts.length"), 0)
    equal(page.run("document.title"), "Weir: simulation")


def takes_no_text_for_markup(page):
    equal(page.run("document.querySelector('td').textContent"), HOSTILE)
    equal(page.run(f"document.querySelector('header').textContent.includes({json.dumps(HOSTILE)})"), True)


def draws_charts(page):
    boxes = page.run(
        "[...document.querySelectorAll('figure svg')].map((svg) => [svg.getAttribute('aria-label'),"
        " svg.querySelector('.admitted').getBBox().width > 1, svg.querySelector('.denied').getBBox().height > 0])"
    )
    labels = [label.split(":")[0] for label, _, _ in boxes]
    equal(labels, ["All limits", "Agents", "Beside", "Everything"])
    equal([is_drawn for _, is_drawn, _ in boxes], [True] * 4)
    equal([has_denied for _, _, has_denied in boxes], [True, True, True, False])


def limits_of_the_same_requests_are_beside_each_other(page):
    tops = page.run("[...document.querySelectorAll('.beside figure')].map((chart) => chart.getBoundingClientRect().top)")
    equal((len(tops), len(set(tops))), (2, 1))
    page.look(360, 800)
    equal(page.run("document.documentElement.scrollWidth"), 360)


CHECKS = [
    loads_nothing_and_runs_nothing, takes_no_text_for_markup, draws_charts,
    limits_of_the_same_requests_are_beside_each_other,
]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", required=True)
    options = parser.parse_args()
    with Browser() as browser, browser.open(pathlib.Path(options.report).resolve().as_uri()) as page:
        page.until("document.readyState === 'complete'")
        checking.run(CHECKS, page)


if __name__ == "__main__":
    main()

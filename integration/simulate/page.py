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
    equal(page.run("document.images.length"), 0)
    equal(page.run("[...document.scripts].filter((script) => script.src).length"), 0)
    equal(page.run("document.title"), "Weir: simulation")


def takes_no_text_for_markup(page):
    equal(page.run("document.querySelector('td').textContent"), HOSTILE)
    equal(page.run(f"document.querySelector('header').textContent.includes({json.dumps(HOSTILE)})"), True)


def draws_charts(page):
    boxes = page.run(
        "[...document.querySelectorAll('figure svg')].filter((svg) => svg.querySelector('.admitted')).map((svg) => [svg.getAttribute('aria-label'),"
        " svg.querySelector('.admitted').getBBox().width > 1, svg.querySelector('.denied').getBBox().height > 0])"
    )
    labels = [label.split(":")[0] for label, _, _ in boxes]
    equal(labels, ["All limits", "Agents", "Beside", "Everything"])
    equal([is_drawn for _, is_drawn, _ in boxes], [True] * 4)
    equal([has_denied for _, _, has_denied in boxes], [True, True, True, False])


def a_slider_says_what_is_at_each_point(page):
    """The keyboard moves it, and so does the pointer."""
    chart = "document.querySelector('figure')"
    page.run(f"{chart}.querySelector('input').focus(); {chart}.querySelector('input').value = 0")
    page.press("ArrowRight")
    said = page.run(f"{chart}.querySelector('output').textContent")
    equal(said, "2026-11-22 10:00:01: 2 admitted, 0 denied")
    equal(page.run(f"{chart}.querySelector('input').getAttribute('aria-valuetext')"), said)
    page.run(
        f"const box = {chart}.querySelector('svg').getBoundingClientRect();"
        f"{chart}.querySelector('svg').dispatchEvent(new PointerEvent('pointermove', {{ clientX: box.right, clientY: box.top }}))"
    )
    equal(page.run(f"{chart}.querySelector('output').textContent")[:19], "2026-11-22 10:00:39")


def curves_say_what_other_numbers_deny(page):
    """Everything has 80 requests of one address in 40 seconds, of which a bucket of 1, which gets 100 a minute, admits less than 80."""
    titles = page.run("[...document.querySelectorAll('h4')].map((title) => title.textContent)")
    three = ["By burst", "By count", "By burst and count"]
    equal([title for title in titles if title.startswith("By ")], three + three[2:] + three)
    last = "[...document.querySelectorAll('.panel')].find((panel) => panel.querySelector('h3').textContent === 'Everything')"
    text = page.run(f"{last}.querySelectorAll('output')[1].textContent")
    equal(text, "burst 100: denies 0 of 80 requests (0%) of 0 of 1 id (0%)")
    points = page.run(f"JSON.parse({last}.querySelectorAll('figure')[3].dataset.points).map(([, text]) => text)")
    equal(points[0], "burst and count 1: denies 79 of 80 requests (98.8%) of 1 of 1 id (100.0%)")
    lines = page.run(f"{last}.querySelectorAll('figure')[3].querySelectorAll('.line').length")
    equal(lines, 2)


def limits_of_the_same_requests_are_beside_each_other(page):
    tops = page.run("[...document.querySelectorAll('.beside figure')].map((chart) => chart.getBoundingClientRect().top)")
    equal((len(tops), len(set(tops))), (2, 1))
    page.look(360, 800)
    equal(page.run("document.documentElement.scrollWidth"), 360)


CHECKS = [
    loads_nothing_and_runs_nothing, takes_no_text_for_markup, draws_charts,
    a_slider_says_what_is_at_each_point, curves_say_what_other_numbers_deny,
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

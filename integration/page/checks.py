#!/usr/bin/env python3
"""Uses the live page in headless Chromium, as an operator does.

    checks.py --proxy ADDR --admin ADDR --limits FILE --public ADDR --ailing ADDR --failing ADDR

ADDR are listeners of a Weir with the rules in FILE, which `mod.rs` writes; --public is an admin listener that is not on
loopback, --ailing that of a Weir whose store and upstreams are down, --failing its proxy. Prints {"passed": [..], "failed": {..}} and ends with 1 if anything failed.
"""

import argparse
import contextlib
import http.client
import json
import pathlib
import re
import socket
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "clients"))

import checking
from browser import Browser
from checking import equal

TOKEN = "s3cret"

# It would change the title of a page that takes text for markup.
HOSTILE = "<img src=x onerror=document.title='taken'>"


class Relay:
    """Forwards connections to an address, until it is cut."""

    def __init__(self, target):
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.lock, self.open, self.is_cut = threading.Lock(), [], False
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            with self.lock:
                if self.is_cut:
                    client.close()
                    continue
                host, port = self.target.rsplit(":", 1)
                server = socket.create_connection((host, int(port)))
                self.open += [client, server]
            for ends in [(client, server), (server, client)]:
                threading.Thread(target=self.pump, args=ends, daemon=True).start()

    @staticmethod
    def pump(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self):
        with self.lock:
            self.is_cut = True
            for end in self.open:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                end.close()
            self.open.clear()

    def mend(self):
        with self.lock:
            self.is_cut = False


WATCH = (pathlib.Path(__file__).parent / "watch.js").read_text()


class Setting:
    def __init__(self, options, browser):
        self.options, self.browser = options, browser
        # The properties of answers that pages have read, each as JSON.
        self.reads = set()

    @contextlib.contextmanager
    def open(self, address=None, **look):
        """A page that never shows a value that is not there."""
        with self.browser.open(f"http://{address or self.options.admin}/", script=WATCH, **look) as page:
            page.until_text("#state", "Live")
            yield page
            self.reads.update(page.run("answersRead()"))
            equal(page.run("wrongTexts()"), [])

    def change(self, method, path, body=None):
        """What another operator does."""
        connection = http.client.HTTPConnection(self.options.admin, timeout=20)
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        equal(connection.getresponse().status, 200)
        connection.close()

    @contextlib.contextmanager
    def rules(self, text):
        """Other rules on disk."""
        file = pathlib.Path(self.options.limits)
        good = file.read_text()
        file.write_text(text)
        try:
            yield
        finally:
            file.write_text(good)

    def api(self):
        connection = http.client.HTTPConnection(self.options.admin, timeout=20)
        connection.request("GET", "/openapi.json")
        document = json.loads(connection.getresponse().read())
        connection.close()
        return document

    def get(self, path, to=None, **headers):
        """Sends a request to the proxy; returns the status."""
        connection = http.client.HTTPConnection(to or self.options.proxy, timeout=20)
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        status = connection.getresponse().status
        connection.close()
        return status

    def deny(self, path, **headers):
        """Sends requests until one is denied."""
        statuses = [self.get(path, **headers) for _ in range(4)]
        equal(statuses[-1], 429)


def use_token(page, token=TOKEN):
    page.fill("#token", token)
    page.press("Enter")


def look_up(page, limit, id):
    page.choose("#bucket-limit", limit)
    page.fill("#bucket-id", id)
    page.press("Enter")


def click_change(page, title):
    page.run(f"[...document.querySelectorAll('#changes button')].find((button) => button.textContent === '{title}').click()")


def clean(page):
    """Nothing was loaded from elsewhere, taken for markup, or against the policy."""
    equal(page.problems(), [])
    equal(page.run("document.title"), "Weir")
    equal(page.run("document.images.length + document.scripts.length"), 1)


def loads_and_says_what_to_do(setting):
    """The first check: no request was sent before."""
    connection = http.client.HTTPConnection(setting.options.admin, timeout=20)
    connection.request("GET", "/")
    reply = connection.getresponse()
    policy = reply.headers["content-security-policy"]
    for part in ["default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "connect-src 'self'", "frame-ancestors 'none'"]:
        equal(part in policy and "unsafe" not in policy, True)
    equal(reply.headers["x-content-type-options"], "nosniff")
    equal(len(reply.read()) < 100 << 10, True)
    with setting.open() as page:
        page.until_text("#empty", "No requests yet. Send one:")
        page.until_text("#empty", f"curl -i http://{setting.options.proxy}/")
        for part in ["Process: serving", "Rules: loaded", "Store, memory: up", f"proxy {setting.options.proxy}"]:
            page.until_text("#health", part)
        clean(page)


def shows_requests_as_they_come(setting):
    with setting.open() as page:
        setting.deny("/watched", x_id="a")
        setting.get("/shadowed", x_id="a")
        setting.get("/shadowed", x_id="a")
        row = "[...document.querySelectorAll('#limits tbody tr')].find((row) => row.textContent.startsWith('%s'))"
        page.until(f"Number({row % 'Watched'}.cells[2].textContent) > 0 && Number({row % 'Watched'}.cells[3].textContent) > 0")
        page.until(f"{row % 'Watched'}.cells[4].textContent === '75 %'")
        page.until(f"Number({row % 'Shadowed'}.cells[5].lastChild.textContent) > 0 && {row % 'Shadowed'}.cells[3].textContent === '0'")
        equal(page.run(f"{row % 'Shadowed'}.cells[1].textContent"), "shadow")
        page.until_text("#limits", "enforce for 12.5\u00a0%, review due")
        equal(page.run(f"{row % 'Part'}.querySelector('.mode').title"), "To be reviewed by 2020-01-31")
        equal(page.run("document.querySelector('#empty').hidden"), True)
        page.until("document.querySelector('#chart .denied-line').getAttribute('d').length > 0")
        page.run(f"{row % 'Watched'}.querySelector('button').click()")
        page.until_text("#chart-title", "Watched")
        page.fill("#filter", "shad")
        page.until("document.querySelectorAll('#limits tbody tr').length === 1")
        clean(page)


def shows_what_was_before_it_was_opened(setting):
    """The check before sent requests."""
    row = "[...document.querySelectorAll('#limits tbody tr')].find((row) => row.textContent.startsWith('Watched'))"
    with setting.open() as page:
        equal(page.run("document.querySelector('#chart .denied-line').getAttribute('d').length > 0"), True)
        equal(page.run(f"{row}.querySelector('.denied-line').getAttribute('d').length > 0"), True)
        equal(page.run(f"{row}.cells[4].textContent"), "75 %")
        clean(page)


def pauses(setting):
    with setting.open() as page:
        page.click("#pause")
        page.until_text("#state", "Paused")
        equal(page.text("#pause"), "Resume")
        page.click("#pause")
        page.until_text("#state", "Live")
        clean(page)


def resets_a_denied_id(setting):
    setting.deny("/watched", x_id="b")
    with setting.open() as page:
        look_up(page, "Watched", "b")
        page.until_text("#bucket-name", "Watched:b")
        equal(page.run("document.querySelector('#windows td').textContent"), "0")
        click_change(page, "Reset")
        page.until_text("#bucket-message", "give the operator’s token first")
        equal(setting.get("/watched", x_id="b"), 429)
        use_token(page)
        page.until_text("#token-message", "is in use")
        equal(page.run("document.querySelector('#token').value"), "")
        click_change(page, "Reset")
        page.until_text("#bucket-message", "Reset: the bucket is full.")
        equal(page.run("document.querySelector('#windows td').textContent"), "1")
        equal(setting.get("/watched", x_id="b"), 200)
        kept = "JSON.stringify([localStorage.length, sessionStorage.length, document.cookie, location.href])"
        equal(page.run(kept), f'[0,0,"","http://{setting.options.admin}/"]')
        clean(page)


def blocks_refunds_and_sets(setting):
    with setting.open() as page:
        use_token(page)
        page.until_text("#token-message", "is in use")
        look_up(page, "Watched", "c")
        page.until_text("#bucket-name", "Watched:c")
        click_change(page, "Set")
        page.until_text("#bucket-message", "Set.")
        equal(setting.get("/watched", x_id="c"), 429)
        click_change(page, "Refund")
        page.until_text("#bucket-message", "Refunded.")
        equal(setting.get("/watched", x_id="c"), 200)
        page.fill("#changes input.long", HOSTILE)
        click_change(page, "Block")
        page.until_text("#bucket-message", "Blocked.")
        page.until_text("#bucket-facts", HOSTILE)
        equal(setting.get("/watched", x_id="c"), 429)
        click_change(page, "Unblock")
        page.until_text("#bucket-message", "Unblocked.")
        page.until("!document.querySelector('#bucket-facts').innerText.includes('Blocked')")
        clean(page)


def looks_up_buckets_of_every_kind(setting):
    with setting.open() as page:
        for limit, id, part in [
            ("Tried", "192.0.2.1", "burst 10, 10 per 1h"),
            ("Moved", "192.0.2.1", "burst 5, 5 per 1h"),
            ("Windows", "192.0.2.1", "burst 9, 9 per 1h"),
            ("Fixed", "", "burst 3, never refills"),
            ("Free", "192.0.2.1", "unlimited"),
            ("Closed", "192.0.2.1", "deny"),
            ("Given", "192.0.2.1", "nothing"),
            ("Unused", "192.0.2.1", "off"),
        ]:
            page.run("document.querySelector('#bucket-name').textContent = ''")
            look_up(page, limit, id)
            page.until_text("#bucket-name", f"{limit}:{id}" if id else limit)
            page.until_text("#bucket", part)
        look_up(page, "Watched", "")
        page.until_text("#bucket-message", "Error: ")


def sets_lists_and_deletes_an_override(setting):
    with setting.open() as page:
        page.fill("#override-id", "Watched:o")
        page.fill("#override-numbers", "deny")
        page.click("#override-form button")
        page.until_text("#override-message", "give the operator’s token first")
        use_token(page)
        page.until_text("#token-message", "is in use")
        page.until_text("#overrides", "There are none.")
        page.fill("#override-comment", HOSTILE)
        page.click("#override-form button")
        page.until_text("#override-message", "Set. It ends when this Weir stops.")
        page.until_text("#overrides", HOSTILE)
        page.until_text("#overrides", "Watched:o deny, by ")
        equal(setting.get("/watched", x_id="o"), 429)
        page.fill("#override-numbers", "count=40 period=1s")
        page.fill("#override-for", "1h")
        page.click("#override-form button")
        page.until_text("#overrides", "Watched:o burst 40, 40 per 1s, until 20")
        equal(setting.get("/watched", x_id="o"), 200)
        page.fill("#override-numbers", "count=0 period=1h")
        page.click("#override-form button")
        page.until_text("#override-message", "`count`: ")
        page.click("#overrides li button:last-child")
        page.until_text("#override-message", "Deleted.")
        page.until_text("#overrides", "There are none.")
        equal(setting.get("/watched", x_id="o"), 200)
        # The browser itself reports the status.
        equal([problem for problem in page.problems() if "400" not in problem], [])


def says_that_a_token_is_wrong(setting):
    with setting.open() as page:
        use_token(page, "guess")
        page.until_text("#token-message", "Wrong token")
        look_up(page, "Watched", "nobody")
        page.until_text("#bucket-name", "Watched:nobody")
        click_change(page, "Reset")
        page.until_text("#bucket-message", "give the operator’s token first")
        # The browser itself reports the status.
        equal([problem for problem in page.problems() if "401" not in problem], [])


# The limit of each path in `mod.rs`, the headers of a request, and what is said of it.
EXPLANATIONS = [
    ("Watched", "x-id: a", "applies", {"Bucket": "Watched:a", "Allows": "burst 1, 1 per 1h", "Cost": "1", "Enforced": "yes"}),
    ("Shadowed", "x-id: a", "applies", {"Bucket": "Shadowed:a", "Allows": "burst 1, 1 per 1h", "Cost": "1", "Enforced": "no"}),
    ("Tried", "", "applies", {"Allows": "burst 10, 10 per 1h", "Candidate": "burst 5, 5 per 1h, counted and not enforced", "Enforced": "yes"}),
    ("Moved", "", "applies", {"Allows": "burst 5, 5 per 1h", "Candidate": "these are its numbers", "Enforced": "yes"}),
    ("Several", "", "applies", {"Allows": "burst 10, 10 per 1h", "Candidate": "high: burst 7, 7 per 1h, counted and not enforced; low: burst 1, 1 per 1h, counted and not enforced"}),
    ("Raised", "", "applies", {"Allows": "burst 2, 2 per 1h", "Elevated": "burst 9, 9 per 1h"}),
    ("Windows", "", "applies", {"Allows": "burst 2, 2 per 1s; burst 9, 9 per 1h"}),
    ("Fixed", "", "applies", {"Bucket": "Fixed", "Allows": "burst 3, never refills"}),
    ("Part", "", "applies", {"Allows": "burst 2, 2 per 1h", "Enforced": ""}),
    ("Free", "", "applies", {"Allows": "unlimited", "Enforced": "yes"}),
    ("Closed", "", "applies", {"Allows": "deny", "Enforced": "yes"}),
    ("Keyed", "", "applies", {"Why": "`missing: deny`", "Allows": "deny", "Enforced": "yes"}),
    ("Given", "", "does not apply", {"Why": "the limit has no numbers, and no override matches this id"}),
    ("CertificatesPerDomainPerAccount", "x-id: a", "applies", {"Allows": " per 1h", "Candidate": " per 1h"}),
    ("Unused", "", "does not apply", {"Why": "off"}),
]

EXPLAINED = """JSON.stringify([...document.querySelectorAll('#explanation h3')].map((title) => [
    title.textContent,
    Object.fromEntries([...title.nextSibling.querySelectorAll('dt')].map((name) => [name.textContent, name.nextSibling.textContent])),
]))"""


def explain(page, path, headers):
    page.fill("#explain-url", path)
    page.fill("#explain-headers", headers)
    page.run("document.querySelector('#explain-message').textContent = ''")
    page.click("#explain-form button")
    page.until_text("#explain-message", "to this request")
    return json.loads(page.run(EXPLAINED))


def explains_a_request(setting):
    with setting.open() as page:
        for limit, headers, effect, facts in EXPLANATIONS:
            told = explain(page, f"/{limit.lower()}", headers)
            applies = effect == "applies"
            equal(page.text("#explain-message"), f"{'1 limit applies' if applies else '0 limits apply'} to this request.")
            # Those that apply come first.
            equal([title for title, _ in told if title.startswith("✓")], [f"✓ {limit} applies"] if applies else [])
            equal(sorted(title.split()[1] for title, _ in told), sorted(name for name, *_ in EXPLANATIONS))
            mine = next(mine for title, mine in told if title == f"{'✓' if applies else '–'} {limit} {effect}")
            for name, part in facts.items():
                equal((limit, name, part in mine.get(name, "(none)")), (limit, name, True))
            for title, others in told[1:] if applies else told:
                equal((title, "Why" in others, "Allows" in others), (title, True, False))
        equal(explain(page, "/nowhere", "")[0][0].startswith("– "), True)
        (title, facts), *_ = explain(page, "/watched", f"x-id: {HOSTILE}")
        equal((title, HOSTILE in facts["Override"], "limits.yaml:" in facts["Override"]), ("✓ Watched applies", True, True))
        page.fill("#explain-headers", "nonsense")
        page.click("#explain-form button")
        page.until_text("#explain-message", "a header is written `name: value`")
        clean(page)


def lists_the_ids_most_denied(setting):
    setting.deny("/watched", x_id="e")
    with setting.open() as page:
        page.until("[...document.querySelectorAll('#top button')].some((button) => button.textContent === 'e')")
        page.run("[...document.querySelectorAll('#top button')].find((button) => button.textContent === 'e').click()")
        page.until_text("#bucket-name", "Watched:e")
        clean(page)
    # A candidate's id is that of a bucket of its limit.
    equal([setting.get("/several", x_id="e") for _ in range(2)], [200, 200])
    with setting.open() as page:
        row = "[...document.querySelectorAll('#top tr')].find((row) => row.textContent.includes('Several, by the candidate low'))"
        page.until(f"!!{row}")
        page.run(f"{row}.querySelector('button').click()")
        page.until_text("#bucket-name", "Several:127.0.0.1")
        page.until("[...document.querySelectorAll('#limits tr')].some((row) => row.textContent.includes('enforce, candidate low 50 %, candidate high 0 %'))")
        clean(page)


# Keeps what the page saves, with its name.
SAVED = """{
    window.saved = [];
    const create = URL.createObjectURL;
    URL.createObjectURL = (blob) => { blob.text().then((text) => saved.push(text)); return create(blob); };
    HTMLAnchorElement.prototype.click = function () { saved.push(this.download); };
}"""


def save_impact(page, limit):
    title = f"The ids that {limit} would have denied, as CSV"
    page.run(f"document.querySelector('#limits button[title={json.dumps(title)}]').click()")


def saves_the_ids_that_would_have_been_denied(setting):
    equal([setting.get("/shadowed", x_id="k") for _ in range(2)], [200, 200])
    with setting.open() as page:
        page.run(SAVED)
        save_impact(page, "Shadowed")
        page.until("saved.length === 2")
        equal(page.run("saved.includes('impact-Shadowed.csv') && saved.some((text) => text.startsWith('limit,') && /\\nShadowed,shadow,k,[0-9a-f]{16},1,0,/.test(text))"), True)
        shown = "[...document.querySelectorAll('#limits button[title$=CSV]')].filter((button) => button.checkVisibility()).map((button) => button.title.split(' ')[3])"
        equal(json.loads(page.run(f"JSON.stringify({shown})")), ["limits", "Shadowed", "Tried", "Moved", "Several", "Part", "CertificatesPerDomainPerAccount"])
        clean(page)


def takes_no_text_for_markup(setting):
    setting.deny("/watched", x_id=HOSTILE)
    with setting.open() as page:
        page.until_text("#top", HOSTILE)
        look_up(page, "Watched", HOSTILE)
        page.until_text("#bucket-name", HOSTILE)
        page.until_text("#bucket-facts", HOSTILE)
        with setting.rules(f'limits: {{ "{HOSTILE}": {{}} }}'):
            page.until_text("#health", "rules on disk are broken; running the previous ones")
            page.until_text("#broken", HOSTILE)
            page.until_text("#announcement", "The rules on disk have an error")
        page.until_text("#health", "Rules: loaded")
        clean(page)


# What is drawn left of the caret and left of the key in the line above it, and whether the caret is in view.
POINTED = """(() => {
    const source = document.querySelector('#broken pre');
    const [line, carets] = source.innerText.split('\\n').slice(1);
    const at = document.createRange();
    const text = source.firstChild;
    at.setStart(text, text.data.indexOf('^'));
    at.setEnd(text, text.data.indexOf('^') + 1);
    const [caret, frame] = [at.getBoundingClientRect(), source.getBoundingClientRect()];
    return JSON.stringify([line.indexOf('cuont'), carets.indexOf('^^^^^'), caret.left >= frame.left && caret.right <= frame.right]);
})()"""


def shows_broken_rules_as_weir_check_does(setting):
    mistake = "limits:\n  Mistaken: { match: { path: /mistaken }, by: ip, burst: 10, cuont: 5, period: 1s }\n"
    for width in [360, 1200]:
        with setting.open(width=width) as page:
            equal(page.run("document.querySelector('#broken').hidden"), True)
            with setting.rules(mistake):
                page.until_text("#broken-text", "error: unknown key `cuont` in a limit\n --> ")
                page.until_text("#broken-text", "limits.yaml:2:")
                page.until_text("#broken-text", "= help: did you mean `count`?")
                key, caret, is_seen = json.loads(page.run(POINTED))
                equal((key > 0, caret, is_seen), (True, key, True))
                equal(page.run("document.documentElement.scrollWidth"), width)
            page.until("document.querySelector('#broken').hidden")
            clean(page)


def shows_what_other_operators_change(setting):
    setting.deny("/watched", x_id="f")
    with setting.open() as page:
        look_up(page, "Watched", "f")
        page.until_text("#bucket-name", "Watched:f")
        page.until_text("#blocks", "There are none.")
        page.until_text("#overrides", "There are none.")
        setting.change("POST", "/buckets/Watched:f/reset")
        page.until("document.querySelector('#windows td').textContent === '1'")
        setting.change("PUT", "/overrides/Watched:f", {"count": 40, "period": "1s", "comment": "a partner"})
        page.until_text("#overrides", "Watched:f burst 40, 40 per 1s, by ")
        page.until_text("#overrides", ", a partner")
        page.until_text("#windows", "burst 40, 40 per 1s")
        setting.change("PUT", "/buckets/Watched:f/block", {"for": "1h", "reason": HOSTILE})
        page.until_text("#blocks", "Watched:f until 20")
        page.until_text("#blocks", " UTC, by ")
        page.until_text("#blocks", f": {HOSTILE}")
        page.until_text("#bucket-facts", HOSTILE)
        equal(setting.get("/watched", x_id="f"), 429)
        page.click("#blocks li button:last-child")
        page.until_text("#blocks-message", "give the operator’s token first")
        use_token(page)
        page.until_text("#token-message", "is in use")
        page.click("#blocks li button:last-child")
        page.until_text("#blocks-message", "Unblocked.")
        page.until_text("#blocks", "There are none.")
        equal(setting.get("/watched", x_id="f"), 200)
        setting.change("DELETE", "/overrides/Watched:f")
        page.until_text("#overrides", "There are none.")
        clean(page)


def ids_stand_apart_from_their_limits(setting):
    connection = http.client.HTTPConnection(setting.options.public, timeout=20)
    connection.request("GET", "/live")
    proxy = next(one["address"] for one in json.loads(connection.getresponse().read())["listeners"] if one["name"] == "proxy")
    equal([setting.get("/watched", to=proxy, x_id="g") for _ in range(2)], [200, 429])
    with setting.open(setting.options.public) as page:
        use_token(page)
        page.until("[...document.querySelectorAll('#top td')].some((cell) => cell.innerText === 'g Watched' && /[0-9a-f]{16}$/.test(cell.title))")


CONTRAST = """(() => {
    const light = (colour) => {
        const [r, g, b] = colour.match(/[\\d.]+/g).map((part) => part / 255).map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const back = (element) => {
        for (; element; element = element.parentElement) {
            const colour = getComputedStyle(element).backgroundColor;
            if (!colour.endsWith(', 0)')) return colour;
        }
        return 'rgb(255, 255, 255)';
    };
    const weak = [];
    for (const element of document.body.querySelectorAll('*')) {
        const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
        if (!hasText || !element.checkVisibility() || element.closest('svg')) continue;
        const pair = [light(getComputedStyle(element).color), light(back(element))].sort((a, b) => b - a);
        if ((pair[0] + 0.05) / (pair[1] + 0.05) < 4.5) weak.push(element.outerHTML.slice(0, 100));
    }
    return JSON.stringify(weak);
})()"""


def is_readable_in_light_and_dark(setting):
    setting.deny("/watched", x_id="d")
    backs = []
    for dark in [False, True]:
        with setting.open(dark=dark) as page:
            look_up(page, "Watched", "nobody")
            page.until_text("#bucket-name", "Watched:nobody")
            use_token(page, "guess")
            page.until_text("#token-message", "Wrong token")
            equal(page.run(CONTRAST), "[]")
            backs.append(page.run("getComputedStyle(document.body).backgroundColor"))
    equal(len(set(backs)), 2)


def fits_a_narrow_screen(setting):
    with setting.open(width=360, height=640) as page:
        look_up(page, "Watched", "x" * 300)
        page.until_text("#bucket-name", "xxx")
        page.fill("#explain-url", "/watched?" + "y" * 300)
        page.click("#explain-form button")
        page.until_text("#explain-message", "appl")
        wide = "[...document.querySelectorAll('body *')].filter((element) => element.checkVisibility() && !element.closest('.skip, .hidden, svg') && element.getBoundingClientRect().right > 361).map((element) => element.outerHTML.slice(0, 80))"
        equal(page.run(f"JSON.stringify({wide})"), "[]")
        equal(page.run("document.documentElement.scrollWidth"), 360)


# Words that are drawn on two lines. Ids, and what has lines of its own, may break anywhere.
BROKEN_WORDS = """(() => {
    const broken = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    while (texts.nextNode()) {
        const text = texts.currentNode;
        if (!text.parentElement.checkVisibility() || text.parentElement.closest('.hidden, .skip, svg, pre, select, #top td > :first-child, .list button')) continue;
        for (const { 0: word, index } of text.data.matchAll(/[A-Za-z]{2,}/g)) {
            range.setStart(text, index);
            range.setEnd(text, index + word.length);
            if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) broken.push(word);
        }
    }
    return JSON.stringify([...new Set(broken)]);
})()"""


def breaks_no_word_at_any_width(setting):
    setting.deny("/certificatesperdomainperaccount", x_id="h")
    with setting.open() as page:
        page.until_text("#top", "CertificatesPerDomainPerAccount")
        for width in [360, 480, 600, 681, 768, 901, 1024, 1280, 1440]:
            page.look(width, 800)
            equal((width, page.run(BROKEN_WORDS)), (width, "[]"))
            equal(page.run("document.documentElement.scrollWidth"), width)


def names_the_documentation(setting):
    with setting.open() as page:
        for name in ["admin", "rules", "operations", "runbook"]:
            equal((name, f"{name}" in page.run("document.querySelector('#pages').innerHTML")), (name, True))


def every_control_is_reached_by_keyboard(setting):
    with setting.open() as page:
        look_up(page, "Watched", "nobody")
        page.until_text("#bucket-name", "Watched:nobody")
        page.run("document.activeElement.blur(); window.getSelection().removeAllRanges(); document.querySelector('.skip').focus()")
        page.run("""{
            window.all = new Set([...document.querySelectorAll('a[href], button, input, select, textarea')].filter((control) => control.checkVisibility()));
            window.invisible = [];
            document.addEventListener('focusin', ({ target }) => {
                all.delete(target);
                if (getComputedStyle(target).outlineStyle === 'none') invisible.push(target.outerHTML);
            });
            all.delete(document.activeElement);
        }""")
        for _ in range(page.run("all.size") + 20):
            page.press("Tab")
        equal(page.run("JSON.stringify([...all].map((control) => control.outerHTML))"), "[]")
        equal(page.run("JSON.stringify(invisible)"), "[]")
        page.run("document.querySelector('#pause').focus()")
        page.press(" ")
        page.until_text("#state", "Paused")


CONTROLS = {"button", "textbox", "searchbox", "combobox", "link"}


def every_control_has_a_name(setting):
    with setting.open() as page:
        look_up(page, "Watched", "nobody")
        page.until_text("#bucket-name", "Watched:nobody")
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        found = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
        roles = {role for role, _ in found}
        equal({"banner", "main", "contentinfo", "region", "table", "columnheader", "rowheader", "status"} - roles, set())
        equal([(role, name) for role, name in found if role in CONTROLS | {"region", "image"} and not name.strip()], [])
        regions = {name for role, name in found if role == "region"}
        expected = {"Health", "Limits", "Buckets", "Explain a request", "Operator’s token", "Ids most denied", "Blocked ids", "Live overrides"}
        equal(expected - regions, set())
        equal(page.run("document.querySelectorAll('[aria-live], [role=alert]').length"), 0)


def ids_need_a_token_on_a_public_address(setting):
    with setting.open(setting.options.public) as page:
        page.until_text("#top-note", "To see ids here, give the operator’s token.")
        look_up(page, "Watched", "b")
        page.until_text("#bucket-message", "This needs the operator’s token.")
        page.click("#explain-form button")
        page.until_text("#explain-message", "This needs the operator’s token.")
        save_impact(page, "Shadowed")
        page.until_text("#limits-message", "This needs the operator’s token.")
        use_token(page)
        page.until_text("#token-message", "is in use")
        page.until_text("#top-note", "No id was denied")
        page.run(SAVED)
        save_impact(page, "Shadowed")
        page.until("saved.includes('impact-Shadowed.csv')")
        look_up(page, "Watched", "b")
        page.until_text("#bucket-name", "Watched:b")


def tells_that_store_and_upstreams_are_down(setting):
    with setting.open(setting.options.ailing) as page:
        page.until_text("#health", "Store, Redis: down")
        page.until_text("#health", "0 of ")
        page.until_text("#empty", "The rules have no limits, so nothing is counted.")
        page.until_text("#top-note", "Weir runs with `--log-ids none`")
        # Enough for each worker; at most half of the addresses are ejected.
        equal({setting.get("/", to=setting.options.failing) for _ in range(100)}, {502})
        page.until_text("#health", "Upstreams: partly down")
        page.until_text("#health", "1 of 2 addresses up")
        page.until_text("#health", "1 ejected")
        equal(explain(page, "/", ""), [])


def described(schema, path, document):
    """Whether a schema has the property at the end of a path."""
    while "$ref" in schema:
        schema = document["components"][schema["$ref"].split("/")[2]][schema["$ref"].split("/")[3]]
    if not path:
        return True
    alternatives = [*schema.get("oneOf", []), *schema.get("anyOf", [])]
    if any(described(one, path, document) for one in alternatives):
        return True
    key, *rest = path
    inner = schema.get("items") if key == "*" else schema.get("properties", {}).get(key, schema.get("additionalProperties"))
    return isinstance(inner, dict) and described(inner, rest, document)


def answer_schema(document, method, path, status):
    for template, item in document["paths"].items():
        if re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", template), path) and method.lower() in item:
            responses = item[method.lower()]["responses"]
            answer = responses.get(status, responses["default"])
            if "$ref" in answer:
                answer = document["components"]["responses"][answer["$ref"].split("/")[3]]
            return next(iter(answer["content"].values()))["schema"]
    raise AssertionError(f"{method} {path} is not in the document")


def reads_only_what_the_api_describes(setting):
    """Comes after all that open pages."""
    document = setting.api()
    reads = [json.loads(read) for read in setting.reads]
    unknown = [read for read in reads if not described(answer_schema(document, *read[:3]), read[3:], document)]
    equal(unknown, [])
    # What is watched is what the page reads.
    asked = {(method, path.split("/")[1]) for method, path, *_ in reads}
    for expected in ["live", "history", "top", "buckets", "overrides", "blocks"]:
        equal(("GET", expected) in asked, True)
    equal(["POST", "/explain", "200", "limits", "*", "name"] in reads, True)
    equal(len(reads) > 60, True)


def a_lost_connection_is_shown_and_recovers(setting):
    relay = Relay(setting.options.admin)
    with setting.open(relay.address) as page:
        relay.cut()
        page.until_text("#state", "Connection lost, trying again")
        equal(page.text("#announcement"), "Connection lost, trying again")
        look_up(page, "Watched", "nobody")
        page.until_text("#bucket-message", "no answer")
        relay.mend()
        page.until_text("#state", "Live")
        equal(page.text("#announcement"), "Live again")


CHECKS = [
    loads_and_says_what_to_do, shows_requests_as_they_come, shows_what_was_before_it_was_opened, pauses, resets_a_denied_id, blocks_refunds_and_sets,
    looks_up_buckets_of_every_kind, sets_lists_and_deletes_an_override,
    says_that_a_token_is_wrong, explains_a_request, lists_the_ids_most_denied, saves_the_ids_that_would_have_been_denied, takes_no_text_for_markup,
    shows_broken_rules_as_weir_check_does, shows_what_other_operators_change, names_the_documentation, breaks_no_word_at_any_width, is_readable_in_light_and_dark,
    fits_a_narrow_screen, every_control_is_reached_by_keyboard, every_control_has_a_name,
    ids_need_a_token_on_a_public_address, ids_stand_apart_from_their_limits, tells_that_store_and_upstreams_are_down, a_lost_connection_is_shown_and_recovers,
    reads_only_what_the_api_describes,
]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ["proxy", "admin", "limits", "public", "ailing", "failing"]:
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    with Browser() as browser:
        checking.run(CHECKS, Setting(options, browser))


if __name__ == "__main__":
    main()

"""Headless Chromium, driven over the DevTools protocol."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

from websockets.sync.client import connect

PROGRAMS = ["chromium-headless-shell", "chromium"]

# For a browser on a busy machine, in seconds.
START, PATIENCE = 60, 30


class Browser:
    """A process of the browser, with a profile of its own. Ends with the `with` block."""

    def __init__(self):
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if program is None:
            raise FileNotFoundError("chromium-headless-shell is missing; run `integration/install.sh`")
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        flags += ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
        flags += ["--remote-debugging-port=0", f"--user-data-dir={self.profile.name}", "about:blank"]
        # Debian's program is a script that starts the browser, so all of its group ends.
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([program, *flags], start_new_session=True, **quiet)
        try:
            self.socket = connect(self.address(), max_size=64 << 20, ping_interval=None, compression=None)
        except BaseException:
            self.stop()
            raise
        self.number, self.events = 0, []

    def address(self):
        """The browser writes its port and path into its profile."""
        file = pathlib.Path(self.profile.name) / "DevToolsActivePort"
        end = time.monotonic() + START
        while time.monotonic() < end and self.process.poll() is None:
            lines = file.read_text().splitlines() if file.exists() else []
            if len(lines) > 1:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            time.sleep(0.02)
        raise TimeoutError(f"the browser did not start: exit code {self.process.poll()}")

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.profile.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.stop()

    def call(self, method, session=None, **parameters):
        """Calls a method of the protocol; keeps the events that come before its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self.socket.send(json.dumps(message))
        while True:
            reply = json.loads(self.socket.recv(PATIENCE))
            if reply.get("id") == self.number:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']}")
                return reply["result"]
            self.events.append(reply)

    def open(self, url, **look):
        """Opens a page in a context of its own."""
        return Page(self, url, **look)


class Page:
    def __init__(self, browser, url, width=1200, height=800, dark=False, script=""):
        self.browser = browser
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Accessibility"]:
            self.call(f"{domain}.enable")
        self.look(width, height, dark)
        # Before the page's own.
        self.call("Page.addScriptToEvaluateOnNewDocument", source=script)
        self.call("Page.navigate", url=url)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def look(self, width, height, dark=False):
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script):
        """The value of an expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, script):
        """Waits until an expression is true, and returns its value."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            value = self.run(script)
            if value:
                return value
            time.sleep(0.02)
        raise AssertionError(f"not within {PATIENCE} s: {script}; the page has {self.text()[:2000]!r}")

    def text(self, selector="body"):
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def until_text(self, selector, part):
        self.until(f"(document.querySelector({json.dumps(selector)})?.innerText ?? '').includes({json.dumps(part)})")

    def fill(self, selector, value):
        """Types into a control as a user does, in place of what it has."""
        self.run(f"{{ const control = document.querySelector({json.dumps(selector)}); control.focus(); control.select(); }}")
        if value:
            self.call("Input.insertText", text=value)
        else:
            self.press("Delete")

    def choose(self, selector, value):
        self.run(
            f"{{ const list = document.querySelector({json.dumps(selector)}); list.value = {json.dumps(value)};"
            " list.dispatchEvent(new Event('change')); }"
        )

    def press(self, key, shift=False):
        code = {"Tab": 9, "Enter": 13, " ": 32, "Delete": 46, "ArrowRight": 39}[key]
        text = {"Enter": "\r", " ": " "}.get(key, "")
        keys = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        keys["modifiers"] = 8 if shift else 0
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **keys)
        self.call("Input.dispatchKeyEvent", type="keyUp", **keys)

    def click(self, selector):
        """Clicks the middle of an element with the mouse."""
        place = self.run(
            f"(() => {{ const element = document.querySelector({json.dumps(selector)});"
            " element.scrollIntoView({ block: 'center' }); const box = element.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ["mousePressed", "mouseReleased"]:
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def problems(self):
        """What the console has of errors and warnings, violations of the policy included."""
        self.run("0")
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            method, details = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(details["exceptionDetails"].get("exception", {}).get("description", str(details)))
            elif method == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
                found.append(str(details["args"]))
            elif method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
                entry = details["entry"]
                found.append(f"{entry['text']} {entry.get('url', '')}".strip())
        return found

    def picture(self, file):
        import base64

        data = self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)["data"]
        pathlib.Path(file).write_bytes(base64.b64decode(data))

"""Clients that check each answer, in threads: what fails is told with the time at which it did.

A failure is a request that was sent and not answered as it should be. A connection on which nothing was sent may be
closed by a server at any time (RFC 9112, 9.8), and one whose answer said `Connection: close` must be; both are counted
and none is a failure. A close that crosses a request on its way is one: who drains can wait for that request.
"""

import collections
import hashlib
import http.client
import select
import ssl
import threading
import time

TIMEOUT = 10
# Few enough for Python to leave the machine to the others, and so that most of the time a connection is idle.
PAUSE = 0.005
# After so many requests a client makes a new connection, so that new certificates are met.
REQUESTS_A_CONNECTION = 200


class Tally:
    """What the clients of a run have seen. Threads add to it."""

    def __init__(self, examples=20):
        self.lock = threading.Lock()
        self.started = time.monotonic()
        self.counts, self.failures = collections.Counter(), []
        self.failed, self.examples = 0, examples
        self.seen = collections.defaultdict(set)

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def saw(self, what, value):
        with self.lock:
            self.seen[what].add(value)

    def fail(self, who, why):
        with self.lock:
            self.failed += 1
            if len(self.failures) < self.examples:
                self.failures.append(f"{time.monotonic() - self.started:7.2f} s  {who}: {why}")


class Checker(threading.Thread):
    """Asks for one path after another, each of its own, and compares the answer with it until told to stop."""

    def __init__(self, name, port, tally, ends, tls=False, keep_alive=True):
        super().__init__(name=name, daemon=True)
        self.port, self.tally, self.ends, self.tls, self.keep_alive = port, tally, ends, tls, keep_alive
        self.connection, self.requests = None, 0

    def run(self):
        while not self.ends.wait(PAUSE):
            path = f"/{self.name}/{self.requests}"
            self.requests += 1
            try:
                self.ask(path)
            except (OSError, http.client.HTTPException) as error:
                self.tally.fail(self.name, f"{path}: {type(error).__name__}: {error}")
                self.close()
        self.close()

    def ask(self, path):
        if self.connection and self.closed_while_idle():
            self.tally.count("closed while idle")
            self.close()
        if not self.connection:
            self.connection = self.connect()
        self.connection.request("GET", path, headers={} if self.keep_alive else {"Connection": "close"})
        response = self.connection.getresponse()
        body = response.read().decode(errors="replace")
        self.tally.count("requests")
        if (response.status, body) != (200, path):
            self.tally.fail(self.name, f"{path}: answered with {response.status} and {body[:100]!r}")
        if policy := response.getheader("RateLimit-Policy"):
            self.tally.saw("rules", policy)
        if response.will_close:
            self.tally.count("closed with notice" if self.keep_alive else "closed as asked")
        if response.will_close or self.requests % REQUESTS_A_CONNECTION == 0:
            self.close()

    def connect(self):
        if not self.tls:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
            connection.connect()
            return connection
        # The certificates are replaced all the time and self-signed. Only which one is served matters.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=TIMEOUT, context=context)
        connection.connect()
        certificate = connection.sock.getpeercert(binary_form=True)
        self.tally.saw("certificates", hashlib.sha256(certificate).hexdigest()[:16])
        return connection

    def closed_while_idle(self):
        """Whether the server closed before we send; with TLS, what is there to read may also be a session ticket."""
        if not select.select([self.connection.sock], [], [], 0)[0]:
            return False
        if not self.tls:
            return True
        self.connection.sock.setblocking(False)
        try:
            return not self.connection.sock.recv(1)
        except ssl.SSLWantReadError:
            return False
        except OSError:
            return True
        finally:
            self.connection.sock.settimeout(TIMEOUT)

    def close(self):
        if self.connection:
            self.connection.close()
        self.connection = None

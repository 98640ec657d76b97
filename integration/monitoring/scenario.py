"""Two minutes of two Weirs with one Redis, watched by a Prometheus, for the pictures of the dashboard.

Clients of the proxy, an nginx and an Envoy send requests all the time. In the healthy part the rules change and one client
floods. Then Redis dies and comes back.
"""

import http.client
import http.server
import itertools
import pathlib
import random
import ssl
import sys
import threading
import time

import grpc
from envoy.service.auth.v3 import external_auth_pb2, external_auth_pb2_grpc
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
from processes import free_ports  # noqa: E402
from stage import ROOT, Certificate, Stage, program, weir_program  # noqa: E402, F401: some are for picture.py

# How long each part takes in seconds, and what happens at its beginning.
HEALTHY = [("quiet", 25), ("rules", 20), ("flood", 25), ("calm", 20)]
OUTAGE = [("before", 15), ("outage", 25), ("recovery", 20)]

RULES = """
limits:
  PerClient: {{ by: {{ header: x-client }}, burst: 20, count: {count}, period: 1s }}
  Search: {{ match: {{ path: /search }}, by: global, burst: 20, count: 15, period: 1s }}
  Logins: {{ match: {{ path: /login }}, by: {{ header: x-client }}, burst: 50, count: 50, period: 1s, on_store_error: deny }}
  Exports: {{ match: {{ path: /search }}, by: {{ header: x-client }}, burst: 2, count: 1, period: 1s, mode: shadow }}
  Sessions: {{ match: {{ path: /slow }}, by: {{ header: x-client }}, burst: 9, count: 9, period: 1s, on_store_error: local }}
  Slots: {{ match: {{ path: /slow }}, by: global, algorithm: concurrency, capacity: 4 }}
  Tenants: {{ match: {{ domain: api }}, by: {{ descriptor: tenant }}, burst: 60, count: 40, period: 1s, candidate: {{ burst: 30, count: 25, period: 1s }} }}
"""


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        time.sleep(random.expovariate(20 if self.path == "/slow" else 300))
        luck = random.random()
        if luck < 0.002:
            self.close_connection = True
            return
        status = 500 if luck < 0.004 else 200
        self.send_response(status)
        self.send_header("content-length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, *_):
        pass


class Scene:
    """Everything that runs, and the threads that ask until it is over."""

    def __init__(self, stage, weir):
        self.stage, self.over, self.threads = stage, threading.Event(), []
        self.flooding = threading.Event()
        upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
        upstream.daemon_threads = True
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        self.redis_port, self.prometheus_port = free_ports(2)
        self.redis = self.start_redis()
        self.limits = stage.directory / "limits.yaml"
        self.write(RULES.format(count=8))
        certificate = Certificate(stage.directory)
        self.weirs = []
        for name in ("gateway-1", "gateway-2"):
            proxy, check, grpc_port, admin = ports = free_ports(4)
            command = [weir, "serve", "--upstream", f"http://127.0.0.1:{upstream.server_port}", "--workers", "2"]
            for listener, port in zip(("proxy", "check", "grpc", "admin"), ports):
                command += [f"--{listener}", f"127.0.0.1:{port}"]
            command += ["--limits", str(self.limits), "--store", f"redis://127.0.0.1:{self.redis_port}"]
            command += ["--tls-cert", certificate.certificate, "--tls-key", certificate.key]
            self.weirs.append((name, ports, stage.start(name, command, admin)[0]))
        self.prometheus = self.start_prometheus()

    def write(self, rules):
        """As an editor does it: at once."""
        new = self.limits.with_suffix(".new")
        new.write_text(rules)
        new.rename(self.limits)

    def start_redis(self):
        command = [program("redis-server"), "--port", str(self.redis_port), "--bind", "127.0.0.1", "--save", ""]
        return self.stage.start("redis", [*command, "--dir", str(self.stage.directory)], self.redis_port)[0]

    def start_prometheus(self):
        targets = "".join(
            f"  - {{ targets: ['127.0.0.1:{ports[3]}'], labels: {{ instance: {name} }} }}\n"
            for name, ports, _ in self.weirs
        )
        text = f"global: {{ scrape_interval: 1s }}\nscrape_configs:\n- job_name: weir\n  static_configs:\n{targets}"
        configuration = self.stage.write("prometheus.yaml", text)
        command = [program("prometheus", "target/test-prometheus/usr/bin/prometheus")]
        command += [f"--config.file={configuration}", f"--storage.tsdb.path={self.stage.directory / 'data'}"]
        command += [f"--web.listen-address=127.0.0.1:{self.prometheus_port}"]
        return self.stage.start("prometheus", command, self.prometheus_port)[0]

    def play(self):
        """Returns when each part began, and when the last one ended, by name in seconds since the Unix epoch."""
        begin, began = time.time(), {}
        for _, ports, _ in self.weirs:
            for place in range(3):
                self.run(self.client, ports[0], place)
            self.run(self.nginx, ports[1])
            self.run(self.envoy, ports[2])
        for part, seconds in HEALTHY + OUTAGE:
            began[part] = time.time()
            print(f"{time.time() - begin:4.0f} s: {part}", flush=True)
            end = time.monotonic() + seconds
            getattr(self, part, lambda _: None)(end)
            time.sleep(max(0, end - time.monotonic()))
        self.over.set()
        for thread in self.threads:
            thread.join()
        return {**began, "end": time.time()}

    def rules(self, _):
        self.write(RULES.format(count=12))

    def outage(self, _):
        self.redis.child.kill()
        self.redis.child.wait()

    def recovery(self, _):
        self.redis = self.start_redis()

    def flood(self, end):
        self.flooding.set()
        time.sleep(max(0, end - time.monotonic()))
        self.flooding.clear()

    def run(self, function, *arguments):
        def loop():
            for _ in self.paced(function(*arguments)):
                pass

        thread = threading.Thread(target=loop)
        thread.start()
        self.threads.append(thread)

    def paced(self, asking):
        """Lets whoever asks do so some 40 times a second, as people do: now and then."""
        for _ in asking:
            if self.over.is_set():
                return
            time.sleep(random.expovariate(40))
            yield

    def client(self, port, place):
        """One of those who use the proxy; the first floods when it is time to."""
        anyone = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=anyone)
        paths = ["/"] * 6 + ["/search"] * 3 + ["/login"] * 2 + ["/slow"]
        for number in itertools.count():
            is_flood = place == 0 and self.flooding.is_set()
            for _ in range(8 if is_flood else 1):
                name = "flooder" if is_flood else f"client-{place}-{number % 5}"
                connection.request("GET", random.choice(paths), headers={"x-client": name})
                connection.getresponse().read()
            yield

    def nginx(self, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        for number in itertools.count():
            fields = {"x-original-method": "GET", "x-original-uri": "/", "x-original-host": "a.example"}
            connection.request("GET", "/nginx", headers={**fields, "x-client": f"nginx-{number % 10}"})
            connection.getresponse().read()
            yield

    def envoy(self, port):
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        limits = rls_pb2_grpc.RateLimitServiceStub(channel)
        checks = external_auth_pb2_grpc.AuthorizationStub(channel)
        for number in itertools.count():
            question = rls_pb2.RateLimitRequest(domain="api", hits_addend=1)
            entry = question.descriptors.add().entries.add()
            entry.key, entry.value = "tenant", f"tenant-{number % 3}"
            request = external_auth_pb2.CheckRequest()
            http_request = request.attributes.request.http
            http_request.method, http_request.path, http_request.host = "GET", "/", "a.example"
            http_request.headers["x-client"] = f"envoy-{number % 10}"
            for call, message in ((limits.ShouldRateLimit, question), (checks.Check, request)):
                try:
                    call(message, timeout=10)
                except grpc.RpcError:
                    pass
            yield

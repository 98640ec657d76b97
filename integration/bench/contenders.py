"""The proxies that are compared: how each is started in front of the same upstream with one limit per client address.

All of them keep connections alive on both sides, write no access log, hold one counter or bucket a client, and have as
many workers as the others, each with a listening socket of its own. Towards the upstream all speak HTTP/1.1.
"""

import dataclasses
import os
import pathlib
import re
import signal
import urllib.request

from processes import free_ports
from stage import Certificate, program

BODY = b"hello from the upstream: 64 bytes of body, as a small JSON reply"

# nginx reads its configuration through a buffer of 4 KiB; longer bodies come from a file.
LONGEST_TEXT = 2048

# What eight buffers of 4 KiB hold, its default.
NGINX_BUFFERED = 32 * 1024

# Enough for 200 s at 5 million requests per second, so that nothing is denied.
AMPLE = 1_000_000_000

# One request per second for each id, and a few more at once, in the scenario `by-id`.
ID_HEADER = "x-id"
ID_BURST = 10

WEIR_LIMITS = {
    # A bucket that is still draining, not one that is full again a microsecond later: its state must be kept, and
    # in Redis it must not expire between two requests.
    "passing": f"limits:\n  PerAddress: {{ by: ip, burst: {AMPLE}, count: 1000000, period: 60s }}\n",
    "denied": "limits:\n  PerAddress: { by: ip, burst: 1, count: 1, period: 1s }\n",
    "by-id": f"limits:\n  PerId: {{ by: {{ header: {ID_HEADER} }}, burst: {ID_BURST}, count: 1, period: 1s }}\n",
}


class Contender:
    """A proxy under load, with the store that it needs."""

    def __init__(self, name, processes, admin=None, rules=None):
        self.name, self.processes, self.admin, self.rules = name, processes, admin, rules
        self.port = processes[-1].port

    def user_and_system_seconds(self):
        pairs = [process.user_and_system_seconds() for process in self.processes]
        return sum(user for user, _ in pairs), sum(system for _, system in pairs)

    def pss_mib(self):
        return sum(process.pss_mib() for process in self.processes)

    def reload(self):
        """Changes a number of its rules, by one, and tells it to read them again."""
        rules = pathlib.Path(self.rules)
        changed = re.sub(r"(burst[=:] ?)(\d+)", lambda burst: f"{burst[1]}{int(burst[2]) ^ 1}", rules.read_text())
        beside = rules.with_suffix(".new")
        beside.write_text(changed)
        beside.rename(rules)
        os.kill(self.processes[-1].child.pid, signal.SIGHUP)

    def store_errors(self):
        """Requests that the store did not decide, since the start. By their limit's policy they passed all the same."""
        return self.counted("weir_store_errors_total")

    def counted(self, series):
        """What Weir's metrics that begin so have counted since the start; 0 for another proxy."""
        if self.admin is None:
            return 0
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=5) as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(series))


@dataclasses.dataclass(frozen=True)
class Front:
    """What every contender is asked for alike."""

    workers: int = 1
    certificate: Certificate | None = None  # TLS 1.3 if there is one
    http2: bool = False  # HTTP/2 alone: chosen by ALPN with TLS, by prior knowledge without
    body: bytes = BODY  # of the upstream's answers

    def url(self, port, path="/"):
        return f"{'https' if self.certificate else 'http'}://127.0.0.1:{port}{path}"


def envoy_program():
    return program("envoy", "target/test-venv/lib/python3*/site-packages/envoy/_bin/envoy")


def upstream(stage, body=BODY):
    """An nginx that answers everything with this body."""
    [port] = free_ports(1)
    location = f"return 200 '{body.decode()}';"
    if len(body) > LONGEST_TEXT:
        (stage.directory / "body").write_bytes(body)
        location = f"root {stage.directory}; try_files /body =500;"
    server = f"sendfile on; open_file_cache max=16; server {{ listen 127.0.0.1:{port}; location / {{ {location} }} }}"
    return stage.start("upstream", nginx_command(stage, "upstream", 1, server), port)[0]


def nginx_command(stage, name, workers, http):
    prefix = stage.directory / name
    prefix.mkdir()
    temporary = " ".join(
        f"{kind}_temp_path {prefix}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = f"""
daemon off; worker_processes {workers}; pid {prefix}/pid; error_log {prefix}/error.log crit;
events {{ worker_connections 8192; multi_accept on; }}
http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 1h; {temporary} {http} }}
"""
    return [program("nginx"), "-p", str(prefix), "-c", stage.write(f"{name}.conf", configuration)]


def nginx(stage, scenario, upstream_port, front):
    [port] = free_ports(1)
    key, zone, rate, burst = {
        "passing": ("$binary_remote_addr", "10m", "1000000r/s", 1_000_000),
        "denied": ("$binary_remote_addr", "10m", "1r/s", 1),
        "by-id": ("$http_" + ID_HEADER.replace("-", "_"), "32m", "1r/s", ID_BURST),
    }[scenario]
    tls = front.certificate
    listen = f"127.0.0.1:{port} reuseport{' ssl' if tls else ''}{' http2' if front.http2 else ''}"
    certificate = (
        f"ssl_certificate {tls.certificate}; ssl_certificate_key {tls.key}; ssl_protocols TLSv1.3;" if tls else ""
    )
    # With buffers of 16 KiB, as HAProxy's are, a body of 64 KiB costs nginx 27 us in place of 46.
    buffers = "proxy_buffers 8 16k; proxy_buffer_size 16k;" if len(front.body) > NGINX_BUFFERED else ""
    http = f"""
  limit_req_zone {key} zone=clients:{zone} rate={rate};
  limit_req_status 429;
  upstream u {{ server 127.0.0.1:{upstream_port}; keepalive 1024; keepalive_requests 1000000000; }}
  server {{
    listen {listen};
    {certificate}
    location / {{
      limit_req zone=clients burst={burst} nodelay;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      # What its buffers cannot hold would go to the disk while the client reads.
      proxy_max_temp_file_size 0; {buffers}
      proxy_pass http://u;
    }}
  }}"""
    name = f"nginx-{scenario}"
    command = nginx_command(stage, name, front.workers, http)
    return Contender("nginx", [stage.start(name, command, port)[0]], rules=command[-1])


def haproxy(stage, scenario, upstream_port, front):
    [port] = free_ports(1)
    rate = {"passing": AMPLE, "denied": 1, "by-id": ID_BURST}[scenario]
    key, table = ("src", "ip size 100k")
    if scenario == "by-id":
        key, table = (f"req.hdr({ID_HEADER})", "string len 16 size 200k")
    bind = f"bind 127.0.0.1:{port} shards by-thread"
    if front.certificate:
        alpn = "h2" if front.http2 else "http/1.1"
        bind += f" ssl crt {front.certificate.both} ssl-min-ver TLSv1.3 alpn {alpn}"
    elif front.http2:
        bind += " proto h2"
    configuration = f"""
global
  nbthread {front.workers}
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  timeout http-keep-alive 1h
frontend f
  {bind}
  stick-table type {table} expire 30s store http_req_rate(1s)
  http-request track-sc0 {key}
  http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {rate} }}
  option forwardfor
  default_backend b
backend b
  http-reuse always
  server s 127.0.0.1:{upstream_port}
"""
    name = f"haproxy-{scenario}"
    command = [program("haproxy"), "-db", "-f", stage.write(f"{name}.cfg", configuration)]
    return Contender("haproxy", [stage.start(name, command, port)[0]])


def envoy(stage, scenario, upstream_port, front):
    [port] = free_ports(1)
    tokens = AMPLE if scenario == "passing" else 1
    extensions = "type.googleapis.com/envoy.extensions"
    filters = f"{extensions}.filters"
    address = "address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}"
    tls = ""
    if front.certificate:
        tls = f"""
      transport_socket:
        name: tls
        typed_config:
          "@type": {extensions}.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context:
            alpn_protocols: [{"h2" if front.http2 else "http/1.1"}]
            tls_params: {{tls_minimum_protocol_version: TLSv1_3, tls_maximum_protocol_version: TLSv1_3}}
            tls_certificates:
            - certificate_chain: {{filename: {front.certificate.certificate}}}
              private_key: {{filename: {front.certificate.key}}}"""
    configuration = f"""
static_resources:
  listeners:
  - {address.format(port)}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": {filters}.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
          codec_type: {"HTTP2" if front.http2 else "HTTP1"}
          use_remote_address: true
          http_filters:
          - name: envoy.filters.http.local_ratelimit
            typed_config:
              "@type": {filters}.http.local_ratelimit.v3.LocalRateLimit
              stat_prefix: limit
              token_bucket: {{max_tokens: {tokens}, tokens_per_fill: {tokens}, fill_interval: 1s}}
              filter_enabled: {{default_value: {{numerator: 100}}}}
              filter_enforced: {{default_value: {{numerator: 100}}}}
          - name: envoy.filters.http.router
            typed_config: {{"@type": {filters}.http.router.v3.Router}}
          route_config:
            virtual_hosts:
            - {{name: all, domains: ["*"], routes: [{{match: {{prefix: "/"}}, route: {{cluster: upstream}}}}]}}{tls}
  clusters:
  - name: upstream
    connect_timeout: 1s
    circuit_breakers: {{thresholds: [{{max_connections: 8192, max_pending_requests: 8192, max_requests: 8192}}]}}
    load_assignment:
      cluster_name: upstream
      endpoints: [{{lb_endpoints: [{{endpoint: {{{address.format(upstream_port)}}}}}]}}]
"""
    name = f"envoy-{scenario}"
    command = [envoy_program(), "-c", stage.write(f"{name}.yaml", configuration)]
    command += ["--concurrency", str(front.workers), "--log-level", "error", "--disable-hot-restart"]
    return Contender("envoy", [stage.start(name, command, port)[0]])


def relay(stage, scenario, upstream_port, front):
    """What forwards bytes and reads no HTTP: the floor. None where a contender has more to do than forwarding them."""
    if scenario != "passing" or front.certificate or front.http2 or front.workers > 1:
        return None
    [port] = free_ports(1)
    command = [stage.compile("relay"), str(port), str(upstream_port)]
    return Contender("relay", [stage.start("relay-passing", command, port)[0]])


def weir_command(binary, upstream_port, ports, front, limits, *more):
    """`ports` are those of the proxy and of the admin listener."""
    port, admin = ports
    command = [binary, "serve", "--upstream", f"http://127.0.0.1:{upstream_port}", "--proxy", f"127.0.0.1:{port}"]
    if front.certificate:
        command += ["--tls-cert", front.certificate.certificate, "--tls-key", front.certificate.key]
    return [*command, "--admin", f"127.0.0.1:{admin}", "--workers", str(front.workers), "--limits", limits, *more]


def weir(binary, name="weir"):
    def start(stage, scenario, upstream_port, front):
        ports = free_ports(2)
        limits = stage.write(f"{name}-{scenario}.yaml", WEIR_LIMITS[scenario])
        command = weir_command(binary, upstream_port, ports, front, limits, "--store", "memory")
        return Contender(name, [stage.start(f"{name}-{scenario}", command, ports[0])[0]], ports[1], limits)

    return start


def weir_redis(binary, name="weir+redis"):
    """Weir with a Redis of its own, whose CPU time and memory are counted with Weir's.

    The load generator, the upstream, Weir and Redis share a few cores, so that now and then Redis waits for one longer
    than the 20 ms which Weir waits for Redis. Here every request must be decided, so Weir waits for a second.
    """

    def start(stage, scenario, upstream_port, front):
        redis_port, *ports = free_ports(3)
        command = [program("redis-server"), "--port", str(redis_port), "--bind", "127.0.0.1", "--save", ""]
        redis = stage.start(f"redis-{name}-{scenario}", [*command, "--dir", str(stage.directory)], redis_port)[0]
        limits = stage.write(f"{scenario}-redis.yaml", WEIR_LIMITS[scenario])
        store = ["--store", f"redis://127.0.0.1:{redis_port}", "--store-timeout", "1s"]
        command = weir_command(binary, upstream_port, ports, front, limits, *store)
        return Contender(name, [redis, stage.start(f"{name}-{scenario}", command, ports[0])[0]], ports[1])

    return start

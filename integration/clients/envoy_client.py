#!/usr/bin/env python3
"""Asks the gRPC listener at ADDRESS, of which each address may have three requests, what Envoy and gRPC's tools ask.

Prints {"passed": [..], "failed": {..}} and ends with 1 if anything failed. With --drain PROCESS it watches the health of
the process, tells it to end, and prints what it was told: {"statuses": [..], "code": ..}. With --calls N it makes so many
calls, two at a time, and prints how many ended with each code.
"""

import argparse
import collections
import json
import os
import signal

import grpc
from envoy.service.auth.v3 import external_auth_pb2, external_auth_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

import checking
from checking import equal

# For a busy machine.
TIMEOUT = 120
AUTHORIZATION = "envoy.service.auth.v3.Authorization"
RATE_LIMIT = "envoy.service.ratelimit.v3.RateLimitService"


def check_request(address):
    request = external_auth_pb2.CheckRequest()
    attributes = request.attributes
    attributes.source.address.socket_address.address = address
    attributes.request.http.method = "GET"
    attributes.request.http.path = "/x?y"
    attributes.request.http.host = "a.example"
    attributes.request.http.headers["user-agent"] = "python"
    return request


def authorization(channel):
    stub = external_auth_pb2_grpc.AuthorizationStub(channel)
    answers = [stub.Check(check_request("192.0.2.1"), timeout=TIMEOUT) for _ in range(4)]
    equal([answer.status.code for answer in answers], [0, 0, 0, 8])
    equal([answer.WhichOneof("http_response") for answer in answers], ["ok_response"] * 3 + ["denied_response"])
    denied = answers[3].denied_response
    equal(denied.status.code, 429)
    equal(json.loads(denied.body)["violated-policies"], ["Three"])
    equal(answers[3].dynamic_metadata["limit"], "Three")


def fields_that_are_not_read_do_no_harm(channel):
    request = check_request("192.0.2.2")
    http = request.attributes.request.http
    http.id, http.size, http.protocol, http.scheme, http.body = "7", 12, "HTTP/1.1", "http", "a body"
    request.attributes.destination.address.pipe.path = "/run/envoy"
    request.attributes.source.labels["a"] = "b"
    request.attributes.request.time.GetCurrentTime()
    request.attributes.tls_session.sni = "a.example"
    request.attributes.metadata_context.filter_metadata["x"]["y"] = 1
    stub = external_auth_pb2_grpc.AuthorizationStub(channel)
    equal(stub.Check(request, timeout=TIMEOUT).status.code, 0)


def outcome(call):
    try:
        call()
        return "OK"
    except grpc.RpcError as error:
        return error.code().name


def mistakes_have_their_codes(channel):
    stub = external_auth_pb2_grpc.AuthorizationStub(channel)
    check = f"/{AUTHORIZATION}/Check"
    equal(outcome(lambda: stub.Check(external_auth_pb2.CheckRequest(), timeout=TIMEOUT)), "INVALID_ARGUMENT")
    equal(outcome(lambda: channel.unary_unary("/a.B/C")(b"", timeout=TIMEOUT)), "UNIMPLEMENTED")
    equal(outcome(lambda: channel.unary_unary(check)(b"\xff" * 9, timeout=TIMEOUT)), "INTERNAL")
    equal(outcome(lambda: channel.unary_unary(check)(bytes(5 << 20), timeout=TIMEOUT)), "RESOURCE_EXHAUSTED")
    large = check_request("192.0.2.3")
    # gRPC leaves alone what compression would make longer.
    large.attributes.request.http.headers["x-long"] = "long" * 1_000
    compressed = lambda: stub.Check(large, timeout=TIMEOUT, compression=grpc.Compression.Gzip)
    equal(outcome(compressed), "UNIMPLEMENTED")
    equal(outcome(lambda: channel.stream_unary(check)(iter([b"", b""]), timeout=TIMEOUT)), "UNIMPLEMENTED")


def health_check(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    ask = lambda service: stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT).status
    for service in ["", AUTHORIZATION, RATE_LIMIT]:
        equal(ask(service), health_pb2.HealthCheckResponse.SERVING)
    equal(outcome(lambda: ask("a.B")), "NOT_FOUND")


def health_list(channel):
    statuses = health_pb2_grpc.HealthStub(channel).List(health_pb2.HealthListRequest(), timeout=TIMEOUT).statuses
    equal({name: status.status for name, status in statuses.items()}[AUTHORIZATION], 1)
    equal("" in statuses, True)


def health_watch(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    for service, expected in [("", "SERVING"), ("a.B", "SERVICE_UNKNOWN")]:
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT)
        equal(health_pb2.HealthCheckResponse.ServingStatus.Name(next(watch).status), expected)
        watch.cancel()


def drain(channel, process):
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
    statuses = []
    try:
        for answer in watch:
            statuses.append(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
            if len(statuses) == 1:
                os.kill(process, signal.SIGTERM)
        code = "OK"
    except grpc.RpcError as error:
        code = error.code().name
    print(json.dumps({"statuses": statuses, "code": code}))


def call(channel, count):
    """Two at a time, so that there is always one on its way."""
    codes = collections.Counter()
    stub = external_auth_pb2_grpc.AuthorizationStub(channel)
    waiting = collections.deque()
    for _ in range(count):
        # On a busy machine a connection may be told to end before its handshake, which fails calls that do not wait for another.
        question = check_request("192.0.2.1")
        waiting.append(stub.Check.future(question, timeout=TIMEOUT, wait_for_ready=True))
        if len(waiting) > 1:
            codes[waiting.popleft().code().name] += 1
    codes.update(one.code().name for one in waiting)
    print(json.dumps(codes))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--drain", metavar="PROCESS", type=int)
    parser.add_argument("--calls", metavar="N", type=int)
    options = parser.parse_args()
    with grpc.insecure_channel(options.address) as channel:
        if options.drain:
            return drain(channel, options.drain)
        if options.calls:
            return call(channel, options.calls)
        checks = [
            authorization,
            fields_that_are_not_read_do_no_harm,
            mistakes_have_their_codes,
            health_check,
            health_list,
            health_watch,
        ]
        checking.run(checks, channel)


if __name__ == "__main__":
    main()

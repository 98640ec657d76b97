#!/usr/bin/env python3
"""A gRPC server of all four call shapes, on a port that the system picks. Messages are bytes, so nothing is generated.

The service is `weir.test.Shapes`: Unary, ServerStream, ClientStream, Bidi; Fail ends with a status that has a text;
Hang never answers, and Cancelled says how many such calls were cancelled. What `x-id` and `x-raw-bin` hold
comes back as metadata, before and after the messages.
"""

import threading
from concurrent import futures

import grpc

import serving

# What comes back, by which names in the headers and in the trailers. Only names that end in -bin may hold any bytes.
BACK = {"x-id": ("x-id-first", "x-id-last"), "x-raw-bin": ("x-raw-first-bin", "x-raw-last-bin")}

cancelled = threading.Semaphore(0)
cancelled_calls = []


def with_metadata(behavior):
    """Sends what came in `x-id` and `x-raw-bin` back in the headers and in the trailers."""

    def call(request, context):
        given = [(key, value) for key, value in context.invocation_metadata() if key in BACK]
        context.send_initial_metadata([(BACK[key][0], value) for key, value in given])
        context.set_trailing_metadata([(BACK[key][1], value) for key, value in given])
        return behavior(request, context)

    return call


def unary(request, _):
    return request[::-1]


def server_stream(request, _):
    """As many messages as the request says, of as many bytes each."""
    count, size = map(int, request.split())
    for number in range(count):
        yield bytes([number % 256]) * size


def client_stream(requests, _):
    messages = list(requests)
    return f"{len(messages)} {sum(map(len, messages))}".encode()


def bidi(requests, _):
    """Answers each message when it comes, not when all have come."""
    for request in requests:
        yield request[::-1]


def fail(_, context):
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now: 100 % späte Züge")


def hang(_, context):
    over = threading.Event()
    context.add_callback(over.set)
    over.wait(60)
    cancelled_calls.append(1)
    cancelled.release()
    return b""


def count_cancelled(_, __):
    """Waits for one, since a cancellation takes its time from hop to hop."""
    cancelled.acquire(timeout=100)
    return str(len(cancelled_calls)).encode()


def main():
    server = grpc.server(futures.ThreadPoolExecutor(16), options=[("grpc.max_receive_message_length", 64 << 20)])
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(with_metadata(unary)),
        "ServerStream": grpc.unary_stream_rpc_method_handler(with_metadata(server_stream)),
        "ClientStream": grpc.stream_unary_rpc_method_handler(with_metadata(client_stream)),
        "Bidi": grpc.stream_stream_rpc_method_handler(with_metadata(bidi)),
        "Fail": grpc.unary_unary_rpc_method_handler(fail),
        "Hang": grpc.unary_unary_rpc_method_handler(hang),
        "Cancelled": grpc.unary_unary_rpc_method_handler(count_cancelled),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("weir.test.Shapes", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    serving.listening(port)
    server.wait_for_termination()


if __name__ == "__main__":
    main()

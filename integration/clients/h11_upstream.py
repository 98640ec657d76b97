#!/usr/bin/env python3
"""A strict HTTP/1.1 server, h11, on a port that the system picks; it says what it saw as lines of JSON.

Each request is {"request": .., "target": .., "version": .., "fields": [[name, value], ..], "body": ..,
"trailers": [..], "connection": N}, bytes as Latin-1, names as they were written. What h11 does not take for HTTP is
{"error": .., "connection": N}, and its connection is closed. Every request is answered with 200 and its own target.
"""

import socket
import threading

import h11

import serving

TIMEOUT = 60


def text(value):
    return value.decode("latin-1")


def lines(fields):
    return [[text(name), text(value)] for name, value in fields]


def next_event(stream, connection):
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(stream.recv(65536))
    return event


def serve(stream, number):
    connection = h11.Connection(h11.SERVER)
    stream.settimeout(TIMEOUT)
    with stream:
        try:
            while serve_request(stream, connection, number):
                connection.start_next_cycle()
        except h11.RemoteProtocolError as error:
            serving.say({"error": str(error), "connection": number})
        except (OSError, h11.LocalProtocolError):
            # The proxy closed in the middle: its right, and the test looks at the requests.
            pass


def serve_request(stream, connection, number):
    """Reads and answers one; false if there is none after it."""
    request = next_event(stream, connection)
    if not isinstance(request, h11.Request):
        return False
    if connection.they_are_waiting_for_100_continue:
        stream.sendall(connection.send(h11.InformationalResponse(status_code=100, headers=[])))
    body = b""
    while isinstance(event := next_event(stream, connection), h11.Data):
        body += bytes(event.data)
    seen = {"request": text(request.method), "target": text(request.target), "version": text(request.http_version)}
    seen |= {"fields": lines(request.headers.raw_items()), "body": text(body), "trailers": lines(event.headers)}
    serving.say(seen | {"connection": number})
    answer = h11.Response(status_code=200, headers=[("content-length", str(len(request.target)))])
    body = [] if request.method == b"HEAD" else [h11.Data(data=request.target)]
    for part in [answer, *body, h11.EndOfMessage()]:
        stream.sendall(connection.send(part))
    return connection.our_state is h11.DONE and connection.their_state is h11.DONE


def main():
    listener = socket.create_server(("127.0.0.1", 0))
    serving.listening(listener.getsockname()[1])
    number = 0
    while True:
        stream, _ = listener.accept()
        threading.Thread(target=serve, args=(stream, number), daemon=True).start()
        number += 1


if __name__ == "__main__":
    main()

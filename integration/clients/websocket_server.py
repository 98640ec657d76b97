#!/usr/bin/env python3
"""A WebSocket server on a port that the system picks. What a connection does is its path:

/echo      sends every message back
/push      sends ten messages without being asked, then waits for the client to close
/close     closes with 4001 and a reason
/ping      pings, and says in a message that the pong came
/reject    answers the handshake with 403
Each connection that ends is told as a line of JSON: {"closed": PATH, "code": .., "reason": ..}.
"""

import asyncio
import http

import websockets
from websockets.asyncio.server import serve

import serving

LARGEST = 32 << 20


async def echo(connection):
    async for message in connection:
        await connection.send(message)


async def push(connection):
    for number in range(10):
        await connection.send(f"push {number}")
        await asyncio.sleep(0.01)
    await connection.wait_closed()


async def close(connection):
    await connection.close(4001, "enough: späte Züge")


async def ping(connection):
    pong = await connection.ping(b"are you there")
    await asyncio.wait_for(pong, 10)
    await connection.send("pong came")
    await connection.wait_closed()


BEHAVIORS = {"/echo": echo, "/push": push, "/close": close, "/ping": ping}


async def serve_one(connection):
    path = connection.request.path
    try:
        await BEHAVIORS[path](connection)
    except websockets.ConnectionClosed:
        pass
    await connection.wait_closed()
    serving.say({"closed": path, "code": connection.close_code, "reason": connection.close_reason})


def reject(connection, request):
    if request.path == "/reject":
        return connection.respond(http.HTTPStatus.FORBIDDEN, "not you\n")
    return None


def choose(_, offered):
    return "weir.test" if "weir.test" in offered else None


async def main():
    settings = {"process_request": reject, "select_subprotocol": choose, "max_size": LARGEST, "ping_interval": None}
    async with serve(serve_one, "127.0.0.1", 0, **settings) as server:
        serving.listening(server.sockets[0].getsockname()[1])
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())

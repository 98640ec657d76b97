"""One end of an HTTP/2 connection, frame by frame: what no library would send can be sent."""

import collections
import select
import socket
import ssl
import struct

import hpack
from hyperframe.frame import Frame, GoAwayFrame, HeadersFrame, RstStreamFrame, SettingsFrame

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# How long a peer may take to answer: longer than anything takes on a busy machine.
PATIENCE = 10
# What a flood sends before it takes a look at the answers.
BATCH_BYTES = 64 << 10
BATCH_PIECES = 1024

ERRORS = (
    "NO_ERROR PROTOCOL_ERROR INTERNAL_ERROR FLOW_CONTROL_ERROR SETTINGS_TIMEOUT STREAM_CLOSED FRAME_SIZE_ERROR "
    "REFUSED_STREAM CANCEL COMPRESSION_ERROR CONNECT_ERROR ENHANCE_YOUR_CALM INADEQUATE_SECURITY HTTP_1_1_REQUIRED"
).split()


def error_name(code):
    return ERRORS[code] if code < len(ERRORS) else str(code)


def frame(kind, flags, stream, payload=b""):
    """The bytes of a frame (RFC 9113, 4.1), whatever sense they make."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


class Closed(Exception):
    """The peer closed, or reset, the connection."""


class Connection:
    """Sends bytes; sorts what comes back into statuses and resets by stream, and what ended the connection.

    Over TLS with a `context`, by prior knowledge without.
    """

    def __init__(self, address, context=None):
        host, port = address.rsplit(":", 1)
        self.stream = socket.create_connection((host, int(port)), PATIENCE)
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context:
            context.set_alpn_protocols(["h2"])
            self.stream = context.wrap_socket(self.stream, server_hostname="localhost")
            if self.stream.selected_alpn_protocol() != "h2":
                raise OSError("the server does not choose h2")
        self.decoder = hpack.Decoder()
        self.encoder = hpack.Encoder()
        self.buffer = b""
        self.statuses, self.resets, self.goaway, self.closed = {}, {}, None, False
        self.last_stream = None
        self.counts = collections.Counter()
        self.send(PREFACE + SettingsFrame(0).serialize())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()

    def headers(self, fields, stream=1, end_stream=True):
        """A HEADERS frame with this list of fields in one block, without indexing, names and values as they are."""
        flags = 0x4 | (0x1 if end_stream else 0)
        return frame(0x1, flags, stream, b"".join(literal(name, value) for name, value in fields))

    def send(self, data):
        try:
            self.stream.sendall(data)
        except (OSError, ssl.SSLError):
            # What the peer said before it closed may still be there to read.
            self.read(0)
            self.closed = True
            raise Closed from None

    def flood(self, pieces):
        """Sends until all is sent, or the peer has had enough; returns how many pieces went out."""
        sent, batch, size = 0, [], 0
        for piece in pieces:
            batch.append(piece)
            size += len(piece)
            if size >= BATCH_BYTES or len(batch) >= BATCH_PIECES:
                self.send(b"".join(batch))
                sent, batch, size = sent + len(batch), [], 0
                self.read(0)
                if self.goaway or self.closed:
                    return sent
        self.send(b"".join(batch))
        return sent + len(batch)

    def read(self, seconds):
        """Takes in what comes within this time; false if nothing came or the peer closed."""
        if not getattr(self.stream, "pending", int)() and not select.select([self.stream], [], [], seconds)[0]:
            return False
        try:
            data = self.stream.recv(1 << 16)
        except (OSError, ssl.SSLError):
            data = b""
        if not data:
            self.closed = True
            return False
        self.buffer += data
        self.parse()
        return True

    def parse(self):
        while len(self.buffer) >= 9:
            found, length = Frame.parse_frame_header(memoryview(self.buffer[:9]))
            if len(self.buffer) < 9 + length:
                return
            found.parse_body(memoryview(self.buffer[9 : 9 + length]))
            self.buffer = self.buffer[9 + length :]
            self.see(found)

    def see(self, found):
        self.counts[type(found).__name__.removesuffix("Frame").upper()] += 1
        if isinstance(found, HeadersFrame):
            # Every block is decoded, or the decoder's table would not be the peer's. Trailers have no status.
            fields = dict(self.decoder.decode(found.data))
            if ":status" in fields:
                self.statuses[found.stream_id] = int(fields[":status"])
        elif isinstance(found, RstStreamFrame):
            self.resets[found.stream_id] = error_name(found.error_code)
        elif isinstance(found, GoAwayFrame):
            self.goaway, self.last_stream = error_name(found.error_code), found.last_stream_id
        elif isinstance(found, SettingsFrame) and "ACK" not in found.flags and not self.closed:
            try:
                self.stream.sendall(SettingsFrame(0, flags=["ACK"]).serialize())
            except OSError:
                self.closed = True

    def wait(self, done):
        """Reads until `done()`, the connection's end, or nothing more for as long as anything may take."""
        while not done() and not self.closed and self.read(PATIENCE):
            pass

    def outcome(self, stream):
        """What came of a stream: a status, a reset, the end of the connection, or nothing."""
        if stream in self.statuses:
            return {"outcome": "status", "status": self.statuses[stream]}
        if stream in self.resets:
            return {"outcome": "reset", "error": self.resets[stream]}
        return self.ending()

    def ending(self):
        if self.goaway:
            return {"outcome": "goaway", "error": self.goaway}
        return {"outcome": "closed"} if self.closed else {"outcome": "nothing"}


def trusting(ca):
    """A context for servers whose certificates this authority has signed; `None` for no TLS."""
    return ssl.create_default_context(cafile=ca) if ca else None


def literal(name, value):
    """A field as HPACK's literal without indexing and without Huffman coding (RFC 7541, 6.2.2)."""
    return b"\x00" + string(name) + string(value)


def string(text):
    data = text if isinstance(text, bytes) else text.encode("latin-1")
    return integer(len(data), 7) + data


def integer(value, bits, flags=0):
    """RFC 7541, 5.1."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([flags | value])
    found, value = bytes([flags | most]), value - most
    while value >= 128:
        found, value = found + bytes([value % 128 | 128]), value // 128
    return found + bytes([value])

"""The framing between `scripts/host` and the nested host, used by both ends.

One TCP connection carries one command. A frame is one byte of kind, the payload's length as a big-endian u32, the payload:

    kind  from    payload
    H     client  JSON, the first frame: {"token", "op", ...}; see server.py for the operations
    I     client  standard input; an empty payload is its end
    S     client  one byte: a signal for the command's process group
    C     both    one byte of stream (0, 1, 2), u32: that many more bytes of it may be sent
    P     client  one byte of stream (1, 2): nobody reads it any more; the command gets SIGPIPE for it
    A     server  JSON: the command runs (or the operation is done, with its answer)
    O, E  server  standard output, standard error
    X     server  one byte: the exit status as a shell gives it, 128+n for a signal; the last frame
    F     server  JSON {"status", "message"}: the command was not started

Each of the three streams has its own window (`WINDOW` bytes unacknowledged), so one that nobody reads holds up neither
the others nor signals.
"""

import struct

WINDOW = 1 << 20
MAX_FRAME = 4 << 20
CHUNK = 1 << 16
HEADER = struct.Struct(">cI")
CREDIT = struct.Struct(">BI")


class ProtocolError(Exception):
    """The peer does not speak this protocol."""


def frame(kind, payload=b""):
    return HEADER.pack(kind, len(payload)) + payload


def credit(stream, count):
    return frame(b"C", CREDIT.pack(stream, count))


class Decoder:
    """Takes frames out of bytes that arrive in pieces."""

    def __init__(self, limit=MAX_FRAME):
        self.buffer = bytearray()
        self.limit = limit

    def push(self, data):
        self.buffer += data

    def frames(self):
        """Yields (kind, payload) for each whole frame."""
        start = 0
        try:
            while len(self.buffer) - start >= HEADER.size:
                kind, length = HEADER.unpack_from(self.buffer, start)
                if length > self.limit:
                    raise ProtocolError("a frame of %d bytes is over the limit" % length)
                end = start + HEADER.size + length
                if len(self.buffer) < end:
                    return
                payload = bytes(self.buffer[start + HEADER.size:end])
                # Moved on before the yield: the reader may stop after any frame and hand the rest on.
                start = end
                yield kind, payload
        finally:
            del self.buffer[:start]

"""Many readers of one stream, in a process of its own: attaches in two steps, then counts events until the end.

    python -m bench.subscribers PORT PATH KEY FIRST MORE

Prints `ready`, `attached` after each step (a line on stdin starts the next), and in the end one line of JSON. Sockets
and epoll, since a reader must cost less than the writer that it measures.
"""

from __future__ import annotations

import select
import socket
import sys
import time

import msgspec
from msgspec import Struct

_LAST = b"0\r\n\r\n"
_FRAME_END = b"\n\n\r\n"


class Delivered(Struct, frozen=True):
    events: int
    seconds: float
    """From the first event after everybody had attached to the last one of all."""


class Readers:
    def __init__(self, port: int, path: str, key: str) -> None:
        self._port = port
        self._request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._buffer = bytearray(1 << 20)

    def attach(self, count: int) -> None:
        """Opens streams, and returns when each has had its first bytes."""
        waiting: set[int] = set()
        for _ in range(count):
            sock = socket.create_connection(("127.0.0.1", self._port))
            sock.sendall(self._request)
            sock.setblocking(False)
            self._sockets[sock.fileno()] = sock
            waiting.add(sock.fileno())
            self._epoll.register(sock.fileno(), select.EPOLLIN)
        while waiting:
            for fd, _ in self._epoll.poll():
                size = self._sockets[fd].recv_into(self._buffer)
                if not size:
                    raise RuntimeError("a stream was closed")
                if b"event: " in self._buffer[:size]:
                    waiting.discard(fd)

    def count(self) -> Delivered:
        """Reads until every stream has ended."""
        events, begun = 0, 0.0
        buffer = self._buffer
        left = len(self._sockets)
        cut: dict[int, bytes] = {}  # what a read ended with in the middle of a frame
        while left:
            for fd, _ in self._epoll.poll():
                size = self._sockets[fd].recv_into(buffer)
                begun = begun or time.perf_counter()
                ended = buffer.endswith(_LAST, 0, size)
                if size and (fd in cut or not (ended or buffer.endswith(_FRAME_END, 0, size))):
                    data = cut.pop(fd, b"") + buffer[:size]
                    ended = data.endswith(_LAST)
                    if ended or data.endswith(_FRAME_END):
                        events += data.count(b"event: ")
                    else:
                        cut[fd] = data
                else:
                    events += buffer.count(b"event: ", 0, size)
                if ended or not size:
                    self._epoll.unregister(fd)
                    left -= 1
        return Delivered(events, time.perf_counter() - begun)


def main() -> None:
    port, path, key, first, more = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    readers = Readers(port, path, key)
    print("ready", flush=True)
    for step in (first, more):
        readers.attach(step)
        print("attached", flush=True)
        sys.stdin.readline()
    print(msgspec.json.encode(readers.count()).decode(), flush=True)


if __name__ == "__main__":
    main()

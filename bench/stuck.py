"""Many readers that take nothing, in a process of their own.

    python -m bench.stuck PORT KEY COUNT PATH...

Opens COUNT streams of the PATHs in turn and prints `ready`, `attached` once all of them are open; reads nothing after
an answer's first bytes. After a line on stdin it reads some of the streams to their end and prints the size of each.
"""

from __future__ import annotations

import select
import socket
import sys
import time

import msgspec

SAMPLE = 20
"""Streams that are read in the end: all of them would be many gigabytes."""
_LAST = b"0\r\n\r\n"


def attach(port: int, path: str, key: str) -> socket.socket:
    """An open stream of which the first bytes were read, and whose window is as small as the system allows."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    while True:
        try:
            sock.connect(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.01)
        else:
            break
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
    return sock


def first_bytes(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        first = sock.recv(12)
        if first != b"HTTP/1.1 200":
            raise RuntimeError(f"a stream could not be opened: {first + sock.recv(4096)!r}")


def read_to_the_end(sockets: list[socket.socket]) -> list[int]:
    """The bytes that each stream had."""
    sizes = {sock.fileno(): 12 for sock in sockets}
    tails = {sock.fileno(): b"" for sock in sockets}
    by_number = {sock.fileno(): sock for sock in sockets}
    poll = select.epoll()
    for number, sock in by_number.items():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        poll.register(number, select.EPOLLIN)
    left = len(sockets)
    while left:
        for number, _ in poll.poll():
            data = by_number[number].recv(1 << 18)
            sizes[number] += len(data)
            tails[number] = (tails[number] + data)[-len(_LAST) :]
            if tails[number] == _LAST or not data:
                poll.unregister(number)
                left -= 1
                if tails[number] != _LAST:
                    raise RuntimeError("a stream was cut")
    return list(sizes.values())


def main() -> None:
    port, key, count, paths = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]
    print("ready", flush=True)
    sockets: list[socket.socket] = []
    for start in range(0, count, 100):
        some = [attach(port, paths[at % len(paths)], key) for at in range(start, min(start + 100, count))]
        first_bytes(some)
        sockets += some
    print("attached", flush=True)
    sys.stdin.readline()
    print(msgspec.json.encode(read_to_the_end(sockets[:: max(1, count // SAMPLE)])).decode(), flush=True)


if __name__ == "__main__":
    main()

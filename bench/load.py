"""The load generator: a process of its own that reads a job from stdin and writes what it measured to stdout.

Callbacks, no coroutine per client: against canned replies it must be far faster than any server it measures.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Literal

import msgspec
import uvloop
from msgspec import Struct

from bench.connection import Connection
from bench.processes import cpu_s

_RUN_ID = b'"runId":"'
_CALL_ID = b'"toolUseId":"'


class Job(Struct, frozen=True, kw_only=True):
    """What to do, `rounds` times: each client goes on until `seconds` are over or `limit` things were begun."""

    port: int
    key: str
    mode: Literal["run", "once", "post", "get"] = "run"
    """A whole run by two requests or by one, its creation alone, or the stream at `path` alone."""
    body: str = ""
    path: str = ""
    slug: str = "bench"
    clients: int = 64
    seconds: float = 1.2
    limit: int = 10**9
    rounds: int = 3
    pause_s: float = 0.0
    warm_up: int = 0
    """Things to do before the first round, unmeasured."""
    pid: int = 0
    """The server, to ask for its CPU time."""


class Round(Struct, frozen=True, kw_only=True):
    done: int
    failed: int
    seconds: float
    cpu_s: float
    """Of the server."""
    bytes: int
    took_p50_ms: float
    took_p99_ms: float
    first_p50_ms: float
    """From the request that creates the run to the first bytes of its stream."""
    first_p99_ms: float
    problem: str = ""
    """What the first failure looked like."""

    @property
    def rate(self) -> float:
        return self.done / self.seconds


class _Tally:
    """What the clients of one round share."""

    def __init__(self, job: Job, *, limit: int, seconds: float) -> None:
        self.left = limit
        self.deadline = time.perf_counter() + seconds
        self.running = 0
        self.took: list[float] = []
        self.first: list[float] = []
        self.failed = 0
        self.bytes = 0
        self.problem = ""
        self.all_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def claim(self) -> bool:
        if self.left <= 0 or time.perf_counter() >= self.deadline:
            return False
        self.left -= 1
        return True

    def leave(self) -> None:
        self.running -= 1
        if not self.running and not self.all_done.done():
            self.all_done.set_result(None)


class _Client:
    """One client: creates a run, follows it to its end, answers its tool calls, and begins again."""

    def __init__(self, job: Job) -> None:
        self._job = job
        base = f"/api/v1/workspaces/{job.slug}/agent-runs"
        common = f"Host: 127.0.0.1\r\nAuthorization: Bearer {job.key}\r\n"
        body = job.body.encode()
        accept = "Accept: text/event-stream\r\n" if job.mode == "once" else ""
        self._post = (
            f"POST {base} HTTP/1.1\r\n{common}{accept}Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        self._get = f"GET {base}/%s/stream HTTP/1.1\r\n{common}\r\n".encode()
        self._replay = f"GET {job.path} HTTP/1.1\r\n{common}\r\n".encode()
        self._answer_head = (
            f"POST {base}/%s/tool-results HTTP/1.1\r\n{common}Content-Type: application/json\r\n"
            "Content-Length: %d\r\n\r\n%s"
        ).encode()
        self._run = b""
        self._seen = bytearray()
        self._looked = 0
        self._begun = 0.0
        self._first = 0.0
        self._waits = 0
        self._tally: _Tally | None = None
        self._connection = Connection(self)
        self._answers: Connection | None = Connection(_Answers(self)) if '"local"' in job.body else None

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in (self._connection, self._answers):
            if connection is not None:
                await loop.create_connection(lambda it=connection: it, "127.0.0.1", self._job.port)

    def close(self) -> None:
        self._tally = None
        for connection in (self._connection, self._answers):
            if connection is not None:
                connection.close()

    def join(self, tally: _Tally) -> None:
        self._tally = tally
        tally.running += 1
        self._begin()

    def _begin(self) -> None:
        tally = self._tally
        assert tally is not None
        if not tally.claim():
            self._tally = None
            tally.leave()
            return
        self._seen.clear()
        self._looked, self._first = 0, 0.0
        self._waits = 1
        self._begun = time.perf_counter()
        self._connection.send(self._replay if self._job.mode == "get" else self._post)

    def answered(self, status: int, body: bytes) -> None:
        at = body.find(_RUN_ID)
        if status != 202 or at < 0:
            self._finish(f"{status} {body[:200]!r}")
        elif self._job.mode == "post":
            self._finish()
        else:
            at += len(_RUN_ID)
            self._run = body[at : body.index(b'"', at)]
            self._connection.send(self._get % self._run)

    def streamed(self, data: bytes) -> None:
        if not self._first:
            self._first = time.perf_counter()
        self._seen += data
        if self._answers is not None:
            self._look_for_calls()

    def stream_ended(self) -> None:
        if self._seen.rfind(b"event: result\n") < 0:
            self._finish(f"no result: {bytes(self._seen[-300:])!r}")
        else:
            self._part_done()

    def lost(self) -> None:
        if self._tally is not None:
            self._finish("the connection was lost", again=False)

    def call_answered(self, status: int, body: bytes) -> None:
        if status != 200:
            self._finish(f"{status} {body[:200]!r}")
        else:
            self._part_done()

    def _look_for_calls(self) -> None:
        while (at := self._seen.find(b"event: local_tool_call\n", self._looked)) >= 0:
            start = self._seen.find(_CALL_ID, at) + len(_CALL_ID)
            end = self._seen.find(b'"', start)
            if start < len(_CALL_ID) or end < 0 or self._seen.find(b"\n\n", end) < 0:
                return
            self._looked = end
            body = b'{"toolUseId":"%s","result":"5"}' % self._seen[start:end]
            self._waits += 1
            assert self._answers is not None
            self._answers.send(self._answer_head % (self._run, len(body), body))

    def _part_done(self) -> None:
        self._waits -= 1
        if not self._waits:
            self._finish()

    def _finish(self, problem: str = "", *, again: bool = True) -> None:
        tally = self._tally
        if tally is None:
            return
        now = time.perf_counter()
        if problem:
            tally.failed += 1
            tally.problem = tally.problem or problem
        else:
            tally.took.append(now - self._begun)
            if self._first:
                tally.first.append(self._first - self._begun)
            tally.bytes += len(self._seen)
        if not again or tally.failed > 100:
            self._tally = None
            tally.leave()
        elif self._job.pause_s:
            asyncio.get_running_loop().call_later(self._job.pause_s, self._begin)
        else:
            self._begin()


class _Answers:
    """The second connection of a client, for the results of its tools: the first one is busy with the stream."""

    def __init__(self, client: _Client) -> None:
        self._client = client

    def answered(self, status: int, body: bytes) -> None:
        self._client.call_answered(status, body)

    def streamed(self, data: bytes) -> None: ...

    def stream_ended(self) -> None: ...

    def lost(self) -> None:
        self._client.lost()


async def _work(job: Job) -> list[Round]:
    clients = [_Client(job) for _ in range(job.clients)]
    for client in clients:
        await client.connect()
    if job.warm_up:
        await _round(job, clients, limit=job.warm_up, seconds=60)
    rounds = [await _round(job, clients, limit=job.limit, seconds=job.seconds) for _ in range(job.rounds)]
    for client in clients:
        client.close()
    return rounds


async def _round(job: Job, clients: Sequence[_Client], *, limit: int, seconds: float) -> Round:
    tally = _Tally(job, limit=limit, seconds=seconds)
    cpu_before = cpu_s(job.pid) if job.pid else 0.0
    begun = time.perf_counter()
    for client in clients:
        client.join(tally)
    await tally.all_done
    took = time.perf_counter() - begun
    return Round(
        done=len(tally.took),
        failed=tally.failed,
        seconds=took,
        cpu_s=(cpu_s(job.pid) - cpu_before) if job.pid else 0.0,
        bytes=tally.bytes,
        took_p50_ms=percentile(tally.took, 50) * 1000,
        took_p99_ms=percentile(tally.took, 99) * 1000,
        first_p50_ms=percentile(tally.first, 50) * 1000,
        first_p99_ms=percentile(tally.first, 99) * 1000,
        problem=tally.problem,
    )


def percentile(values: Sequence[float], percent: int) -> float:
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(_work(job))))


if __name__ == "__main__":
    main()

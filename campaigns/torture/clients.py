"""Realistic clients: they repeat requests, answer concurrently, lose connections, read slowly, and cancel."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector

from campaigns.torture.ledger import Ledger, View
from campaigns.torture.model import MODEL
from campaigns.torture.orders import Order
from campaigns.torture.tools import TOOL_REFS

TERMINAL = frozenset({"result", "error", "cancelled"})
_AGAIN_S = 0.1
_LOST = (ClientError, OSError, TimeoutError)
_SPEC: dict[str, Any] = {"modelId": MODEL, "tools": TOOL_REFS}


class Clients:
    def __init__(self, ledger: Ledger, *, address: str, workspace: str, key: str) -> None:
        self._ledger = ledger
        self._address = address
        self._workspace = workspace
        self._headers = {"authorization": f"Bearer {key}"}
        self._session = ClientSession(
            headers=self._headers, connector=TCPConnector(limit=0), timeout=ClientTimeout(total=20)
        )
        self._recent = ""
        self._stuck: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._stuck:
            task.cancel()
        await asyncio.gather(*self._stuck, return_exceptions=True)
        await self._session.close()

    async def request(
        self, method: str, path: str, body: Any = None, *, idempotency_key: str = "", accept: str = ""
    ) -> tuple[int, dict[str, Any]]:
        """Sends a request until it gets a response other than that the server is busy.

        A stream of events counts as the response that the server would have sent without one.
        """
        given = {"idempotency-key": idempotency_key, "accept": accept}
        headers = {name: value for name, value in given.items() if value}
        while True:
            try:
                async with self._session.request(method, self._url(path), json=body, headers=headers) as response:
                    if response.status == 200 and accept:
                        response.close()
                        return 202, {"runId": response.headers["x-run-id"]}
                    if response.status != 503:
                        return response.status, await response.json()
            except _LOST:
                pass
            await asyncio.sleep(_AGAIN_S)

    def _url(self, path: str) -> str:
        return f"{self._address}/api/v1/workspaces/{self._workspace}{path}"

    async def run(self, order: Order, *, path: str = "/agent-runs") -> None:
        """Places an order and follows it to its end."""
        await self.follow(order, await self.create(order, path=path))

    async def create(self, order: Order, *, path: str = "/agent-runs") -> str:
        body = {"prompt": order.prompt} | (_SPEC if path == "/agent-runs" else {})
        times = 2 if order.create_twice else 1
        # Some request the events at once, and disconnect when they know the run.
        accept = "text/event-stream" if order.number % 3 == 0 else ""
        replies = await asyncio.gather(
            *[self.request("POST", path, body, idempotency_key=order.prompt, accept=accept) for _ in range(times)]
        )
        for status, reply in replies:
            if status != 202:
                self._ledger.fault(f"{order.prompt}: a create was answered with {status}: {reply}")
                raise RuntimeError("a run could not be created")
            self._ledger.created.setdefault(order.number, set()).add(reply["runId"])
        self._recent = replies[0][1]["runId"]
        return self._recent

    async def session(self, orders: list[Order]) -> None:
        """Sends all orders to one session, each before the previous one has ended."""
        status, reply = await self.request("POST", "/agent-sessions", _SPEC)
        if status != 201:
            self._ledger.fault(f"a session could not be created: {status} {reply}")
            return
        identity = reply["sessionId"]
        self._ledger.sessions[identity] = [order.number for order in orders]
        async with asyncio.TaskGroup() as tasks:
            for order in orders:
                run = await self.create(order, path=f"/agent-sessions/{identity}/messages")
                tasks.create_task(self.follow(order, run))

    async def follow(self, order: Order, run: str) -> None:
        """Follows a run with several readers at once, the first of which answers calls and cancels."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(order.followers):
                view = View(run)
                self._ledger.views.append(view)
                tasks.create_task(self._follow_one(order, view, first=number == 0))

    async def _follow_one(self, order: Order, view: View, *, first: bool) -> None:
        answering: set[asyncio.Task[None]] = set()
        count = 0
        while not view.ended:
            got = 0
            try:
                async for seq, event, frame in self._frames(view, slow=order.slow and not first):
                    got += 1
                    count += 1
                    self._note(view, seq, event, frame)
                    if first and event == "local_tool_call":
                        answering |= self._answer(order, view.run, _payload(frame)["toolUseId"])
                    if first and count == order.cancel_after:
                        answering.add(asyncio.create_task(self._cancel(view.run)))
                    if got == order.patience:
                        break
            except _LOST:
                pass
            if not view.ended and got < order.patience:
                await asyncio.sleep(_AGAIN_S)
        await asyncio.gather(*answering)

    def _note(self, view: View, seq: int, event: str, frame: bytes) -> None:
        if seq <= view.last:
            self._ledger.fault(f"run {view.run}: event {seq} came after {view.last}")
        if view.ended:
            self._ledger.fault(f"run {view.run}: event {seq} came after the end")
        view.frames[seq] = frame
        view.last = seq
        view.ended = event in TERMINAL

    async def _frames(self, view: View, *, slow: bool) -> AsyncIterator[tuple[int, str, bytes]]:
        """The frames of one connection; an incomplete frame is dropped."""
        url = self._url(f"/agent-runs/{view.run}/stream")
        headers = {"last-event-id": str(view.last)}
        timeout = ClientTimeout(total=None, sock_read=60, sock_connect=10)
        async with self._session.get(
            url, headers=headers, timeout=timeout, read_bufsize=1024 if slow else 65536
        ) as response:
            if response.status != 200:
                return
            rest = b""
            async for piece in response.content.iter_any():
                *whole, rest = (rest + piece).split(b"\n\n")
                for frame in whole:
                    if not frame.startswith(b":"):
                        identity, event, _ = frame.split(b"\n", 2)
                        yield int(identity[4:]), event[7:].decode(), frame + b"\n\n"
                if slow:
                    await asyncio.sleep(0.05)
            if rest:
                self._ledger.fault(f"run {view.run}: a stream was ended inside a frame: {rest[:80]!r}")

    def _answer(self, order: Order, run: str, call: str) -> set[asyncio.Task[None]]:
        return {asyncio.create_task(self._post_result(run, call, n)) for n in range(order.answerers)}

    async def _post_result(self, run: str, call: str, number: int) -> None:
        text = f"{call} by client {number}"
        body = {"toolUseId": call, "result": text}
        status, reply = await self.request("POST", f"/agent-runs/{run}/tool-results", body)
        if status == 200 and not reply.get("ignored"):
            self._ledger.answered.setdefault((run, call), set()).add(text)
        elif status not in (200, 404, 409):
            self._ledger.fault(f"run {run}: a result was answered with {status}: {reply}")

    async def _cancel(self, run: str) -> None:
        status, reply = await self.request("POST", f"/agent-runs/{run}/cancel")
        if status != 200:
            self._ledger.fault(f"run {run}: a cancel was answered with {status}: {reply}")
            return
        self._ledger.cancelled[run] = reply["status"]

    async def get_stuck(self, count: int) -> None:
        """Opens streams, reads nothing, and leaves them open for some seconds."""
        for _ in range(count if self._recent else 0):
            task = asyncio.create_task(self._be_stuck(self._recent))
            self._stuck.add(task)
            task.add_done_callback(self._stuck.discard)

    async def _be_stuck(self, run: str) -> None:
        parts = urlsplit(self._url(f"/agent-runs/{run}/stream"))
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        sock.setblocking(False)
        with suppress(OSError):
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, (parts.hostname, parts.port))
            headers = "\r\n".join(f"{name}: {value}" for name, value in self._headers.items())
            head = f"GET {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\n{headers}\r\n\r\n"
            await loop.sock_sendall(sock, head.encode())
            await asyncio.sleep(5)
        sock.close()


def _payload(frame: bytes) -> dict[str, Any]:
    return json.loads(frame.split(b"\n", 2)[2].removeprefix(b"data: "))

"""`a2a(…)`: an A2A agent as a tool of an agent."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Literal
from weakref import WeakKeyDictionary

from weftline.kernel.entries import Effect
from weftline.net.address import parse
from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.text.redaction import redact_url
from weftline.tools.a2a import CALL_S, A2AForms, A2ATool, Cancellations
from weftline.tools.base import Tool
from weftline.tools.remote import name_of_url

_MAX_NAME = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def a2a(
    url: str,
    *,
    name: str | None = None,
    description: str | None = None,
    headers: Mapping[str, str] | None = None,
    context_id: str | None = None,
    timeout_s: float = CALL_S,
    effect: Literal["read", "idempotent", "once"] | None = None,
) -> A2APeer:
    """An A2A agent that tasks can be delegated to, as one tool. It is not contacted before the first call.

    Args:
        url: The agent's endpoint, or the URL of its card.
        name: The tool's name; by default derived from the host.
        description: What the model is told the agent is for.
        headers: Sent with every request to the origin of `url`.
        context_id: Sent with every message, to continue one conversation.
        timeout_s: For one task.
        effect: What sending a message twice would mean; `once` by default.
    """
    parse(url)
    if effect not in (None, "read", "idempotent", "once"):
        raise ValueError(f"effect {effect!r} is not one of read, idempotent, once: a peer cannot be asked afterwards")
    name = name_of_url(url)[:_MAX_NAME] if name is None else name
    if not _NAME.fullmatch(name):
        raise ValueError(f"a tool cannot be named {name!r}: a letter, then letters, digits and underscores")
    return A2APeer(
        name,
        url,
        description=description,
        headers=dict(headers or {}),
        context_id=context_id,
        timeout_s=timeout_s,
        effect=effect or "once",
    )


class _Dialled:
    def __init__(self) -> None:
        # The program itself chose the address, so private ones are allowed.
        self.dialer = Dialer(Egress("private"))
        self.cancellations = Cancellations()
        self.users = 0

    async def aclose(self) -> None:
        await self.cancellations.aclose()
        await self.dialer.aclose()


class A2APeer:
    """The toolset of an A2A agent, made by `a2a(…)`; a `weftline.tools.base.Toolset`."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        description: str | None,
        headers: Mapping[str, str],
        context_id: str | None,
        timeout_s: float,
        effect: Literal["read", "idempotent", "once"] = "once",
    ) -> None:
        self.name = name
        self._url = url
        self._description = description
        self._headers = headers
        self._context_id = context_id
        self._timeout_s = timeout_s
        self._effect: Effect = effect
        self._forms = A2AForms()
        self._dialled: WeakKeyDictionary[asyncio.AbstractEventLoop, _Dialled] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<a2a {self.name!r} {redact_url(self._url)}>"

    async def open(self) -> Sequence[Tool]:
        dialled = self._dialled.setdefault(asyncio.get_running_loop(), _Dialled())
        dialled.users += 1
        tool = A2ATool(
            self.name,
            url=self._url,
            dialer=dialled.dialer,
            forms=self._forms,
            headers=self._headers,
            description=self._description,
            context_id=self._context_id,
            cancellations=dialled.cancellations,
        )
        tool.timeout_s = self._timeout_s
        tool.effect = self._effect
        return [tool]

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        dialled = self._dialled.get(loop)
        if dialled is None:
            return
        dialled.users -= 1
        if dialled.users <= 0:
            self._dialled.pop(loop, None)
            await dialled.aclose()

"""The tool `fetch`, which reads web pages.

agent = Agent("openai:gpt-5", tools=[fetch()])
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from weftline import prompts
from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.net.errors import RequestFailed
from weftline.net.response import HttpResponse
from weftline.text.characters import decoded
from weftline.tools.base import Tool, ToolContext, ToolFailed
from weftline.tools.decorator import tool
from weftline.tools.function import FunctionTool
from weftline.work.processes import GaveUp, shared_workers

logger = logging.getLogger(__name__)

MAX_BYTES = 4 * 1024 * 1024
MAX_CHARS = 50_000
TIMEOUT_S = 20.0
REDIRECTS = 5
_JOB = "weftline.tools.builtin.page:page_job"
_REMEDY = "The program can allow it with fetch(hosts=[…]) or fetch(private=True)."
_HTML = ("text/html", "application/xhtml+xml")
_TEXTUAL = ("application/json", "application/xml", "application/javascript", "application/yaml", "application/toml")
_HEADERS = {"accept": "text/html,application/xhtml+xml,text/plain,application/json;q=0.9,*/*;q=0.5"}


def fetch_tool(dialer: Dialer) -> FunctionTool[..., Any]:
    """Returns the tool `fetch` for addresses that `dialer` may reach."""

    @tool(effect="read", timeout_s=TIMEOUT_S * 2)
    async def fetch(context: ToolContext, url: str, start: int = 0) -> str:
        """Reads a page of the web and returns it as text.

        Args:
            url: The address, beginning with http:// or https://.
            start: The character to start at, to continue a long page.
        """
        if not url.lower().startswith(("http://", "https://")):
            raise ToolFailed(prompts.builtin.FETCH_HTTP_ONLY)
        if start < 0:
            raise ToolFailed(prompts.builtin.FETCH_START)
        own = dialer.of(context.workspace)
        try:
            async with own.request("GET", url, headers=_HEADERS, timeout_s=TIMEOUT_S, redirects=REDIRECTS) as reply:
                text = await _text(reply)
        except RequestFailed as error:
            raise ToolFailed(error.message) from None
        part = text[start : start + MAX_CHARS]
        left = len(text) - start - len(part)
        return prompts.builtin.fetch_more(part, left, start=start + len(part)) if left > 0 else part

    return fetch


class Fetch:
    """The toolset that consists of the tool `fetch`. It has connections while it is open."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._open: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Dialer]] = WeakKeyDictionary()

    async def open(self) -> Sequence[Tool]:
        dialer = Dialer(self._egress)
        self._open.setdefault(asyncio.get_running_loop(), []).append(dialer)
        return (fetch_tool(dialer),)

    async def close(self) -> None:
        dialers = self._open.get(asyncio.get_running_loop())
        if dialers:
            await dialers.pop(0).aclose()


def fetch(*, private: bool = False, hosts: Sequence[str] = ()) -> Fetch:
    """The tool `fetch`, with which a model reads pages of the public web as text.

    Args:
        private: Whether it may also read this machine and private networks (never cloud metadata addresses).
        hosts: Names of hosts that it may read, whatever their addresses.
    """
    if isinstance(hosts, str):
        raise TypeError(f"hosts is a list of names, such as hosts=[{hosts!r}]")
    named = frozenset([one.lower().rstrip(".") for one in hosts])
    return Fetch(Egress("private" if private else "public", named, remedy=_REMEDY))


async def _page(data: bytes, reply: HttpResponse) -> str:
    try:
        text = await shared_workers().run(_JOB, data, (reply.charset or "").encode(), reply.url.encode())
    except GaveUp as error:
        logger.warning("the page %s could not be read: %s", reply.url, error)
        raise ToolFailed(prompts.builtin.FETCH_TOO_COMPLICATED) from None
    return text.decode()


async def _text(reply: HttpResponse) -> str:
    if reply.status >= 400 or reply.status < 200:
        raise ToolFailed(prompts.remote.server_refused(reply.status, reply.reason))
    if 300 <= reply.status < 400:
        raise ToolFailed(prompts.builtin.FETCH_REDIRECTS)
    kind = reply.media_type
    textual = not kind or kind.startswith("text/") or kind in (*_HTML, *_TEXTUAL) or kind.endswith(("+json", "+xml"))
    if not textual:
        raise ToolFailed(prompts.builtin.fetch_not_text(kind))
    data, whole = await reply.read_up_to(MAX_BYTES)
    if kind in _HTML or (not kind and data.lstrip()[:1] == b"<"):
        text = await _page(data, reply)
    else:
        text = decoded(data, reply.charset)
    return text if whole else prompts.remote.cut_after_bytes(text, MAX_BYTES)

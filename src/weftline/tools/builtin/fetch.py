"""Reading a page of the web."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from weftline import prompts
from weftline.bounded.pool import GaveUp, shared_workers
from weftline.errors import WeftlineError
from weftline.net.charset import decoded
from weftline.net.dial import Dialer
from weftline.net.egress import egress_from
from weftline.net.errors import RequestFailed
from weftline.net.response import HttpResponse
from weftline.tools.base import ToolContext, ToolFailed
from weftline.tools.function import FunctionTool, tool

logger = logging.getLogger(__name__)

MAX_BYTES = 4 * 1024 * 1024
MAX_CHARS = 50_000
TIMEOUT_S = 20.0
REDIRECTS = 5
_JOB = "weftline.tools.builtin.page:page_job"
_HTML = ("text/html", "application/xhtml+xml")
_TEXTUAL = ("application/json", "application/xml", "application/javascript", "application/yaml", "application/toml")
_HEADERS = {"accept": "text/html,application/xhtml+xml,text/plain,application/json;q=0.9,*/*;q=0.5"}


def fetch(*, allow: Sequence[str] = (), private: bool = False) -> FunctionTool[..., Any, object]:
    """`fetch`, which reads pages of the web: `Agent(…, tools=[fetch()])`.

    The model makes up its addresses, so it reaches public ones alone unless more is allowed.

    Args:
        allow: Hosts, addresses and networks that it may reach in addition, such as `["intranet.example"]`.
        private: Whether it may reach loopback and private networks.
    """
    if isinstance(allow, str):
        raise TypeError(f"allow must be a list of hosts, addresses and networks, not {allow!r}")
    try:
        egress = egress_from({"allow_egress": list(allow), "allow_private_egress": private})
    except WeftlineError as error:
        raise ValueError(error.message.replace("server.allow_egress", "allow")) from None
    return fetch_tool(Dialer(replace(egress, remedy=prompts.FETCH_ALLOWED)))


def fetch_tool(dialer: Dialer) -> FunctionTool[..., Any, object]:
    """The tool `fetch`, which reaches what `dialer` may reach."""

    @tool(name="fetch", effect="read", concurrent=True, timeout_s=TIMEOUT_S * 2)
    async def read_page(context: ToolContext, url: str, start: int = 0) -> str:
        """Reads a page of the web and returns it as text.

        Args:
            url: The address, beginning with http:// or https://.
            start: The character to begin at, to read on in a long page.
        """
        if not url.lower().startswith(("http://", "https://")):
            raise ToolFailed(prompts.FETCH_HTTP_ONLY)
        if start < 0:
            raise ToolFailed(prompts.FETCH_START)
        own = dialer.of(context.workspace)
        try:
            async with own.request("GET", url, headers=_HEADERS, timeout_s=TIMEOUT_S, redirects=REDIRECTS) as reply:
                text = await _text(reply)
        except RequestFailed as error:
            raise ToolFailed(error.message) from None
        part = text[start : start + MAX_CHARS]
        left = len(text) - start - len(part)
        return prompts.fetch_more(part, left, start=start + len(part)) if left > 0 else part

    return read_page


async def _page(data: bytes, reply: HttpResponse) -> str:
    try:
        text = await shared_workers().run(_JOB, data, (reply.charset or "").encode(), reply.url.encode())
    except GaveUp as error:
        logger.warning("the page %s could not be read: %s", reply.url, error)
        raise ToolFailed(prompts.FETCH_TOO_COMPLICATED) from None
    return text.decode()


async def _text(reply: HttpResponse) -> str:
    if reply.status >= 400 or reply.status < 200:
        raise ToolFailed(prompts.fetch_refused(reply.status, reply.reason))
    if 300 <= reply.status < 400:
        raise ToolFailed(prompts.FETCH_REDIRECTS)
    kind = reply.media_type
    textual = not kind or kind.startswith("text/") or kind in (*_HTML, *_TEXTUAL) or kind.endswith(("+json", "+xml"))
    if not textual:
        raise ToolFailed(prompts.fetch_not_text(kind))
    data, whole = await reply.read_up_to(MAX_BYTES)
    if kind in _HTML or (not kind and data.lstrip()[:1] == b"<"):
        text = await _page(data, reply)
    else:
        text = decoded(data, reply.charset)
    return text if whole else prompts.cut_after_bytes(text, MAX_BYTES)

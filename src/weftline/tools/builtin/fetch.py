"""Reading a page of the web."""

from __future__ import annotations

from typing import Any

from weftline.net.dial import Dialer
from weftline.net.errors import RequestFailed
from weftline.net.response import HttpResponse
from weftline.tools.base import ToolFailed
from weftline.tools.builtin.page import page_text
from weftline.tools.function import FunctionTool, tool

MAX_BYTES = 4 * 1024 * 1024
MAX_CHARS = 50_000
TIMEOUT_S = 20.0
REDIRECTS = 5
_HTML = ("text/html", "application/xhtml+xml")
_TEXTUAL = ("application/json", "application/xml", "application/javascript", "application/yaml", "application/toml")
_HEADERS = {"accept": "text/html,application/xhtml+xml,text/plain,application/json;q=0.9,*/*;q=0.5"}


def fetch_tool(dialer: Dialer) -> FunctionTool[..., Any]:
    """The tool `fetch`, which reaches what `dialer` may reach."""

    @tool(effect="read", concurrent=True, timeout_s=TIMEOUT_S * 2)
    async def fetch(url: str, start: int = 0) -> str:
        """Reads a page of the web and returns it as text.

        Args:
            url: The address, beginning with http:// or https://.
            start: The character to begin at, to read on in a long page.
        """
        if not url.lower().startswith(("http://", "https://")):
            raise ToolFailed("Only http and https addresses can be fetched.")
        if start < 0:
            raise ToolFailed("start must not be negative.")
        try:
            async with dialer.request("GET", url, headers=_HEADERS, timeout_s=TIMEOUT_S, redirects=REDIRECTS) as reply:
                text = await _text(reply)
        except RequestFailed as error:
            raise ToolFailed(error.message) from None
        shown = text[start : start + MAX_CHARS]
        left = len(text) - start - len(shown)
        return f"{shown}\n[{left} more characters; read on with start={start + len(shown)}]" if left > 0 else shown

    return fetch


async def _text(reply: HttpResponse) -> str:
    if reply.status >= 400 or reply.status < 200:
        raise ToolFailed(f"The server answered HTTP {reply.status} {reply.reason}".rstrip() + ".")
    if 300 <= reply.status < 400:
        raise ToolFailed("The page redirects too often.")
    kind = reply.media_type
    textual = not kind or kind.startswith("text/") or kind in (*_HTML, *_TEXTUAL) or kind.endswith(("+json", "+xml"))
    if not textual:
        raise ToolFailed(f"The page is {kind}, which cannot be shown as text.")
    data, whole = await reply.read_up_to(MAX_BYTES)
    try:
        text = data.decode(reply.charset or "utf-8", "replace")
    except LookupError:
        text = data.decode("utf-8", "replace")
    if kind in _HTML or (not kind and text.lstrip()[:1] == "<"):
        text = page_text(text, url=reply.url)
    return text if whole else f"{text}\n[cut after {MAX_BYTES} bytes]"

"""A person at a browser, who signs in and says yes: for OAuth flows of real clients against a real server."""

from __future__ import annotations

import asyncio
import html
import re
from urllib.parse import urljoin

import aiohttp

from ..kit import TIMEOUT_S

PASSWORD = "a long enough password"


class Person:
    """Follows an authorization URL to the address that the browser is sent back to."""

    def __init__(self, email: str) -> None:
        self.email = email
        self.redirect_uri = "http://127.0.0.1:33418/callback"
        self.asked: list[str] = []
        self.pages: list[str] = []

    async def ask(self, url: str) -> None:
        self.asked.append(url)

    async def answer(self) -> str:
        """The address that the browser came back to after the last question."""
        jar = aiohttp.CookieJar(unsafe=True)
        async with asyncio.timeout(TIMEOUT_S), aiohttp.ClientSession(cookie_jar=jar) as browser:
            page, url = await self._get(browser, self.asked[-1])
            form = {"token": _token(page), "email": self.email, "password": PASSWORD}
            page, url = await self._get(browser, url, form, "/api/oauth/sign-in")
            self.pages.append(page)
            form = {"token": _token(page), "decision": "approve"}
            target = urljoin(url, "/api/oauth/authorize/decide")
            async with browser.post(target, data=form, allow_redirects=False) as reply:
                assert reply.status == 302, await reply.text()
                return reply.headers["Location"]

    async def _get(
        self, browser: aiohttp.ClientSession, url: str, form: dict[str, str] | None = None, path: str = ""
    ) -> tuple[str, str]:
        method, target = ("GET", url) if form is None else ("POST", urljoin(url, path))
        async with browser.request(method, target, data=form) as reply:
            text = await reply.text()
            assert reply.status == 200, text
            return text, str(reply.url)


def _token(page: str) -> str:
    found = re.search(r'name="token" value="([^"]+)"', page)
    assert found is not None, page
    return html.unescape(found[1])

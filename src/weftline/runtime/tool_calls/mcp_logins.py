"""The stored logins at MCP servers, for the connections that use them."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from msgspec import json

from weftline.net.dial import Dialer
from weftline.runtime.clock import Clock, SystemClock
from weftline.store.database import Database
from weftline.store.records import mcp_logins
from weftline.store.sealing import Vault
from weftline.text.redaction import Redactor
from weftline.tools.mcp.address import McpAddress
from weftline.tools.mcp.login import Login, LoginLost, digest_of, place_of, renewed

_Key: TypeAlias = tuple[int, str]
"""Workspace, and digest of the server's address."""

decode_login = json.Decoder(Login).decode


class StoredLogins:
    """Finds and renews logins. A token is renewed once, however many calls wait for it, and even if all of them are
    cancelled: the server may consider the old refresh token used from the moment that it was sent.
    """

    def __init__(self, records: Database, vault: Vault, dialer: Dialer, *, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._records = records
        self._vault = vault
        self._dialer = dialer
        self._renewals: dict[_Key, asyncio.Task[Login]] = {}

    async def find(self, address: McpAddress) -> StoredLogin | None:
        """The login that the workspace has at this server. Raises `StoreError` if it cannot be read."""
        key = address.workspace, digest_of(address.url)
        login = await self._read(key)
        return None if login is None else StoredLogin(self, key, login)

    async def renew(self, key: _Key, stale: Login) -> Login:
        """A login that is fresher than `stale`. Raises `LoginLost` or `RequestFailed`."""
        task = self._renewals.get(key)
        if task is None:
            task = self._renewals[key] = asyncio.create_task(self._renew_stored(key, stale), name="renewing a login")
            task.add_done_callback(lambda done: self._forget_renewal(key, done))
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        if self._renewals:
            await asyncio.wait(self._renewals.values())

    def _forget_renewal(self, key: _Key, done: asyncio.Task[Login]) -> None:
        del self._renewals[key]
        if not done.cancelled():
            done.exception()  # retrieved here, because it may be that nobody waits for it

    async def _renew_stored(self, key: _Key, stale: Login) -> Login:
        workspace, digest = key
        row = await self._records.read(mcp_logins.find(digest, workspace=workspace))
        if row is None:
            raise LoginLost("The login was deleted.")
        place = place_of(digest, workspace=workspace)
        stored = decode_login(self._vault.open(row.secrets, place=place))
        now = self.clock.now_us()
        if stored.access_token != stale.access_token and stored.fresh(now=now):
            return stored
        login = await renewed(stored, self._dialer.of(workspace), now=now)
        secrets = self._vault.seal(json.encode(login), place=place)
        await self._records.write(mcp_logins.renew(row.key, old=row.secrets, secrets=secrets, now=now))
        return login

    async def _read(self, key: _Key) -> Login | None:
        workspace, digest = key
        row = await self._records.read(mcp_logins.find(digest, workspace=workspace))
        if row is None:
            return None
        return decode_login(self._vault.open(row.secrets, place=place_of(digest, workspace=workspace)))


class StoredLogin:
    """The credential of one connection."""

    def __init__(self, logins: StoredLogins, key: _Key, login: Login) -> None:
        self._logins = logins
        self._key = key
        self._login = login
        self._secrets: list[str] = [*login.secrets]
        self.redactor = Redactor(self._secrets)

    async def token(self) -> str:
        if not self._login.fresh(now=self._logins.clock.now_us()):
            await self._fetch_newer()
        return self._login.access_token

    async def replace_token(self, refused: str) -> str:
        if self._login.access_token == refused:
            await self._fetch_newer()
        return self._login.access_token

    async def _fetch_newer(self) -> None:
        self._login = await self._logins.renew(self._key, self._login)
        self._secrets += self._login.secrets
        self.redactor = Redactor(self._secrets)

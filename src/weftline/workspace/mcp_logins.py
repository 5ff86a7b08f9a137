"""A workspace's logins at MCP servers: created by a person with `weftline mcp login`, used by the workspace's runs."""

from __future__ import annotations

from msgspec import json

from weftline.errors import NotFound, invalid_field
from weftline.net.address import InvalidAddress
from weftline.store.database import Query
from weftline.store.records import mcp_logins
from weftline.store.records.mcp_logins import LoginRow
from weftline.text.redaction import redact_url
from weftline.tools.mcp.login import Login, digest_of, place_of
from weftline.workspace.context import Change, Workspaces
from weftline.workspace.workspaces import ensured, find


async def save(at: Workspaces, login: Login, *, slug: str) -> None:
    """Encrypts and stores a login, replacing an earlier one at the same server."""
    digest, now = _digest(login.url), at.clock.now_us()

    def query() -> Query[int]:
        workspace = yield from ensured(slug, now=now)
        secrets = at.vault.seal(json.encode(login), place=place_of(digest, workspace=workspace))
        yield from mcp_logins.save(digest, workspace=workspace, url=redact_url(login.url), secrets=secrets, now=now)
        return workspace

    await at.changed(Change("logins", await at.records.write(query())))


async def scope(at: Workspaces, *, url: str, slug: str) -> str | None:
    """Returns what a login was granted, if the workspace has one there and the server said."""
    workspace = await find(at, slug)
    row = await at.records.read(mcp_logins.find(_digest(url), workspace=workspace))
    if row is None:
        return None
    place = place_of(row.digest, workspace=workspace)
    return json.decode(at.vault.open(row.secrets, place=place), type=Login).scope


async def list_logins(at: Workspaces, *, slug: str) -> list[LoginRow]:
    return await at.records.read(mcp_logins.of_workspace(await find(at, slug)), heavy=True)


async def delete(at: Workspaces, *, url: str, slug: str) -> None:
    """Deletes a login. Raises `NotFound`."""
    workspace = await find(at, slug)
    if not await at.records.write(mcp_logins.delete(_digest(url), workspace=workspace)):
        raise NotFound(f"The workspace has no login at {redact_url(url)}.")
    await at.changed(Change("logins", workspace))


def _digest(url: str) -> str:
    try:
        return digest_of(url)
    except InvalidAddress as error:
        raise invalid_field("url", f"{error}") from None

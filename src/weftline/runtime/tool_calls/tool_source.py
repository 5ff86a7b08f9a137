"""All tools that a server offers: its own, the clients', those stored in workspaces, and those of other servers."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import json

from weftline import prompts
from weftline.errors import StoreError, invalid_field
from weftline.net.dial import Dialer
from weftline.plan import A2ALocalRef, A2ARef, LocalRef, McpLocalRef, McpRef, RunPlan, ServerRef, StoredRef, ToolRef
from weftline.runtime.clock import Clock, SystemClock
from weftline.runtime.tool_calls.toolbox import EMPTY, RunName, ServerTools, Toolbox
from weftline.sandbox.sandbox import Sandbox
from weftline.store.database import Database
from weftline.store.records import mcp_logins, tools
from weftline.store.records.tools import ToolRow
from weftline.store.sealing import Headers, Vault
from weftline.text.redaction import SEALED_URL, Redactor
from weftline.tools.a2a import A2AForms, A2ATool, Cancellations
from weftline.tools.base import Tool
from weftline.tools.http import HttpSpec, HttpTool, whole_tool
from weftline.tools.mcp.address import McpAddress
from weftline.tools.mcp.asking import Responders, ServerQuestion
from weftline.tools.mcp.login import Login, LoginLost, digest_of, place_of, renewed
from weftline.tools.mcp.pool import McpPool
from weftline.tools.mcp.tools import McpEntry, McpUnavailable, list_tools, offered, unavailable
from weftline.tools.remote import UnavailableTool
from weftline.tools.stored_code import CodeSpec, StoredCodeTool

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


logger = logging.getLogger(__name__)

_DIALLED: frozenset[type[ToolRef]] = frozenset({A2ARef, McpRef, StoredRef})
"""References that require asking another server or the store."""
_REMEMBERED_RUNS = 4096

decode_http = json.Decoder(HttpSpec).decode
decode_code = json.Decoder(CodeSpec).decode


class DialledTools(ServerTools):
    """The tools of a server with a store.

    Args:
        own: The server's own tools, by name.
        dialer: Carries their requests.
    """

    def __init__(
        self,
        own: Mapping[str, Tool],
        *,
        records: Database,
        vault: Vault,
        dialer: Dialer,
        pool: McpPool | None = None,
    ) -> None:
        super().__init__(own)
        self._records = records
        self._vault = vault
        self._dialer = dialer
        self._logins = StoredLogins(records, vault, dialer)
        self.pool = pool or McpPool(dialer, credentials=self._logins.find, asked=Responders("ask"))
        self._forms = A2AForms()
        self._cancellations = Cancellations()
        self._sandbox: Sandbox | None = None
        """Where stored code runs; created when a run first needs it."""
        self._catalogs: OrderedDict[tuple[int, str], tuple[McpEntry, ...]] = OrderedDict()
        """What runs were offered at their start, so that they keep their tools if a server goes down later."""

    async def aclose(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()
        await self.pool.aclose()
        await self._cancellations.aclose()
        await self._logins.aclose()
        await self._dialer.aclose()

    async def check(self, plan: RunPlan, *, workspace: int) -> None:
        """Rejects unknown stored and plugin tools, and stored ones that share a name with another tool of the plan."""
        taken: set[str] | None = None
        for index, ref in enumerate(plan.tools):
            if isinstance(ref, ServerRef):
                self.check_plugin(ref, index)
            elif isinstance(ref, StoredRef):
                if taken is None:
                    taken = {name for other in plan.tools for name in self._names(other)}
                row = await self._records.read(tools.by_id(ref.id, workspace=workspace))
                if row is None:
                    raise invalid_field(f"tools[{index}].id", f"this workspace does not have a tool {ref.id!r}.")
                if row.name in taken:
                    raise invalid_field(
                        f"tools[{index}].id",
                        f"the tool {ref.id!r} is named {row.name!r}, as is another tool of the run.",
                    )
                taken.add(row.name)

    async def check_thread(self, plan: RunPlan, *, workspace: int) -> None:
        pass

    async def open(self, plan: RunPlan, *, run: RunName, secrets: bytes | None = None) -> Toolbox:
        workspace = run.workspace
        if not plan.tools:
            return EMPTY
        if _DIALLED.isdisjoint([type(ref) for ref in plan.tools]):
            return await super().open(plan, run=run, secrets=secrets)
        headers = self._headers(plan, secrets, workspace=workspace)
        servers = [ref for ref in plan.tools if isinstance(ref, McpRef)]
        addresses = {ref.name: _address(workspace, ref, headers) for ref in servers}
        catalogs = dict(zip(addresses, await self._listed(run.key, addresses), strict=True))
        found: list[tuple[ToolRef, list[Tool]]] = []
        taken: set[str] = set()
        for ref in plan.tools:
            resolved = [] if isinstance(ref, McpRef) else await self._dial(ref, headers, workspace=workspace)
            taken.update([tool.spec.name for tool in resolved])
            found.append((ref, resolved))
        by_name: dict[str, Tool] = {}
        for ref, resolved in found:
            if isinstance(ref, McpRef):
                # After all others, whose names are fixed.
                resolved = self._offered(ref, catalogs[ref.name], addresses[ref.name], taken)
                taken.update([tool.spec.name for tool in resolved])
            by_name.update([(tool.spec.name, tool) for tool in resolved])
        return Toolbox(by_name)

    def _names(self, ref: ToolRef) -> list[str]:
        """The model-facing names of a reference that are known without a request."""
        match ref:
            case ServerRef():
                return [tool.spec.name for tool in self.resolve(ref)]
            case LocalRef() | A2ALocalRef() | A2ARef():
                return [ref.name]
            case McpLocalRef():
                return [entry.name for entry in ref.tools]
            case McpRef() | StoredRef():
                return []

    async def _dial(self, ref: ToolRef, headers: Headers | StoreError, *, workspace: int) -> list[Tool]:
        match ref:
            case StoredRef():
                row = await self._records.read(tools.by_id(ref.id, workspace=workspace))
                return [] if row is None else [self._stored(row)]
            case A2ARef():
                if isinstance(headers, StoreError):
                    return [UnavailableTool(ref.name, description=_a2a_text(ref), explanation=headers.message)]
                url, own = _sent(ref.card_url, headers.get(ref.name, {}))
                return [
                    A2ATool(
                        ref.name,
                        url=url,
                        dialer=self._dialer.of(workspace),
                        forms=self._forms,
                        headers=own,
                        workspace=workspace,
                        description=ref.description,
                        context_id=ref.context_id,
                        cancellations=self._cancellations,
                    )
                ]
            case _:
                return self.resolve(ref)

    def _stored(self, row: ToolRow) -> Tool:
        spec = decode_code(row.spec) if row.kind == "code" else decode_http(row.spec)
        try:
            secrets = self._vault.open_values(row.secrets, tool=row.id)
        except StoreError as error:
            logger.error("the secrets of tool %s cannot be read: %s", row.id, error.message)
            return UnavailableTool(spec.name, description=spec.description, explanation=error.message)
        if isinstance(spec, CodeSpec):
            if self._sandbox is None:
                self._sandbox = Sandbox()
            return StoredCodeTool(spec, secrets=secrets, sandbox=self._sandbox)
        whole, values = whole_tool(spec, secrets)
        return HttpTool(whole, secrets=values, dialer=self._dialer.of(row.workspace))

    def _headers(self, plan: RunPlan, secrets: bytes | None, *, workspace: int) -> Headers | StoreError:
        if not any(isinstance(ref, A2ARef | McpRef) for ref in plan.tools):
            return {}
        try:
            return self._vault.open_headers(secrets, workspace=workspace)
        except StoreError as error:
            logger.error("the secrets of its tools cannot be read: %s", error.message)
            return error

    async def _listed(
        self, run: int, addresses: Mapping[str, McpAddress | StoreError]
    ) -> Sequence[tuple[McpEntry, ...] | str]:
        """Returns what each server offers, or why it offers nothing; all servers are asked concurrently."""
        return await asyncio.gather(*(self._catalog(run, name, address) for name, address in addresses.items()))

    async def _catalog(self, run: int, name: str, address: McpAddress | StoreError) -> tuple[McpEntry, ...] | str:
        if isinstance(address, StoreError):
            return address.message
        cached = self._catalogs.get((run, name))
        if cached is not None:
            return cached
        try:
            entries = await list_tools(self.pool, address)
        except McpUnavailable as error:
            logger.info("the MCP server %s is unavailable: %s", name, error)
            return str(error)
        self._catalogs[run, name] = entries
        if len(self._catalogs) > _REMEMBERED_RUNS:
            self._catalogs.popitem(last=False)
        return entries

    def _offered(
        self, ref: McpRef, catalog: tuple[McpEntry, ...] | str, address: McpAddress | StoreError, taken: set[str]
    ) -> list[Tool]:
        if isinstance(catalog, str) or isinstance(address, StoreError):
            return [unavailable(ref.name, str(catalog))]
        found = offered(ref.name, catalog, pool=self.pool, address=address, tool_filter=ref.tool_filter, taken=taken)
        if not ref.asks_people:
            return [*found]
        question = ServerQuestion(ref.name, taken={*taken, *[one.name for one in found]})
        for one in found:
            one.ask_through(question=question.spec.name)
        return [*found, question]


def _address(workspace: int, ref: McpRef, headers: Headers | StoreError) -> McpAddress | StoreError:
    if isinstance(headers, StoreError):
        return headers
    url, own = _sent(ref.url, headers.get(ref.name, {}))
    return McpAddress(workspace, url, tuple(sorted(own.items())))


def _sent(url: str, secrets: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The complete address of a tool and its headers, from the plan and its secrets."""
    own = dict(secrets)
    return own.pop(SEALED_URL, url), own


def _a2a_text(ref: A2ARef) -> str:
    return ref.description or prompts.remote.delegate_over_a2a(ref.name)

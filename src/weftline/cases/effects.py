"""Effects of threads: code of the served folder that runs later, outside of any run."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated, Any, Protocol

from msgspec import Raw, Struct
from pydantic import Field

from weftline.api.principal import Principal
from weftline.cases.base import Host, Page, Repeatable, find_thread, require_accepting
from weftline.errors import NotFound
from weftline.store.records.pages import RowPage
from weftline.store.records.thread_effects import EffectFilter, EffectRow, EffectStatus
from weftline.store.records.threads import ThreadRow
from weftline.wire.models import Part
from weftline.wire.responses import Time, Warnings, iso, iso_or_none
from weftline.workspace import thread_effects as effects
from weftline.workspace.thread_effects import MAX_DELAY_MS


class Definitions(Protocol):
    """The folder that is served."""

    async def effect_args(self, row: ThreadRow, name: str, args: Mapping[str, Any]) -> bytes:
        """Returns the arguments of an effect as they are stored. Raises `NotFound`, `InvalidRequest`."""
        ...


class FolderHost(Host, Protocol):
    @property
    def folder(self) -> Definitions | None: ...


class EffectModel(Part):
    """The body that schedules an effect."""

    name: str = Field(min_length=1, max_length=256)
    args: dict[str, Any] = Field(default_factory=dict)
    delay_ms: int = Field(default=0, alias="delayMs", ge=0, le=MAX_DELAY_MS)


class EffectView(Struct, rename="camel"):
    id: str
    name: str
    args: Raw
    """A JSON object."""
    status: EffectStatus
    scheduled_at: Time
    """When it is to run."""
    created_at: Time
    settled_at: Time | None
    error: str
    """Why it has failed; empty otherwise."""


class CreatedEffect(EffectView, rename="camel", kw_only=True):
    warnings: Warnings


class EffectPage(Struct, rename="camel"):
    effects: list[EffectView]
    next_cursor: str | None


class Canceled(Struct):
    canceled: bool
    """Whether it was pending, and is cancelled now."""


async def create(on: FolderHost, by: Principal, thread_id: str, sent: Repeatable[EffectModel]) -> CreatedEffect:
    thread = await find_thread(on, by, thread_id)
    body = await sent.read()
    fields, warnings = body.fields, sent.warn(body.unknown)
    key = sent.key()
    require_accepting(on, by)
    if on.folder is None:
        raise NotFound("This server serves no folder, and so has no effects.")
    row = await effects.schedule(
        on.workspaces,
        thread,
        fields.name,
        await on.folder.effect_args(thread, fields.name, fields.args),
        delay_ms=fields.delay_ms,
        origin=blake2b(f"request\n{key}".encode(), digest_size=16).digest() if key else None,
        repeats=True,
    )
    shown = _shown(row)
    return CreatedEffect(*[getattr(shown, name) for name in EffectView.__struct_fields__], warnings=warnings)


async def index(
    on: Host,
    by: Principal,
    thread_id: str,
    page: Page,
    *,
    name: Annotated[str | None, "Only those of this effect."] = None,
    status: Annotated[EffectStatus | None, "Only these."] = None,
) -> EffectPage:
    """Newest first."""
    thread = await find_thread(on, by, thread_id)
    wanted = EffectFilter(thread=thread.key, name=name, status=status, before=page.after or None, limit=page.limit + 1)
    found = await effects.page(on.workspaces, wanted)
    listed = found[: page.limit]
    following = page.next_cursor(RowPage(listed, listed[-1].key if len(found) > page.limit else None))
    return EffectPage([_shown(row) for row in listed], following)


async def read(on: Host, by: Principal, thread_id: str, effect_id: str) -> EffectView:
    return _shown(await _find(on, await find_thread(on, by, thread_id), effect_id))


async def delete(on: Host, by: Principal, thread_id: str, effect_id: str) -> Canceled:
    """Cancels it if it is pending. One that has begun, or is over, stays as it is."""
    thread = await find_thread(on, by, thread_id)
    await _find(on, thread, effect_id)
    on.engine.require_writable()
    return Canceled(await effects.cancel(on.workspaces, thread, effect_id))


async def _find(on: Host, thread: ThreadRow, effect_id: str) -> EffectRow:
    row = await effects.find(on.workspaces, thread, effect_id)
    if row is None:
        raise NotFound("The thread has no such effect.")
    return row


def _shown(row: EffectRow) -> EffectView:
    return EffectView(
        row.id,
        row.name,
        Raw(row.args),
        row.status,
        iso(row.due_at),
        iso(row.created_at),
        iso_or_none(row.settled_at),
        row.error,
    )

"""Threads: found, listed, ended, and one for each A2A context."""

from __future__ import annotations

import asyncio
import threading

import pytest

from weftline.errors import NotFound
from weftline.store.records.threads import ThreadFilter
from weftline.workspace import threads
from weftline.workspace.context import Workspaces
from weftline.workspace.threads import CONTEXT_KEY, ThreadDraft

from .conftest import NOW_US, Caller, Clock


class NoRuns:
    """An engine without runs."""

    def require_writable(self) -> None: ...

    async def end_thread(self, thread: int, *, requested_by: str = "") -> None: ...


def draft(agent: str | None = None, **metadata: str) -> ThreadDraft:
    return ThreadDraft(name="t", agent=agent, spec=b"{}", metadata=metadata)


async def test_thread_is_found_by_whole_id_in_its_workspace(at: Workspaces, acme: int, globex: int) -> None:
    row = await threads.create(at, acme, draft())
    assert await threads.find(at, Caller(acme), row.key, salt=row.salt) == row
    for workspace, key, salt in ((globex, row.key, row.salt), (acme, row.key, "guess"), (acme, 99, row.salt)):
        with pytest.raises(NotFound):
            await threads.find(at, Caller(workspace), key, salt=salt)


@pytest.mark.parametrize(("size", "beside"), [(1000, False), (2_000_000, True)])
async def test_large_spec_is_read_off_the_loop_and_on_demand(
    at: Workspaces, acme: int, size: int, beside: bool
) -> None:
    def readers() -> int:
        return sum(thread.name.startswith("weftline-reader") for thread in threading.enumerate())

    large = ThreadDraft(name="t", agent=None, spec=b"{" + b" " * (size - 2) + b"}")
    made = await threads.create(at, acme, large)
    before = readers()
    row = await threads.find(at, Caller(acme), made.key, salt=made.salt)
    assert row == made and row.spec_bytes == size and readers() == before
    assert await threads.spec(at, row) == large.spec
    assert (readers() > before) is beside


async def test_a_thread_ends_once_and_its_secrets_with_it(at: Workspaces, acme: int, clock: Clock) -> None:
    secret = ThreadDraft(name="t", agent=None, spec=b"{}", headers={"mcp": {"X-Key": "1"}})
    row = await threads.create(at, acme, secret)
    sealed = await threads.sealed_headers(at, row)
    assert at.vault.open_headers(sealed, workspace=acme) == {"mcp": {"X-Key": "1"}}
    await threads.end(at, NoRuns(), row, requested_by="")
    clock.us += 1
    await threads.end(at, NoRuns(), row, requested_by="")
    ended = await threads.find(at, Caller(acme), row.key, salt=row.salt)
    assert ended.ended_at == NOW_US and await threads.sealed_headers(at, ended) is None


async def test_an_agents_context_has_one_open_thread(at: Workspaces, acme: int, globex: int) -> None:
    tagged = draft("agent_1", **{CONTEXT_KEY: "ctx"})
    found = await asyncio.gather(*(threads.of_context(at, acme, tagged) for _ in range(5)))
    assert len({row.key for row in found}) == 1
    others = [
        await threads.of_context(at, acme, draft("agent_2", **{CONTEXT_KEY: "ctx"})),
        await threads.of_context(at, acme, draft("agent_1", **{CONTEXT_KEY: "other"})),
        await threads.of_context(at, globex, tagged),
    ]
    await threads.end(at, NoRuns(), found[0], requested_by="")
    others.append(await threads.of_context(at, acme, tagged))
    assert len({row.key for row in (found[0], *others)}) == 5


async def test_a_page_has_what_matches_newest_first(at: Workspaces, acme: int, globex: int) -> None:
    made = [
        await threads.create(at, acme, draft("a", env="prod", team="x")),
        await threads.create(at, acme, draft("b", env="prod")),
        await threads.create(at, acme, draft("a", env="test")),
        await threads.create(at, globex, draft("a", env="prod")),
    ]
    await threads.end(at, NoRuns(), made[1], requested_by="")
    keys = [row.key for row in made]

    async def page(**wanted: object) -> list[int]:
        rows = await threads.page(at, ThreadFilter(**{"workspace": acme, **wanted}))  # pyright: ignore[reportArgumentType]
        return [keys.index(row.key) for row in rows]

    assert await page() == [2, 1, 0]
    assert await page(limit=2) == [2, 1] and await page(before=keys[1]) == [0]
    assert await page(ended=True) == [1] and await page(ended=False) == [2, 0]
    assert await page(agents=("a",)) == [2, 0] and await page(key=keys[1]) == [1] and await page(key=keys[3]) == []
    prod = (("env", "prod"),)
    assert await page(metadata=prod) == [1, 0] and await page(metadata=prod, before=keys[1]) == [0]
    assert await page(metadata=(*prod, ("team", "x"))) == [0] and await page(metadata=(*prod, ("team", "y"))) == []

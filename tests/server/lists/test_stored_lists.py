"""Lists of what a workspace has stored: cut by bytes, and read without what they do not show."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, cast

import pytest

from weftline.api.cursors import SealedCursors
from weftline.api.views import run_summary
from weftline.errors import InvalidRequest
from weftline.runtime.reads.calls import CallName, CancelReceipt
from weftline.runtime.reads.reading import StoredRuns
from weftline.store.records.pages import PAGE_BYTES, fitting
from weftline.store.rows import Item, RunRow

from ..kit import Api, check_error

NEARLY_A_MB = 1_000_000


async def every(api: Api, name: str, *, limit: int | None = None) -> list[list[Any]]:
    """The pages of a list."""
    pages: list[list[Any]] = []
    query = [] if limit is None else [f"limit={limit}"]
    cursor: str | None = ""
    while cursor is not None:
        page = (await api.get(f"{name}?{'&'.join([*query, *([f'cursor={cursor}'] if cursor else [])])}")).json
        pages.append(page[name.removeprefix("agent-")])
        cursor = page["nextCursor"]
    return pages


def test_page_has_what_fits_and_one_item_at_least() -> None:
    assert fitting([1, 1, 1], limit=2) == 2
    assert fitting([PAGE_BYTES * 2, 1], limit=10) == 1
    assert fitting([PAGE_BYTES - 1, 1, 1], limit=10) == 2
    assert fitting([], limit=10) == 0


async def test_large_agents_are_listed_a_few_at_a_time(api: Api) -> None:
    made = [
        (await api.post("agents", {"name": f"a{n}", "spec": {"systemPrompt": "x" * NEARLY_A_MB}})).json
        for n in range(6)
    ]
    pages = await every(api, "agents")
    assert [len(page) for page in pages] == [4, 2]
    assert [agent for page in pages for agent in page] == made
    cards = (await api.get(f"/api/a2a/{api.slug}/discovery")).json["agents"]
    assert [card["name"] for card in cards] == [agent["name"] for agent in made]


def test_a_cursor_does_not_say_how_many_rows_others_have() -> None:
    ours = SealedCursors("store")
    cursors = {key: ours.seal(key, workspace=1) for key in (0, 1, 2, 3, 2**63 - 1)}
    assert {ours.open(cursor, workspace=1): cursor for cursor in cursors.values()} == cursors
    data = [base64.urlsafe_b64decode(cursor + "==") for cursor in cursors.values()]
    assert len({one[:4] for one in data}) == len({one[8:12] for one in data}) == len(data)
    foreign = SealedCursors("another store").seal(1, workspace=1)
    for cursor in (foreign, ours.seal(1, workspace=2), cursors[1][:-1] + "x", cursors[1][:-1], "", "é" * 22, "MTox"):
        with pytest.raises(InvalidRequest):
            ours.open(cursor, workspace=1)


async def test_stored_things_are_listed_by_pages(api: Api) -> None:
    agents = [(await api.post("agents", {"name": f"a{n}", "spec": {}})).json["id"] for n in range(3)]
    tools = [
        (await api.post("tools", {"kind": "http", "name": f"t{n}", "url": "http://x.example"})).json["id"]
        for n in range(3)
    ]
    for name, made in (("agents", agents), ("tools", tools)):
        pages = await every(api, name, limit=2)
        assert [[one["id"] for one in page] for page in pages] == [made[:2], made[2:]]
        assert len(await every(api, name, limit=3)) == 1
    for name in ("agents", "tools", "providers"):
        for query in ("limit=0", "limit=201", "cursor=nope"):
            check_error(await api.get(f"{name}?{query}"), 400, "invalid_request")


async def test_an_agents_spec_has_a_limit(api: Api) -> None:
    agent = (await api.post("agents", {"name": "a", "spec": {}})).json
    large = {"name": "a", "spec": {"systemPrompt": "x" * 1024 * 1024}}
    for refused in (await api.post("agents", large), await api.call("PUT", f"agents/{agent['id']}", large)):
        error = check_error(refused, 400, "invalid_request")
        assert error["message"].startswith("spec: has more than 1,048,576 bytes of JSON")


async def test_runs_that_said_much_are_listed_few_at_time(api: Api) -> None:
    runs = [await api.start("inside", systemPrompt="x" * (PAGE_BYTES // 2)) for _ in range(3)]
    for run in runs:
        await api.events(run)
    pages = await every(api, "agent-runs", limit=3)
    assert [[run["id"] for run in page] for page in pages] == [[runs[2]], [runs[1]], [runs[0]]]


async def test_a_list_of_runs_does_not_read_their_specs() -> None:
    class Source:
        @property
        def logs(self) -> Source:
            return self

        async def entry(self, key: int, seq: int, *, max_bytes: int | None = None) -> Item | None:
            raise AssertionError(f"entry {seq} was read")

        async def newest_facts(self, key: int, *, kinds: Sequence[str], limit: int, max_bytes: int) -> list[Item]:
            raise AssertionError("its facts were read")

        async def session_id(self, thread: int | None) -> str | None:
            return None

        async def receipt(self, key: int) -> CancelReceipt:
            raise AssertionError("its calls were read")

        async def asked_doubts(self, row: RunRow) -> tuple[CallName, ...]:
            return ()

        async def parent(self, row: RunRow) -> str | None:
            return None

    row = RunRow(
        1, "s", 1, None, "n", None, "{}", "running", 1, 1, None, 5, 1, 1, 0, 1, 1, 0, False, b"", 1, 1, 0, 0, 0
    )
    assert (await run_summary(cast("StoredRuns", Source()), row)).status == "running"

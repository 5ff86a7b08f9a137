"""What a snapshot shows does not depend on the version of the fold that made the stored state."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runtime.kit import MoodyStore, engine_on, plan, until
from weftline.api.views import run_summary, run_view
from weftline.kernel.state import FOLD
from weftline.plan import ServerRef
from weftline.store.memory import MemoryDisk
from weftline.tools.decorator import tool
from weftline.wire.run_responses import CallName

SCRIPTS: dict[str, Any] = {"pay": {"turns": [{"tool_calls": [{"name": "pay", "args": {}}]}, {"text": "paid"}]}}


@pytest.mark.parametrize(("fold", "state"), [(FOLD, None), (FOLD - 1, None), (FOLD - 1, b"?"), (FOLD, b'"doubts"')])
async def test_call_in_doubt_is_shown_whatever_made_stored_state(fold: int, state: bytes | None) -> None:
    began = asyncio.Event()

    @tool
    async def pay() -> None:
        began.set()
        await asyncio.Event().wait()

    disk = MemoryDisk()
    it, _ = engine_on(MoodyStore(disk), SCRIPTS, tools={"pay": pay})
    async with it:
        space = await it.workspace("acme")
        key = await it.locate(await it.create(space, plan("pay", ServerRef("pay"))), workspace=space)
        await began.wait()
        await it.cancel(key)
        await until(lambda: disk.runs[key].row.ended_at is not None)
        row = disk.runs[key].row
        row.fold = fold
        row.state = row.state if state is None else state
        for view in (await run_view(it.stored, row), await run_summary(it.stored, row)):
            assert view.in_doubt == [CallName("call_0_0", "pay")]

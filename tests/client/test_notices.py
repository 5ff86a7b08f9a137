"""What the server took but probably misunderstood, as Python warnings; what a cancel found."""

from __future__ import annotations

import asyncio
import warnings

import pytest

from weftline.client import AsyncClient, CallName, Client, RunCancelled, tool
from weftline.events import CallOpened

SLIP = {"maxToolTruns": 3}


@tool
async def lookup(key: str) -> str:
    """Looks something up."""
    await asyncio.Event().wait()
    return key


async def test_field_that_server_does_not_know_is_user_warning(client: AsyncClient) -> None:
    with pytest.warns(UserWarning, match=r"budgets.maxToolTruns .* did you mean maxToolTurns\?") as caught:
        result = await client.run("hi", model_id="scripted:hello", budgets=SLIP)
    assert result.text == "hello"
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match="maxToolTruns"):
        session = await client.create_session(model_id="scripted:hello", budgets=SLIP)
    with pytest.warns(UserWarning, match="maxToolTruns"):
        await session.send("hi", budgets=SLIP)


def test_the_sync_client_warns_too(sync_client: Client) -> None:
    with pytest.warns(UserWarning, match="maxToolTruns") as of_run:
        sync_client.run("hi", model_id="scripted:hello", budgets=SLIP)
    with pytest.warns(UserWarning, match="maxToolTruns") as of_session:
        session = sync_client.create_session(model_id="scripted:hello", budgets=SLIP)
    with pytest.warns(UserWarning, match="maxToolTruns") as of_message:
        session.send("hi", budgets=SLIP)
    # Each at the line that made it, though the work is done in another thread.
    places = [(caught[0].filename, caught[0].lineno) for caught in (of_run, of_session, of_message)]
    first = places[0][1]
    assert places == [(__file__, first), (__file__, first + 2), (__file__, first + 4)]


def test_where_warnings_are_errors_the_sync_client_raises_them(sync_client: Client) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning):
            sync_client.run("hi", model_id="scripted:hello", budgets=SLIP)


async def test_where_warnings_are_errors_no_run_is_left_behind(client: AsyncClient) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning):
            await client.run("hi", model_id="scripted:endless", budgets=SLIP, metadata={"who": "strict"})
    (run,) = (await client.list_runs(metadata={"who": "strict"})).items
    assert run.status == "cancelled"


async def test_cancel_tells_what_it_stopped_and_snapshot_keeps_it(client: AsyncClient) -> None:
    async with await client.start("hi", model_id="scripted:lookup", tools=[lookup]) as run:
        async for event in run.events(raise_on_failure=False):
            if isinstance(event, CallOpened):
                break
        receipt = await run.cancel()
        with pytest.raises(RunCancelled) as cancelled:
            await run.result()
    assert receipt.status == "cancelled" and receipt.finished == receipt.stopped == ()
    (offered,) = receipt.in_doubt  # whoever was offered it may be at work on it
    assert isinstance(offered, CallName) and offered.name == "lookup" and offered.tool_use_id
    assert cancelled.value.cancel_receipt == receipt and cancelled.value.attempts == 1
    assert (await run.snapshot()).cancel_receipt == receipt
    late = await client.cancel_run(run.id)
    assert late == receipt


async def test_a_cancel_that_comes_too_late_is_on_the_result(client: AsyncClient) -> None:
    async with await client.start("hi", model_id="scripted:hello") as run:
        assert (await run.result()).cancel_receipt is None
        await run.cancel()
        result = await run.result()
    assert result.cancel_receipt is not None and result.cancel_receipt.status == "succeeded"
    assert (await run.snapshot()).cancel_receipt is None

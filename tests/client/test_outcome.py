from __future__ import annotations

from typing import Any

import pytest

from weftline.client import AsyncClient, Client, ClientEvent, NetworkError, RunCancelled, RunFailed, Tokens, tool
from weftline.events import RunEnded

from .stand_in import USAGE, StandIn, hybrid, stream, success


@pytest.mark.requirement("wire.client.outcome")
async def test_a_success_has_text_and_usage(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    stand_in.run("run_1", stream(success(3, "all good")))
    result = await to_stand_in.run("hi")
    assert (result.run_id, result.text, result.turns) == ("run_1", "all good", 1)
    assert result.tokens == Tokens(7, 1, 2, 3)
    assert result.model is not None
    assert result.model.provider == "openai"
    assert (to_stand_in.usage.runs, to_stand_in.usage.tokens) == (1, Tokens(7, 1, 2, 3))


async def test_a_success_says_why_the_model_stopped(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    end = hybrid(3, "result", subtype="success", ok=True, text="", finishReason="refusal", **USAGE)
    stand_in.run("run_1", stream(end))
    assert (await to_stand_in.run("hi")).finish_reason == "refusal"


@pytest.mark.requirement("wire.client.outcome")
async def test_an_error_event_raises_with_everything_it_told(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    stand_in.run(
        "run_1",
        stream(
            hybrid(
                4,
                "error",
                error="cut off",
                code="truncation",
                errorClass="brand_new_class",
                finishReason="max_tokens",
                partialText="half",
                retryable=True,
                **USAGE,
            )
        ),
    )
    with pytest.raises(RunFailed) as caught:
        await to_stand_in.run("hi")
    error = caught.value
    assert (error.run_id, error.subtype, error.error_class) == ("run_1", "error", "brand_new_class")
    assert (error.finish_reason, error.partial_text, error.retryable) == ("max_tokens", "half", True)
    assert (error.tokens, error.turns, error.message) == (Tokens(7, 1, 2, 3), 1, "cut off")
    assert error.model is not None


@pytest.mark.requirement("wire.client.outcome")
@pytest.mark.parametrize(
    "payload",
    [{"subtype": "error_max_tool_turns", "ok": False, "error": "too many"}, {"subtype": "something_new"}, {}],
)
async def test_a_result_that_is_no_success_raises(
    to_stand_in: AsyncClient, stand_in: StandIn, payload: dict[str, Any]
) -> None:
    stand_in.run("run_1", stream(hybrid(2, "result", **payload)))
    with pytest.raises(RunFailed) as caught:
        await to_stand_in.run("hi")
    assert caught.value.subtype == payload.get("subtype", "error")


async def test_a_success_may_be_told_by_ok_alone(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    stand_in.run("run_1", stream(hybrid(2, "result", ok=True, text="fine")))
    result = await to_stand_in.run("hi")
    assert (result.text, result.tokens, result.model) == ("fine", None, None)


@pytest.mark.requirement("wire.client.outcome")
async def test_partial_text_is_never_the_answer(client: AsyncClient) -> None:
    with pytest.raises(RunFailed) as caught:
        await client.run("hi", model_id="scripted:truncated")
    error = caught.value
    assert (error.error_class, error.finish_reason, error.partial_text) == ("truncation", "max_tokens", "half an ans")


@pytest.mark.requirement("wire.client.outcome")
async def test_iterating_surfaces_the_failure_after_the_last_event(client: AsyncClient) -> None:
    seen: list[ClientEvent] = []

    async def read() -> None:
        async for event in client.stream("hi", model_id="scripted:refused"):
            seen.append(event)  # noqa: PERF401  (what was seen before the error counts)

    with pytest.raises(RunFailed) as caught:
        await read()
    assert isinstance(seen[-1], RunEnded)
    assert (seen[-1].status, seen[-1].code) == ("failed", "auth")
    assert (caught.value.error_class, caught.value.retryable) == ("auth", False)
    run = await client.start("hi", model_id="scripted:refused")
    assert [frame.type async for frame in run.frames(raise_on_failure=False)][-1] == "error"


@pytest.mark.requirement("wire.client.outcome")
def test_the_sync_client_raises_the_same(sync_client: Client) -> None:
    with pytest.raises(RunFailed):
        sync_client.run("hi", model_id="scripted:refused")
    with pytest.raises(RunFailed):
        list(sync_client.stream("hi", model_id="scripted:refused"))
    run = sync_client.start("hi", model_id="scripted:refused")
    assert [frame.type for frame in run.frames(raise_on_failure=False)][-1] == "error"


@pytest.mark.requirement("wire.client.outcome")
async def test_run_with_too_many_tool_turns_fails_with_its_subtype(client: AsyncClient) -> None:
    @tool
    def lookup(key: str) -> str:
        return key

    with pytest.raises(RunFailed) as caught:
        await client.run("hi", model_id="scripted:twice", tools=[lookup], budgets={"maxToolTurns": 1})
    assert caught.value.subtype == "error_max_tool_turns"


async def test_a_run_that_somebody_cancels_raises(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    stand_in.run("run_1", stream(hybrid(2, "cancelled", reason="session_ended", **USAGE)))
    with pytest.raises(RunCancelled) as caught:
        await to_stand_in.run("hi")
    assert (caught.value.reason, caught.value.turns) == ("session_ended", 1)


async def test_a_handle_that_was_detached_has_no_result(client: AsyncClient) -> None:
    run = await client.start("hi", model_id="scripted:endless")
    await run.detach()
    with pytest.raises(NetworkError):
        await run.result()
    assert not (await run.snapshot()).ended
    await run.cancel()


async def test_text_comes_in_pieces(client: AsyncClient) -> None:
    run = await client.start("hi", model_id="scripted:hello")
    assert [piece async for piece in run.text()] == ["hel", "lo"]


async def test_a_callback_sees_every_event_and_its_faults_harm_nothing(client: AsyncClient) -> None:
    seen: list[ClientEvent] = []

    def note(event: ClientEvent) -> None:
        seen.append(event)
        raise ValueError("a fault of the callback")

    result = await client.run("hi", model_id="scripted:hello", on_event=note)
    assert tuple(seen) == result.events

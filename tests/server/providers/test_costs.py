"""What runs cost: prices that the configuration gives for its own providers, and models that have none."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from weftline.client import AsyncClient, RunCancelled, RunFailed
from weftline.events import TextDelta
from weftline.testing import ServerProcess

from .conftest import KEY, team_of
from .dialects import FAMILIES, Dialect, sse
from .upstream import Reply, Upstream

PER_TOKEN = {"input_per_1m_usd": 1_000_000.0, "output_per_1m_usd": 2_000_000.0}
COST = 12 * 1.0 + 7 * 2.0
"""Of one answer of the stand-ins, at these prices."""


def config(dialect: Dialect, url: str, *, name: str, price_for: str) -> str:
    options = "".join(f'{key} = "{value}"\n' for key, value in dialect.options.items())
    prices = "".join(f"{key} = {value}\n" for key, value in PER_TOKEN.items())
    return (
        f'[providers.{name}]\nfamily = "{dialect.family}"\nbase_url = "{url}{dialect.path}"\napi_key = "{KEY}"\n'
        f'models = ["{dialect.model}", "unpriced"]\n{options}'
        f'[[prices]]\nprovider = "{price_for}"\nmodel = "{dialect.model}"\n{prices}'
    )


@pytest.mark.parametrize("family", ["anthropic", "openai_chat"])
async def test_configured_provider_price_counts_by_its_own_name(
    family: str, upstream: Upstream, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    dialect = FAMILIES[family]
    with ServerProcess(tmp_path, config=config(dialect, upstream.url, name="gateway", price_for="gateway")) as server:
        team = team_of(server, http, upstream)
        failure = dialect.fails(400, "invalid_request_error")
        answers = (dialect.answer("hi"), dialect.answer("hi"), failure, failure, dialect.answer("hi"))
        upstream.answers(*answers)
        frames = await team.run(f"gateway:{dialect.model}")
        assert frames[-1]["costUsd"] == COST
        assert (await team.api.snapshot(frames[0]["runId"]))["costUsd"] == COST

        async with AsyncClient(api_key=team.api.key, workspace="acme", base_url=server.url) as client:
            session = await client.create_session(model_id=f"gateway:{dialect.model}")
            result = await session.send("hi")
            assert (result.cost_usd, result.attempts, result.turns) == (COST, 1, 1)
            usage = (await session.info()).usage
            assert usage is not None and (usage.runs, usage.attempts, usage.cost_usd) == (1, 1, COST)
            assert (session.usage.cost_usd, session.usage.attempts) == (COST, 1)

            # A failure that used nothing costs nothing where the price is known, and is of no known cost elsewhere.
            for model, cost in ((dialect.model, 0.0), ("unpriced", None)):
                with pytest.raises(RunFailed) as failed:
                    await client.run("hi", model_id=f"gateway:{model}")
                assert (failed.value.cost_usd, failed.value.attempts) == (cost, 1)
                snapshot = await client.get_run(failed.value.run_id or "")
                assert (snapshot.status, snapshot.cost_usd, snapshot.attempts) == ("failed", cost, 1)
            unpriced = await client.run("hi", model_id="gateway:unpriced")
            assert unpriced.cost_usd is None and unpriced.tokens is not None
            assert client.usage.cost_usd is None and client.usage.runs == 4


UNCOUNTED = sse(
    {"choices": [{"index": 0, "delta": {"content": "twelve bytes"}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    "[DONE]",
)
"""A whole answer from a server that does not count tokens."""


async def test_call_without_reported_usage_is_marked_as_estimated(
    upstream: Upstream, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    dialect = FAMILIES["openai_chat"]
    model = f"gateway:{dialect.model}"
    with ServerProcess(tmp_path, config=config(dialect, upstream.url, name="gateway", price_for="gateway")) as server:
        team = team_of(server, http, upstream)
        async with AsyncClient(api_key=team.api.key, workspace="acme", base_url=server.url) as client:
            upstream.answers(dialect.answer("hi"), UNCOUNTED, UNCOUNTED)
            assert not (await client.run("hi", model_id=model)).usage_estimated
            assert not client.usage.usage_estimated

            uncounted = await client.run("hi", model_id=model)
            assert uncounted.usage_estimated and uncounted.tokens is not None
            assert (uncounted.tokens.output_tokens, uncounted.tokens.input_tokens) == (3, 1), "of `hi`, two bytes"
            assert uncounted.cost_usd == uncounted.tokens.input_tokens + 2 * 3
            assert client.usage.usage_estimated

            session = await client.create_session(model_id=model)
            await session.send("hi")
            usage = (await session.info()).usage
            assert usage is not None and usage.usage_estimated and usage.cost_usd

            upstream.answers(Reply(dialect.begun("twelve bytes"), then="cut"), dialect.answer("hi"))
            cut = await client.run("hi", model_id=model)
            assert cut.usage_estimated and cut.cost_usd is not None and cut.cost_usd > COST + 2 * 3

            upstream.answers(Reply(dialect.begun("twelve bytes"), then="silence"))
            async with await client.start("hi", model_id=model) as run:
                async for event in run.events(raise_on_failure=False):
                    if isinstance(event, TextDelta):
                        await run.cancel()
                with pytest.raises(RunCancelled) as cancelled:
                    await run.result()
            assert cancelled.value.usage_estimated and cancelled.value.cost_usd
            snapshot = await client.get_run(cancelled.value.run_id)
            assert snapshot.usage_estimated and snapshot.cost_usd == cancelled.value.cost_usd
            assert snapshot.tokens is not None and snapshot.tokens.output_tokens == 3
            listed = [one for one in (await client.list_runs()).items if one.id == snapshot.id]
            assert [(one.usage_estimated, one.cost_usd) for one in listed] == [(True, snapshot.cost_usd)]

            # Silence from the first byte on: the request was sent, and may be billed.
            upstream.silent.clear()
            upstream.answers(Reply(b"", then="silence"))
            async with await client.start("hi", model_id=model) as run:
                await upstream.silent.wait()
                await run.cancel()
                with pytest.raises(RunCancelled) as cancelled:
                    await run.result()
            assert cancelled.value.usage_estimated and cancelled.value.cost_usd

            # Killed in the middle of an answer: what the log has of it was streamed, and is billed as such.
            upstream.silent.clear()
            upstream.answers(Reply(dialect.begun("twelve bytes"), then="silence"), dialect.answer("hi"))
            run = await client.start("hi", model_id=model)
            async for event in run.events(raise_on_failure=False):
                if isinstance(event, TextDelta):
                    break
            server.kill()
            server.start()
            frames = await team.api.events(run.id)
            tokens = frames[-1]["tokens"]
            assert frames[-1]["attempts"] == 2 and frames[-1]["usageEstimated"]
            assert (tokens["inputTokens"], tokens["outputTokens"]) == (1 + 12, 3 + 7)
            assert frames[-1]["costUsd"] == tokens["inputTokens"] + 2 * (3 + 7)

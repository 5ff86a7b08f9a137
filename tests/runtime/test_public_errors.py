"""What clients read about a run that failed, and what is kept for operators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from msgspec.json import decode

from runtime.kit import MoodyStore, ended, plan
from weftline.agent.engine.replaying import replay_stored
from weftline.config import Config
from weftline.errors import WeftlineError
from weftline.events.frames import payload_of
from weftline.kernel.bodies import EndedBody, decode_ended
from weftline.kernel.entries import decode_fact
from weftline.providers.base import Chunk, ModelRequest, ProviderError
from weftline.providers.catalog import Catalog
from weftline.providers.scripted import ScriptedProvider, parse_scripts
from weftline.runtime import carry_out as carrying
from weftline.runtime.driver import CarryOut
from weftline.runtime.embedded import EmbeddedEngine
from weftline.server.options import server_options
from weftline.store.memory import MemoryDisk

INSIDE = "cannot open /srv/app/secrets.toml for Bearer abcdef0123456789 or sk-ant-0123456789abcdef"
SCRIPTS = parse_scripts(b'{"breaks": {"turns": [{"text": "never"}]}, "auth": {"turns": [{"text": "never"}]}}')


class Breaking(ScriptedProvider):
    """Fails as providers do: with words of their own, or with a bug."""

    def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        return self._broken(request.model)

    async def _broken(self, model: str) -> AsyncIterator[Sequence[Chunk]]:
        await asyncio.sleep(0)
        try:
            raise FileNotFoundError(INSIDE)
        except FileNotFoundError as cause:
            if model == "auth":
                raise ProviderError("auth", "Your credit card has expired.", status=401) from cause
            raise KeyError("payload") from cause
        yield []


async def stuck(*_: Any, **__: Any) -> Any:
    raise RuntimeError(INSIDE)


async def failed(
    model: str, texts: Mapping[str, str], carry_out: CarryOut = carrying.carry_out
) -> tuple[str, EndedBody]:
    """What clients are told about a run, and what its last entry has."""
    models, store = Catalog(), MoodyStore(MemoryDisk())
    models.add(Breaking(SCRIPTS))
    engine = EmbeddedEngine(store, models=models, carry_out=carry_out, public_errors=texts, max_recoveries=1)
    async with engine as it:
        space = await it.workspace("acme")
        run_id = await it.create(space, plan(model))
        await ended(it, run_id, space)
        last = store.disk.runs[1].items[-1]
        replayed = await replay_stored(store.log, run_id, workspace=space, agents=[])
        assert replayed.divergence is None, "a replay knows nothing of the operator's texts"
    event = payload_of(decode_fact.decode(last.head), last.body, run_id=run_id)
    assert event is not None and event[0] == "error"
    shown = event[1].decode()
    for hidden in ("Traceback", "secrets.toml", "/srv", "abcdef", "KeyError", "payload", "RuntimeError"):
        assert hidden not in shown
    assert "0123456789" not in last.body.decode(), "credentials are not even kept"
    return decode(event[1])["error"], decode_ended(last.body)


@pytest.mark.requirement("run.end.public_error")
async def test_clients_read_a_replaceable_plain_text() -> None:
    ours = {"unknown": "Please call us.", "auth": "Not your fault.", "worker_error": "Try again."}
    error, body = await failed("breaks", {})
    assert (error, body.full) == ("The model call failed unexpectedly.", "")
    assert [cause.type for cause in body.causes] == ["KeyError", "FileNotFoundError"]
    assert body.causes[1].message.startswith("cannot open /srv/app/secrets.toml for [redacted] or [redacted]")
    error, body = await failed("breaks", ours)
    assert (error, body.full) == ("Please call us.", "The model call failed unexpectedly.")
    assert [cause.type for cause in body.causes] == ["KeyError", "FileNotFoundError"]

    error, body = await failed("auth", {"unknown": "Please call us."})
    assert (error, body.full) == ("Your credit card has expired.", ""), "these are the words of another class"
    error, body = await failed("auth", ours)
    assert (error, body.full) == ("Not your fault.", "Your credit card has expired.")
    assert [cause.type for cause in body.causes] == ["FileNotFoundError"] and body.provider is not None

    error, body = await failed("breaks", {}, stuck)
    assert error == body.error and not body.full
    error, body = await failed("breaks", ours, stuck)
    assert error == "Try again." and body.full


@pytest.mark.requirement("run.end.public_error")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("Sorry.", "server.public_errors: must be a table of strings by error code"),
        ({"autth": "Sorry."}, "server.public_errors.autth: is not an error code; use one of agent_error, auth,"),
        ({"auth": ""}, "server.public_errors.auth: must be a string of 1 to 1000 characters"),
        ({"auth": 7}, "server.public_errors.auth: must be a string of 1 to 1000 characters"),
    ],
)
def test_texts_that_nobody_would_read_are_refused_at_the_start(value: Any, words: str) -> None:
    with pytest.raises(WeftlineError) as refused:
        server_options(Config(path="weft.toml", server={"public_errors": value}))
    assert refused.value.code == "bad_config" and words in refused.value.message
    given = {"auth": "Sorry.", "budget_exceeded": "That was too much."}
    assert server_options(Config(server={"public_errors": given})).public_errors == given

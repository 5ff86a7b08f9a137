"""Providers that offer less, or more, than a name and a stream."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import pytest
from msgspec import Raw

from weftline.events.frames import payload_of
from weftline.kernel.entries import decode_fact
from weftline.messages import Assistant, Opaque, Text, Thinking, ToolCall, Usage, User
from weftline.providers.assemble import collect
from weftline.providers.base import Chunk, Finish, ModelInfo, ModelRequest, ProviderError, TextDelta, UsageUpdate
from weftline.providers.catalog import Catalog, build_catalog
from weftline.providers.families import FAMILIES, ProviderSettings
from weftline.providers.offers import Generated, Generates, builtin_tools, generate, streaming
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime.engine import OwnedEngine
from weftline.runtime.new_engine import new_engine
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.routes.every import ROUTES
from weftline.server.routes.models import list_models
from weftline.store.memory import MemoryStore
from weftline.testing.recordings import RecordedTransport

from .playing import played

ASK = ModelRequest("any", [User.of("hi")])
NO_REQUEST: Any = None
"""The list of models looks at no request."""
USED = Usage(input=3, output=2)


class InOnePiece:
    """A name and `generate`."""

    name = "piece"

    def __init__(self, *, answer: Generated | ProviderError | None = None, **_settings: Any) -> None:
        self._answer = answer or Generated(Assistant((Text("hello"),)), USED)

    async def generate(self, request: ModelRequest) -> Generated:
        if isinstance(self._answer, ProviderError):
            raise self._answer
        return self._answer


class Both(InOnePiece):
    """A name, `generate` and `stream`."""

    name = "both"

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        yield [TextDelta("streamed"), UsageUpdate(USED), Finish("end_turn")]


class Plain(Both):
    def models(self) -> Sequence[ModelInfo]:
        return (ModelInfo("known", "Known", vision=True),)

    def builtin_tools(self) -> Sequence[str]:
        return ["search"]


class Awaited(InOnePiece):
    async def builtin_tools(self) -> Sequence[str]:
        return ["search", "paint"]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def engine(store: MemoryStore) -> AsyncGenerator[tuple[OwnedEngine, Catalog]]:
    catalog = Catalog()
    async with new_engine(store, models=catalog) as engine:
        yield engine, catalog
    await catalog.aclose()


async def run_of(engine: OwnedEngine, model: str) -> tuple[str, Any]:
    """Runs `model` to its end: its status and what its terminal entry says."""
    workspace = await engine.workspace("acme")
    row = await played(engine, workspace, model)
    last = await engine.stored.logs.entry(row.key, row.next_seq - 1)
    assert last is not None and last.kind == "run.ended"
    return row.status, json.loads(last.head)


@pytest.mark.parametrize("provider", [InOnePiece(), Both(), Awaited()])
async def test_a_provider_without_a_listing_runs_any_model(
    provider: Generates, engine: tuple[OwnedEngine, Catalog]
) -> None:
    runner, catalog = engine
    catalog.add(provider, any_model=True)
    status, _ = await run_of(runner, f"{provider.name}:any")
    assert status == "succeeded" and catalog.entries() == []


async def test_provider_with_listing_is_in_catalog_with_its_capabilities() -> None:
    catalog = Catalog()
    catalog.add(Plain())
    (entry,) = catalog.entries()
    assert (entry.id, entry.label, entry.vision, entry.tools) == ("both:known", "Known", True, None)
    await catalog.aclose()


async def test_error_of_an_unstreamed_answer_ends_the_run(
    engine: tuple[OwnedEngine, Catalog],
) -> None:
    runner, catalog = engine
    catalog.add(InOnePiece(answer=ProviderError("auth", "no key")), any_model=True)
    status, ended = await run_of(runner, "piece:any")
    assert (status, ended["code"]) == ("failed", "auth")


async def test_every_part_of_an_answer_in_one_piece_is_kept() -> None:
    message = Assistant(
        (
            Thinking("hm", "piece", "sig"),
            Thinking(provider="piece", opaque=Raw(b'{"sealed":1}')),
            Text("Let me look."),
            ToolCall("c1", "look", '{"a": 1}', "piece", Raw(b'{"x":1}')),
            ToolCall("c2", "look", "{}", "piece"),
            Opaque("piece", Raw(b'{"y":1}')),
        )
    )
    answer = await collect(streaming(InOnePiece(answer=Generated(message, USED, "tool_use"))), ASK)
    assert (answer.message(), answer.usage, answer.finish_reason) == (message, USED, "tool_use")


async def test_call_in_one_piece_reads_the_stream_to_its_end() -> None:
    class Streams:
        name = "streams"
        stream = Both.stream

    assert (await generate(Both(), ASK)).message.text == "hello"
    only_streams: Any = Streams()
    assert await generate(only_streams, ASK) == Generated(Assistant((Text("streamed"),)), USED, "end_turn")


@pytest.mark.parametrize(
    ("provider", "tools"), [(InOnePiece(), ()), (Plain(), ("search",)), (Awaited(), ("search", "paint"))]
)
async def test_built_in_tools_report_at_once_or_wait(provider: Generates, tools: tuple[str, ...]) -> None:
    assert await builtin_tools(provider) == tools
    assert await builtin_tools(streaming(provider)) == tools


async def test_a_configured_family_may_answer_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "piece", f"{__name__}:InOnePiece")
    settings = ProviderSettings(name="own", family="piece", api_key="k")
    catalog = build_catalog([settings], transport=RecordedTransport([]))
    assert (await collect(catalog.resolve("own:any").provider, ASK)).text == "hello"
    await catalog.aclose()


class Told(Both):
    """Tells about its answer afterwards, has an icon, and tools of its own that have to be awaited."""

    name = "told"

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self._fails = fails

    def models(self) -> Sequence[ModelInfo]:
        return (ModelInfo("known", icon="https://icons.test/known.svg"),)

    async def builtin_tools(self) -> Sequence[str]:
        return ["search"]

    async def response_metadata(self, request: ModelRequest) -> dict[str, str]:
        if self._fails:
            raise RuntimeError("no answer about the answer")
        return {"response_id": f"resp-{request.call_index}"}


async def message_of(engine: OwnedEngine, store: MemoryStore) -> Any:
    """The `assistant_message` of a run of `told:known`."""
    await run_of(engine, "told:known")
    turn = (await store.log.facts(1, kinds=("turn.completed",)))[0]
    event = payload_of(decode_fact.decode(turn.head), turn.body, run_id="run_1")
    assert event is not None and event[0] == "assistant_message"
    return json.loads(event[1])


@pytest.mark.requirement("provider.family.optional_methods")
async def test_extra_provider_methods_are_used(engine: tuple[OwnedEngine, Catalog], store: MemoryStore) -> None:
    runner, catalog = engine
    catalog.add(Told())
    assert (await message_of(runner, store))["providerMetadata"] == {"response_id": "resp-0"}
    app = App(runner, store, WorkspaceCatalogs(catalog), ROUTES)
    answer = await list_models(app, NO_REQUEST, Principal("key_1", 1, "acme"))
    (model,) = json.loads(answer.body)["models"]
    assert (model["icon"], model["builtinTools"]) == ("https://icons.test/known.svg", ["search"])


async def test_provider_that_fails_to_describe_its_answer_does_no_harm(
    engine: tuple[OwnedEngine, Catalog], store: MemoryStore
) -> None:
    runner, catalog = engine
    catalog.add(Told(fails=True))
    message = await message_of(runner, store)
    assert message["text"] == "streamed" and "providerMetadata" not in message

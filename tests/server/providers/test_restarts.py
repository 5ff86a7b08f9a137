"""What a provider needs back survives the death of the server: opaque data, order, and every byte before."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import aiohttp
import pytest

from weftline.testing import ServerProcess

from ..kit import local_tool
from .conftest import KEY, TOOLS, Team, server_tool, team_of
from .dialects import FAMILIES, Anthropic, Call, Dialect
from .upstream import Upstream

ASK = local_tool("ask", parameters={"type": "object", "properties": {"q": {"type": "string"}}})
SPEC = {"tools": [ASK, server_tool("weather")], "systemPrompt": "Be brief.", "reasoningLevel": "high"}
CONFIG = """
[providers.{name}]
family = "{family}"
base_url = "{url}"
api_key = "{key}"
models = ["{model}"]
{options}
"""


def config(dialect: Dialect, url: str) -> str:
    settings = dialect.settings(url)
    options = "\n".join(f'{name} = "{value}"' for name, value in settings["options"].items())
    return CONFIG.format(
        name="mine", family=dialect.family, url=settings["baseUrl"], key=KEY, model=dialect.model, options=options
    )


@pytest.fixture
async def configured(
    dialect: Dialect, tmp_path: Path, http: aiohttp.ClientSession, upstream: Upstream
) -> AsyncGenerator[tuple[ServerProcess, Team]]:
    """A server whose one provider comes from its configuration file."""
    with ServerProcess(tmp_path, tools=TOOLS, config=config(dialect, upstream.url)) as server:
        yield server, team_of(server, http, upstream)


async def round_of(team: Team, dialect: Dialect, between: Callable[[], None]) -> list[bytes]:
    """A run of two tool rounds, the first answered by the client after `between`; what the provider was sent."""
    team.upstream.asked.clear()
    team.upstream.answers(
        dialect.answer("One moment.", thinking=["h", "m"], calls=[Call("ask", '{"q": "a  b"}', "toolu_1")]),
        dialect.answer(thinking=["so"], calls=[Call("weather", '{"city":"Oslo"}', "toolu_2")]),
        dialect.answer("Done."),
    )
    run = await team.start(f"mine:{dialect.model}", **SPEC)
    async with team.api.stream(run) as stream:
        call = await stream.until("local_tool_call")
    between()
    assert (await team.api.answer(run, call["toolUseId"], result="yes")).status == 200
    frames = await team.api.events(run)
    assert frames[-1]["text"] == "Done.", frames[-1].body
    # The cache key is the conversation's, and so the only thing that differs from run to run.
    keyed = f',"prompt_cache_key":"{run}"'.encode()
    assert [keyed in asked.raw for asked in team.upstream.asked] == [dialect.family.startswith("openai")] * 3
    return [asked.raw.replace(keyed, b"") for asked in team.upstream.asked]


@pytest.mark.requirement("provider.extra.round_trip", "provider.extra.reasoning_replay", "provider.cache.stable_prefix")
async def test_restart_in_a_tool_round_changes_no_byte(
    configured: tuple[ServerProcess, Team], dialect: Dialect
) -> None:
    server, team = configured

    def die() -> None:
        server.kill()
        server.start()

    undisturbed = await round_of(team, dialect, lambda: None)
    restarted = await round_of(team, dialect, die)
    assert restarted == undisturbed and len(restarted) == 3
    if dialect.opaque:
        assert [request.count(dialect.opaque.encode()) for request in restarted] == [0, 1, 2]
    if isinstance(dialect, Anthropic):
        assert [request.count(dialect.redacted.encode()) for request in restarted] == [0, 1, 2]


@pytest.mark.requirement("provider.cache.stable_prefix")
@pytest.mark.parametrize("family", ["openai_chat", "openai_responses"])
async def test_each_request_begins_with_the_one_before_it(team: Team, family: str) -> None:
    dialect = FAMILIES[family]
    await team.bring(dialect)
    first, second, third = await round_of(team, dialect, lambda: None)
    for earlier, later in ((first, second), (second, third)):
        prefix = earlier[: earlier.rindex(b"]", 0, earlier.index(b'"stream"'))]
        assert later.startswith(prefix)


async def test_a_stored_provider_serves_the_next_process_too(
    tmp_path: Path, http: aiohttp.ClientSession, upstream: Upstream
) -> None:
    dialect = Anthropic()
    with ServerProcess(tmp_path, tools=TOOLS) as server:
        team = team_of(server, http, upstream)
        model = await team.bring(dialect)
        server.kill()
        server.start()
        upstream.answers(dialect.answer("Hello"))
        assert (await team.run(model))[-1]["text"] == "Hello"
        assert upstream.asked[0].headers["x-api-key"] == KEY

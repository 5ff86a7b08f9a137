"""A server of its own for tools that the server dials: it may reach 127.0.0.1 and no other private address."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest

from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.testing import ServerProcess
from weftline.tools.base import ToolContext
from weftline.tools.mcp.pool import McpPool

from .peers import McpFarm, McpProcess


def calls(name: str, **args: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "args": args}]}


HEARD = {"text": "heard {{all_tool_results}}"}
SCRIPTS: dict[str, Any] = {
    "offered": {"turns": [{"text": "{{tools}}"}]},
    "described": {"turns": [{"text": "{{tool_desc.peer}}"}]},
    "described_facts": {"turns": [{"text": "{{tool_desc.facts_add}}"}]},
    "unavailable": {"turns": [calls("facts_unavailable"), HEARD]},
    "add": {"turns": [calls("facts_add", a=20, b=22), HEARD]},
    "weather": {"turns": [calls("facts_get_weather", city="Oslo"), HEARD]},
    "picture": {"turns": [calls("facts_picture"), HEARD]},
    "broken": {"turns": [calls("facts_broken"), HEARD]},
    "ask": {"turns": [calls("facts_ask"), HEARD]},
    "count": {"turns": [calls("facts_count"), HEARD]},
    "hosted": {"turns": [calls("own_helper", message="hi"), HEARD]},
    "hosted_unavailable": {"turns": [calls("own_unavailable"), HEARD]},
    "hello": {"turns": [{"text": "Hello there"}]},
    "slow": {"turns": [calls("facts_slow"), HEARD]},
    "absent": {"turns": [calls("facts_unavailable"), calls("current_time"), HEARD]},
    "ask_between": {
        "turns": [calls("facts_add", a=1, b=1), calls("lookup", q="x"), calls("facts_add", a=2, b=2), HEARD]
    },
    "delegate": {"turns": [calls("peer", message="{{user_messages}}"), HEARD]},
    "stored": {"turns": [calls("get_weather", city="Århus & co", days=2), HEARD]},
    "stored_often": {"turns": [{"tool_calls": [{"name": "get_weather", "args": {"city": "Oslo"}}] * 64}, HEARD]},
    "greet": {"turns": [calls("greet", who="Ann"), HEARD]},
    "clock": {"turns": [calls("current_time"), HEARD]},
    "double": {"turns": [calls("double", number=21), HEARD]},
    "grab": {"turns": [calls("bad_grab", q="x"), HEARD]},
    "odd": {"turns": [calls("odd_many"), HEARD]},
    "pays_twice": {"turns": [calls("bank_pay", n=1), calls("bank_pay", n=1), HEARD]},
    "charges_twice": {"turns": [calls("charge", n=1), calls("charge", n=1), HEARD]},
    "delegates_twice": {"turns": [calls("peer", message="pay"), calls("peer", message="pay"), HEARD]},
    "stuck_twice": {"turns": [calls("stuck"), calls("stuck"), HEARD]},
    "lost_twice": {"turns": [calls("lost"), calls("lost"), HEARD]},
    "answers_later": {
        "turns": [calls("peer", message="a car"), calls("lookup", q="x"), calls("peer", message="red"), HEARD]
    },
    "answers": {
        "turns": [calls("peer", message="a car"), calls("peer", message="red"), calls("peer", message="x"), HEARD]
    },
    "fetch": {"turns": [calls("fetch", url="{{user_messages}}"), HEARD]},
}
TOOLS = """
import asyncio

from weftline import tool
from weftline.tools import ToolInDoubt

@tool(effect="read")
def double(number: int) -> int:
    "Doubles."
    return number * 2

@tool(timeout_s=0.05)
async def stuck() -> str:
    "Never returns."
    await asyncio.Event().wait()
    return ""

@tool
def lost() -> str:
    "Loses its answer."
    raise ToolInDoubt("the bank hung up")
"""
CONFIG = """
[server]
allow_egress = ["127.0.0.1"]
"""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    folder = tmp_path_factory.mktemp("dialling")
    with ServerProcess(folder, scripts=SCRIPTS, tools=TOOLS, config=CONFIG) as running:
        yield running


@pytest.fixture(scope="session")
def mcp_farm() -> Generator[McpFarm]:
    farm = McpFarm()
    yield farm
    farm.close()


@pytest.fixture(scope="session")
def facts(mcp_farm: McpFarm) -> Generator[McpProcess]:
    """An MCP server that stays up."""
    with McpProcess(mcp_farm) as process:
        yield process


@pytest.fixture
def own_facts(mcp_farm: McpFarm) -> Generator[McpProcess]:
    """An MCP server of the test's own, to be stopped and started again."""
    with McpProcess(mcp_farm) as process:
        yield process


@pytest.fixture
async def dialer() -> AsyncGenerator[Dialer]:
    dialer = Dialer(Egress("private"))
    yield dialer
    await dialer.aclose()


@pytest.fixture
async def pool(dialer: Dialer) -> AsyncGenerator[McpPool]:
    pool = McpPool(dialer)
    yield pool
    await pool.aclose()


@pytest.fixture
def context() -> ToolContext:
    return ToolContext("run_1", "call_1", "key-1", "tool", "acme")

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from weftline.client import AsyncClient, Client, Retry
from weftline.testing import ServerProcess

from .stand_in import StandIn

QUICK = Retry(attempts=6, first_s=0.01, most_s=0.05)

ASK: dict[str, Any] = {"tool_calls": [{"name": "lookup", "args": {"key": "a"}}]}

SCRIPTS: dict[str, Any] = {
    "hello": {"turns": [{"deltas": ["hel", "lo"]}]},
    "lookup": {"turns": [ASK, {"text": "It is {{tool_results.0}}."}]},
    "twice": {
        "turns": [ASK, {"tool_calls": [{"name": "lookup", "args": {"key": "b"}}]}, {"text": "{{all_tool_results}}"}]
    },
    "both": {
        "turns": [
            {"tool_calls": [{"name": "slow", "args": {}}, {"name": "quick", "args": {}}]},
            {"text": "{{all_tool_results}}"},
        ]
    },
    "ask": {
        "turns": [
            {"tool_calls": [{"name": "ask_user", "args": {"question": "Which one?", "options": ["red", "blue"]}}]},
            {"text": "heard {{tool_results.0}}"},
        ]
    },
    "plan": {
        "turns": [
            {"tool_calls": [{"name": "present_plan", "args": {"plan": "1. Go."}}]},
            {"text": "{{tool_results.0}}"},
        ]
    },
    "budget": {"turns": [ASK, ASK, {"text": "enough"}]},
    "truncated": {"turns": [{"text": "half an ans", "finish_reason": "max_tokens"}]},
    "refused": {"turns": [{"error": {"class": "auth", "message": "bad key", "retryable": False}}]},
    "endless": {"turns": [{"deltas": ["."] * 2000, "delay_ms": 100}]},
    "json": {"turns": [{"text": '{"city": "Oslo", "degrees": 4}'}]},
    "attached": {"turns": [{"text": "{{attachments}}"}]},
    "echo": {"turns": [{"text": "{{user_messages}}"}]},
    "peer": {
        "turns": [
            {"tool_calls": [{"name": "peer", "args": {"message": "first"}}]},
            {"tool_calls": [{"name": "peer", "args": {"message": "second"}}]},
            {"text": "{{all_tool_results}} {{tool_desc.peer}}"},
        ]
    },
    "mcp": {
        "turns": [
            {
                "tool_calls": [
                    {"name": "get_weather", "args": {"city": "Oslo"}},
                    {"name": "add", "args": {"a": 2, "b": 3}},
                ]
            },
            {"text": "{{all_tool_results}}"},
        ]
    },
    "mcp_fails": {"turns": [{"tool_calls": [{"name": "fail", "args": {}}]}, {"text": "{{tool_results.0}}"}]},
}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A real server, for all tests of the client."""
    with ServerProcess(tmp_path_factory.mktemp("server"), scripts=SCRIPTS) as process:
        yield process


@pytest.fixture(scope="session")
def key(server: ServerProcess) -> str:
    return server.create_key("acme")


@pytest.fixture
async def client(server: ServerProcess, key: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(api_key=key, workspace="acme", base_url=server.url, retry=QUICK) as client:
        yield client


@pytest.fixture
def sync_client(server: ServerProcess, key: str) -> Iterator[Client]:
    with Client(api_key=key, workspace="acme", base_url=server.url, retry=QUICK) as client:
        yield client


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


@pytest.fixture
async def to_stand_in(stand_in: StandIn) -> AsyncIterator[AsyncClient]:
    """A client of the stand-in."""
    async with AsyncClient(api_key="key", workspace="acme", base_url=stand_in.url, retry=QUICK) as client:
        yield client

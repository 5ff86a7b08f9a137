"""Where the runs are played that are recorded: a store, an engine with all agents, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from msgspec import json

from agent.kit import key_of
from weftline import Agent, Engine
from weftline.agent.run import Run
from weftline.events.frames import payload_of
from weftline.kernel.entries import Fact, decode_fact
from weftline.providers.base import ModelRequest
from weftline.runtime.reads.calls import entries

from . import cast
from .http_client import HttpClient

PATIENCE_S = 60


class Stage:
    """A store, and an engine on it with all agents."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.requests: list[ModelRequest] = []
        """What the models were asked, in all processes so far."""
        self.runs: list[str] = []
        """The runs of the present scenario."""
        self.tokens: dict[str, str] = {}
        """By run: the token of a lease that it was left with."""

    async def open(self, *, deployed: bool = False) -> None:
        provider = cast.Provider()
        provider.requests = self.requests
        agents = cast.agents(deployed=deployed)
        self.engine = Engine(
            self._folder,
            agents=agents,
            models=cast.catalog(provider),
            drain_s=0,
            code_version="2" if deployed else "1",
        )
        self._agents = {agent.name: agent for agent in agents}
        await self.engine.__aenter__()

    async def close(self) -> None:
        await self.engine.close()

    async def restart(self, *, deployed: bool = False) -> None:
        await self.close()
        await self.open(deployed=deployed)

    def agent(self, name: str) -> Agent[Any, Any]:
        return self._agents[name]

    async def start(self, name: str, prompt: str = "Go.", **options: Any) -> Run[Any]:
        run = await self.engine.start(self.agent(name), prompt, metadata={"who": "Ann"}, **options)
        self.runs.append(run.id)
        return run

    async def client(self) -> HttpClient:
        """A client of the HTTP API."""
        return await HttpClient.of(self.engine)

    async def created(self, client: HttpClient, model: str, **spec: Any) -> Run[Any]:
        """A run that a client has created."""
        reply = await client.post("agent-runs", {"modelId": f"scripted:{model}", "prompt": "Go.", **spec})
        return self.watched(reply["runId"])

    def watched(self, run_id: str) -> Run[Any]:
        """A run of the scenario that was not started here."""
        self.runs.append(run_id)
        return self.engine.attach(run_id)

    def again(self, run: Run[Any]) -> Run[Any]:
        """The run, after a restart."""
        return self.engine.attach(run.id)

    async def until(self, run: Run[Any], kind: str, *, times: int = 1) -> Fact:
        """Returns the fact of this kind, when it is durable."""
        host = await self.engine.runtime()
        follower = host.follow(await self.key(run), run.id)
        found: list[Fact] = []
        try:
            while (batches := await follower.next()) is not None:
                heads = [item.head for batch in batches for item in batch.items if item.kind == kind]
                found += [decode_fact.decode(head) for head in heads]
                if len(found) >= times:
                    return found[times - 1]
        finally:
            follower.close()
        raise AssertionError(f"{run.id} has ended without {kind}")

    async def key(self, run: Run[Any]) -> int:
        return await key_of(self.engine, run.id)

    async def offers(self, run: Run[Any], call: str) -> AsyncIterator[dict[str, Any]]:
        """The events so far that offer a call to clients."""
        host = await self.engine.runtime()
        async for item in entries(host.stored.logs, await self.key(run)):
            if item.kind in ("call.opened", "call.unclaimed"):
                event = payload_of(decode_fact.decode(item.head), item.body, run_id=run.id)
                if event is not None and (offer := json.decode(event[1]))["toolUseId"] == call:
                    yield offer

    async def asked(self, run: Run[Any], *, times: int = 1) -> str:
        """Returns the id of the run's await."""
        opened: Any = await self.until(run, "await.opened", times=times)
        return str(opened.id)

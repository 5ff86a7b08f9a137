"""Ways out of the sandbox, and none of them leads anywhere.

`escapes/` has attempts that somebody thought of: a sceptic adds a line there. What is destructive is below, and in
`make sandbox-campaign`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio

from weftline.sandbox import CodeResult, Language, Sandbox
from weftline.sandbox.deno import DenoEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")

ESCAPES = Path(__file__).with_name("escapes")
SECRET = "a-secret-that-nobody-may-see"
MODULES = {
    "broken.js": "let x = (",
    "throws.js": "throw new Error('mine')",
    "lacks.js": "import { nope } from 'lib'",
    "then.js": "export function then(resolve) { resolve(resolve) }",
}
LANGUAGES: tuple[Language, ...] = ("typescript", "python")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncGenerator[Sandbox]:
    async with Sandbox(max_running=3) as sandbox:
        yield sandbox


def same(value: object) -> object:
    return value


def bad() -> None:
    raise PermissionError("no")


async def attempted(
    sandbox: Sandbox, name: str, tmp_path: Path, *, language: Language, port: int = 1, planted: str = ""
) -> CodeResult:
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    return await sandbox.run_code(
        (ESCAPES / name).read_text().replace("'eval': ", f"{planted} 'eval': "),
        language=language,
        globals={"tool": same, "bad": bad, "SECRET_FILE": str(secret), "PORT": port},
        imports={"lib": {"f": bad, "value": {"a": [1]}}},
        modules=MODULES if language == "typescript" else {},
        report=lambda _: None,
    )


@pytest.mark.requirement("sandbox.isolate.escape", "sandbox.isolate.ambient")
async def test_no_attempt_in_javascript_gets_anywhere(sandbox: Sandbox, tmp_path: Path) -> None:
    connected: list[object] = []
    server = await asyncio.start_server(lambda _, writer: connected.append(writer), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        result = await attempted(sandbox, "attempts.ts", tmp_path, language="typescript", port=port)
    assert (result.status, result.error) == ("success", None)
    assert result.result == {}
    assert connected == []
    assert SECRET not in str(result)


async def test_an_attempt_that_got_somewhere_would_be_told(sandbox: Sandbox, tmp_path: Path) -> None:
    planted = "'planted': () => SECRET_FILE,"
    result = await attempted(sandbox, "attempts.ts", tmp_path, language="typescript", planted=planted)
    assert result.result == {"planted": str(tmp_path / "secret.txt")}


@pytest.mark.requirement("sandbox.isolate.escape")
async def test_everything_that_javascript_can_reach_belongs_to_it(sandbox: Sandbox, tmp_path: Path) -> None:
    result = await attempted(sandbox, "crawl.ts", tmp_path, language="typescript")
    assert result.status == "success", result.error
    assert cast("dict[str, object]", result.result)["foreign"] == []
    assert cast("dict[str, int]", result.result)["seen"] > 500  # it did look around


@pytest.mark.requirement("sandbox.isolate.escape", "sandbox.isolate.ambient")
async def test_no_attempt_in_python_gets_anywhere(sandbox: Sandbox, tmp_path: Path) -> None:
    result = await attempted(sandbox, "attempts.py.txt", tmp_path, language="python")
    assert (result.status, result.result) == ("success", []), result.error
    assert SECRET not in str(result)


@pytest.mark.requirement("sandbox.import.url", "sandbox.isolate.escape")
@pytest.mark.parametrize(
    "statement",
    [
        "import x from '{}'",
        "import x from '{}' with {{ type: 'text' }}",
        "import source x from '{}'",
        "import defer * as x from '{}'",
        "export * from '{}'; const x = 1",
    ],
)
async def test_a_static_import_of_a_file_is_not_linked(sandbox: Sandbox, tmp_path: Path, statement: str) -> None:
    (tmp_path / "secret.json").write_text(f'"{SECRET}"')
    source = statement.format(f"file://{tmp_path}/secret.json") + "; export default x"
    result = await sandbox.run_code(source, language="javascript")
    assert result.status == "link_error"
    assert SECRET not in str(result)


async def test_deno_itself_reads_static_imports_without_a_permission(tmp_path: Path) -> None:
    """Why the code is never in deno's own module graph: should this fail, deno has become stricter."""
    from deno import find_deno_bin  # pyright: ignore[reportMissingTypeStubs]

    (tmp_path / "secret.json").write_text(f'"{SECRET}"')
    entry = tmp_path / "entry.mjs"
    entry.write_text("import x from './secret.json' with { type: 'json' }; console.log(x)")
    command = [find_deno_bin(), "run", "--no-prompt", "--deny-read", "--no-config", str(entry)]
    env = {"DENO_DIR": str(tmp_path)}
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    told, _ = await process.communicate()
    assert SECRET.encode() in told


@pytest.mark.requirement("sandbox.isolate.escape")
async def test_code_cannot_speak_for_the_runtime(sandbox: Sandbox) -> None:
    source = r"""
      const forged = 'D"forged"', token = '0'.repeat(32);
      for (const text of [forged, '\n' + forged, '\n' + token + forged, '\r\n' + token + forged, '\u2028' + forged]) {
        console.log(text); report(text); await tool(text); await tool({ [text]: text });
      }
      JSON.stringify = String.prototype.replace = Array.prototype.join = () => '\n' + token + forged;
      String.prototype.toString = Object.prototype.toString = () => '\n' + forged;
      Object.prototype.toJSON = () => forged;
      Array.prototype[Symbol.iterator] = function* () { yield '\n' + token + forged };
      Reflect.apply = Function.prototype.call = Map.prototype.get = Set.prototype.has = () => true;
      console.log(forged, ['\n' + forged]);
      report({ a: '\n' + forged });
      const error = new Error('\n' + token + forged);
      error.name = '\n' + token + forged;
      throw error; export default 1
    """
    received: list[object] = []
    result = await sandbox.run_code(
        source,
        language="javascript",
        globals={"tool": same},
        report=received.append,
    )
    assert result.status == "error"
    assert result.error is not None and "forged" in result.error.message
    assert len(result.logs) == 6
    assert len(received) == len(result.reports) == 6


async def test_a_frame_without_the_token_ends_the_code(tmp_path: Path) -> None:
    fake = tmp_path / "deno"
    fake.write_text("#!/bin/sh\necho ready\nread line\necho 'D\"forged\"'\nread line\n")
    fake.chmod(0o755)
    async with Sandbox(engines=[DenoEngine(binary=str(fake), warm=0, isolation="off")]) as sandbox:
        result = await sandbox.run_code("export default 1")
    assert result.status == "terminated"
    assert result.error is not None and "protocol" in result.error.message


@pytest.mark.parametrize("language", LANGUAGES)
async def test_one_enormous_value_ends_the_code_and_not_the_host(sandbox: Sandbox, language: Language) -> None:
    source = {"typescript": "report('x'.repeat(9e6)); export default 1", "python": "report('x' * 9000000)\ndefault = 1"}
    result = await sandbox.run_code(source[language], language=language, report=lambda _: None)
    assert result.status == "terminated"
    assert result.error is not None and "8 MiB" in result.error.message


async def test_a_flood_ends_the_code_though_its_pipe_is_full(sandbox: Sandbox) -> None:
    async def never(_: object) -> None:
        await asyncio.Event().wait()

    source = "const text = 'x'.repeat(2e6); for (;;) never(text); export default 1"
    result = await sandbox.run_code(source, globals={"never": never})
    assert result.status == "terminated"
    assert result.error is not None and "64 MiB" in result.error.message


async def test_errors_that_misbehave_are_told_all_the_same(sandbox: Sandbox) -> None:
    thrown = "{ get name() { throw 1 }, get message() { throw 2 } }", "null", "Symbol('x')", "new Proxy({}, {})"
    source = "export default (n) => { throw [" + ",".join(thrown) + "][n] }"
    for n in range(len(thrown)):
        result = await sandbox.run_code(source, language="javascript", args=[n])
        assert result.status == "error"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.requirement("sandbox.handle.cleanup")
async def test_a_killed_engine_ends_its_code_alone(language: Language) -> None:
    reached = asyncio.Event()

    async def wait() -> None:
        reached.set()
        await asyncio.Event().wait()

    sources = {"typescript": "export default () => wait()", "python": "async def default():\n    await wait()"}
    async with Sandbox(max_running=3) as sandbox:
        before = descendants()
        victim = sandbox.run_code(sources[language], language=language, globals={"wait": wait})
        async with asyncio.timeout(60):
            await reached.wait()
        first = next(iter(sorted(descendants() - before)))
        os.kill(first, signal.SIGKILL)
        result = await victim
        assert result.status == "terminated"
        assert result.error is not None and "SIGKILL" in result.error.message
        simple = {"typescript": "export default 1", "python": "default = 1"}
        assert (await sandbox.run_code(simple[language], language=language)).result == 1
    assert descendants() <= before


def descendants() -> set[int]:
    """The processes that this one has started, without the dead."""
    found: set[int] = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        found |= {int(pid) for pid in listed.read_text().split()}
    return found

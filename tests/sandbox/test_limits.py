"""What code can cost its host, and what it can get of somebody else's."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from weftline.sandbox import Sandbox, conversation
from weftline.sandbox.monty import MontyEngine
from weftline.sandbox.process import Pool, Program

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncGenerator[Sandbox]:
    async with Sandbox(max_running=3) as sandbox:
        yield sandbox


def same(value: object) -> object:
    return value


@pytest.mark.parametrize(
    "statement",
    [
        "default = huge",
        "report(huge)\ndefault = 1",
        "tool(huge)\ndefault = 1",
        "default = [print(one, end='') for one in huge]",
    ],
)
async def test_a_value_counts_as_often_as_it_occurs(sandbox: Sandbox, statement: str) -> None:
    source = f"text = 'x' * 1000000\nhuge = [text] * 3000\n{statement}"
    result = await sandbox.run_code(source, language="python", globals={"tool": same}, report=lambda _: None)
    assert result.status in ("terminated", "memory")


async def test_long_integers_count_as_many_parts(sandbox: Sandbox) -> None:
    """Reading them costs the square of their digits: a value with two thousand held the event loop for a second."""
    many = await sandbox.run_code("export default () => Array(200).fill(10n ** 3999n)")
    assert many.status == "terminated" and "parts" in str(many.error)
    assert (await sandbox.run_code("export default () => Array(20).fill(10n ** 3999n)")).result == [10**3999] * 20


@pytest.mark.parametrize("statement", ["console.log(huge)\ndefault = 1", "from lib import f\nf(huge)\ndefault = 1"])
async def test_the_process_between_has_a_limit_of_its_own(sandbox: Sandbox, statement: str) -> None:
    source = f"text = 'x' * 1000000\nhuge = [text] * 3000\n{statement}"
    result = await sandbox.run_code(source, language="python", imports={"lib": {"f": same}})
    assert result.status in ("terminated", "memory")
    assert (await sandbox.run_code("default = 1", language="python")).result == 1


async def test_an_answer_that_comes_late_answers_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "CALLS_END_S", 0.0)
    begun, other, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn() -> object:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await other.wait()
        finished.set()
        return "a secret of the first"

    async def slow() -> object:
        other.set()
        await finished.wait()
        return "the second's own"

    async with Sandbox(engines=[MontyEngine(warm=0)]) as sandbox, asyncio.timeout(60):
        first = "async def default():\n    stubborn()\n    return await ready()"
        given = {"stubborn": stubborn, "ready": begun.wait}
        assert (await sandbox.run_code(first, language="python", globals=given)).result is True
        second = "async def default():\n    return await slow()"
        result = await sandbox.run_code(second, language="python", globals={"slow": slow})
    assert result.result == "the second's own"


async def test_the_names_of_the_runtime_are_not_the_codes(sandbox: Sandbox) -> None:
    for source in ("def __weftline_run(*args):\n    return 1", "__weftline_report(1)", "import lib as __weftline_out"):
        result = await sandbox.run_code(f"default = 1\n{source}", language="python", imports={"lib": {}})
        assert result.status == "link_error"


@pytest.mark.parametrize(
    ("language", "source"),
    [("typescript", "export default new Array(300000).fill({})"), ("python", "default = [{}] * 300000")],
)
async def test_a_value_has_so_many_parts_and_no_more(sandbox: Sandbox, language: str, source: str) -> None:
    result = await sandbox.run_code(source, language=language)
    assert result.status == "error"
    assert result.error is not None and "200,000 parts" in result.error.message


async def test_keys_with_half_a_character_do_not_become_one(sandbox: Sandbox) -> None:
    result = await sandbox.run_code("export default { '\\ud800': 1, '\\ud801': 2 }")
    assert result.status == "error"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what state a process is in")
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
async def test_process_that_was_ended_or_stopped_is_not_used(sent: signal.Signals) -> None:
    pool = Pool(
        lambda _: Program(args=("/bin/sh", "-c", "echo ready; read line"), readable=()), warm=0, isolation="off"
    )
    engine = await pool.take()
    await pool.release(engine)
    os.kill(engine.pid, sent)
    async with asyncio.timeout(60):
        while engine.waits:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.001)
    other = await pool.take()
    assert other is not engine and other.waits
    await other.kill()
    await pool.close()


@pytest.mark.skipif(not (shutil.which("setpriv") or shutil.which("bwrap")), reason="needs setpriv or bubblewrap")
@pytest.mark.parametrize(
    ("language", "source"),
    [
        ("typescript", "import { begun } from 'host'; await begun(); for (;;); export default 1"),
        ("python", "from host import begun\nawait begun()\nwhile True:\n    pass\ndefault = 1"),
    ],
)
async def test_a_tight_loop_ends_with_a_host_that_is_killed(language: str, source: str) -> None:
    host = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOST, language, source),
        stdout=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.DEVNULL,
    )
    assert host.stdout is not None
    async with asyncio.timeout(60):
        engine = int(await host.stdout.readline())
        assert await host.stdout.readline() == b"begun\n"
        loops = [engine, *children_of(engine)]
        assert len(loops) > 1 or language == "typescript"  # a worker has its interpreters as children
        host.kill()
        await host.wait()
        while not all(map(has_ended, loops)):  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.001)


def children_of(pid: int) -> list[int]:
    return [
        int(child) for listed in Path(f"/proc/{pid}/task").glob("*/children") for child in listed.read_text().split()
    ]


def has_ended(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


HOST = """
import asyncio, sys
from weftline.sandbox import Sandbox, process
from weftline.sandbox.deno import DenoEngine
from weftline.sandbox.monty import MontyEngine

async def begun():
    print("begun", flush=True)

async def main():
    taken = process.Pool.take
    async def told(self, limit=None):
        engine = await taken(self, limit)
        print(engine.pid, flush=True)
        return engine
    process.Pool.take = told
    sandbox = Sandbox(engines=[DenoEngine(warm=0), MontyEngine(warm=0)], safety_cap_s=100)
    await sandbox.run_code(sys.argv[2], language=sys.argv[1], imports={"host": {"begun": begun}})

asyncio.run(main())
"""


ODD_VALUES = {
    "javascript": {
        "new Proxy({}, {ownKeys() { throw 1 }})": "1",
        "(() => { const {proxy, revoke} = Proxy.revocable([], {}); revoke(); return {a: [proxy]} })()": (
            "result.a[0]: a proxy that was revoked cannot leave the sandbox"
        ),
        "(() => { const u = new Uint8Array(4); u.buffer.transfer(); return [u] })()": (
            "result[0]: bytes that were given away cannot leave the sandbox"
        ),
        "({a: {[Symbol('x')]: 1}})": "result.a: a key that is a symbol cannot leave the sandbox",
    },
    "python": {"locals()": "name 'locals' is not defined"},
}


@pytest.mark.parametrize("language", ODD_VALUES)
async def test_odd_values_are_refused_with_their_path(sandbox: Sandbox, language: str) -> None:
    for value, message in ODD_VALUES[language].items():
        source = f"def default():\n    return {value}" if language == "python" else f"export default () => {value}"
        result = await sandbox.run_code(source, language=language)
        assert (result.status, result.error and result.error.message) == ("error", message)


async def test_large_numbers_of_javascript_are_the_same_numbers_here(sandbox: Sandbox) -> None:
    source = "export default [2 ** 53, 2 ** 63, -(2 ** 64), 1e20, 1e21, 2 ** 53 - 1, 1.5]"
    result = await sandbox.run_code(source, language="javascript")
    assert result.result == [2**53, 2**63, -(2**64), 10**20, 1e21, 2**53 - 1, 1.5]


TREE = {
    "javascript": "let a = []; for (let n = 0; n < 30; n++) a = [a, a];\nconsole.log(a, 2);\nexport default 1",
    "python": "a = []\nfor n in range(30):\n    a = [a, a]\nconsole.log(a, 10 ** 5000)\ndefault = 1",
}


@pytest.mark.parametrize("language", TREE)
async def test_a_log_of_something_enormous_is_a_short_text(sandbox: Sandbox, language: str) -> None:
    result = await sandbox.run_code(TREE[language], language=language)
    assert result.status == "success", result.error
    assert result.logs[0].args == ("a list of 2", "2" if language == "javascript" else "an integer that is too long")


async def test_code_that_monty_reads_differently_is_refused_by_name(sandbox: Sandbox) -> None:
    for source, message in (
        ("default = {'\\ud800': 1, '\\ud801': 2}", "Monty does not support unpaired surrogates"),
        (f"default = {'-' * 100_000}1", "the code is too long, or nested too deeply"),
    ):
        result = await sandbox.run_code(source, language="python")
        assert (result.status, result.error and result.error.message) == ("link_error", message)


async def test_print_writes_to_the_callers_console_if_there_is_one(sandbox: Sandbox) -> None:
    heard: list[object] = []
    result = await sandbox.run_code(
        "print('a', 1)\nconsole.log('b')\ndefault = 1", language="python", globals={"console": {"log": heard.append}}
    )
    assert (heard, result.logs) == (["a 1", "b"], ())


PLACES = {
    "javascript": "await f(1);\nexport default async () => {\n  await f(-1);\n};",
    "python": "await f(1)\nasync def default():\n    await f(-1)",
}


@pytest.mark.parametrize("language", PLACES)
async def test_failure_of_host_function_has_place_of_its_call(sandbox: Sandbox, language: str) -> None:
    def f(n: int) -> int:
        if n < 0:
            raise ValueError("too little")
        return n

    error = (await sandbox.run_code(PLACES[language], language=language, globals={"f": f})).error
    assert error is not None and (error.name, error.message, error.filename, error.line) == (
        "ValueError",
        "too little",
        "<runCode>",
        3,
    )


async def test_import_of_source_phase_does_not_crash_engine(sandbox: Sandbox) -> None:
    modules = {"./a.js": "export const a = 1", "./b.js": "import source a from './a.js'"}
    result = await sandbox.run_code("import source a from './a.js'\nexport default 1", modules=modules)
    assert (result.status, result.error and result.error.specifier) == ("link_error", "./a.js")
    late = "export default await import('./b.js').catch((e) => e.name)"
    assert (await sandbox.run_code(late, modules=modules)).result == "TypeError"


async def test_simultaneous_imports_of_a_module_do_not_interfere(sandbox: Sandbox) -> None:
    modules = {"./a.js": "import './b.js'; export const a = 1", "./b.js": "export const b = 2", "./c.js": "import 'no'"}
    source = """
const all = await Promise.allSettled(["./a.js", "./b.js", "./c.js", "./a.js", "./c.js"].map((path) => import(path)));
export default all.map((one) => one.reason ? one.reason instanceof TypeError : Object.keys(one.value));
"""
    result = await sandbox.run_code(source, modules=modules)
    assert result.result == [["a"], ["b"], True, ["a"], True]

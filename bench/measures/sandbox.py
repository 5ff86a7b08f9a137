"""Code in a sandbox: to the result, warm and cold; a call to the host; the end of a tight loop; idle memory; tools."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.machine import Machine
from bench.rows import Row
from weftline import Agent, Engine, Limits, code, tool
from weftline.sandbox import Language, Sandbox
from weftline.sandbox.base import CodeEngine
from weftline.sandbox.deno import DenoEngine
from weftline.sandbox.monty import MontyEngine
from weftline.testing import ScriptedModel, calls

CALLS = 2000
ONE: dict[Language, str] = {"typescript": "export default 1", "python": "default = 1"}
MANY: dict[Language, str] = {
    "typescript": "export default async (n: number) => { for (let i = 0; i < n; i++) await tool(i) }",
    "python": "async def default(n):\n    for i in range(n):\n        await tool(i)",
}
ENDLESS: dict[Language, str] = {
    "typescript": "report(1); for (;;); export default 1",
    "python": "report(1)\nwhile True:\n    pass\ndefault = 1",
}
WARM_S = 1.0
"""Long enough for the processes that wait to be there again."""


def sandbox(machine: Machine) -> list[Row]:
    return asyncio.run(_rows(machine.rounds(7)))


async def _rows(rounds: int) -> list[Row]:
    rows: list[Row] = []
    for language in ONE:
        name = "TypeScript" if language == "typescript" else "Python"
        bare = await asyncio.to_thread(_bare_ms) if language == "typescript" else None
        cold = [await _cold_ms(language) for _ in range(rounds)]
        rows.append(
            Row(f"{name}, cold", "ms", "less", tuple(cold), floor=bare, note="floor: deno --version" if bare else "")
        )
        async with Sandbox() as warm:
            await warm.run_code(ONE[language], language=language)
            first, calls, kills = list[float](), list[float](), list[float]()
            for _ in range(rounds):
                await asyncio.sleep(WARM_S)
                first.append((await warm.run_code(ONE[language], language=language)).duration_ms)
                calls.append(await _call_us(warm, language))
                await asyncio.sleep(WARM_S)
                kills.append(await _kill_ms(warm, language))
            await asyncio.sleep(WARM_S)
            idle = _idle_mb()
        rows.append(Row(f"{name}, warm", "ms", "less", tuple(first), reach=15))
        rows.append(Row(f"{name}, a call to the host", "µs", "less", tuple(calls)))
        rows.append(Row(f"{name}, the end of a tight loop", "ms", "less", tuple(kills), reach=50))
        rows.append(Row(f"{name}, an idle engine", "MB", "less", (idle,), note="resident, shared pages included"))
    rows += await _tool_rows(rounds)
    return rows


TEN = "for (let n = 0; n < 10; n++) await note({n}); export default 'ok'"


@tool(effect="once")
async def note(n: int) -> str:
    """Notes a number."""
    return str(n)


async def _tool_rows(rounds: int) -> list[Row]:
    """Ten durable calls of a tool, by code and by the model itself, which answers at once here."""
    turns = [calls("note", n=n) for n in range(10)]
    by_model = [await _run_ms([*turns, "Done."]) for _ in range(rounds)]
    by_code = [await _run_ms([calls("code", code=TEN), "Done."]) for _ in range(rounds)]
    return [
        Row("10 calls in 10 turns", "ms", "less", tuple(by_model), note="and 11 answers of a model"),
        Row("10 calls from code", "ms", "less", tuple(by_code), note="and 2 answers of a model"),
    ]


async def _run_ms(script: list[Any]) -> float:
    agent = Agent(ScriptedModel(script), name="bench", tools=[note, code()], limits=Limits(loop_soft=0))
    with TemporaryDirectory() as folder:
        async with Engine(folder, agents=[agent]) as engine:
            await (await engine.start(agent, "Go.")).result()  # so that processes wait for code
            await asyncio.sleep(WARM_S)
            begun = time.perf_counter()
            await (await engine.start(agent, "Go.")).result()
            return (time.perf_counter() - begun) * 1000


def _bare_ms() -> float:
    from deno import find_deno_bin  # pyright: ignore[reportMissingTypeStubs]

    begun = time.perf_counter()
    subprocess.run([find_deno_bin(), "--version"], check=True, capture_output=True)
    return (time.perf_counter() - begun) * 1000


async def _cold_ms(language: Language) -> float:
    engine: CodeEngine = DenoEngine(warm=0) if language == "typescript" else MontyEngine(warm=0)
    async with Sandbox(engines=[engine]) as cold:
        return (await cold.run_code(ONE[language], language=language)).duration_ms


async def _call_us(sandbox: Sandbox, language: Language) -> float:
    took = [
        (await sandbox.run_code(MANY[language], language=language, args=[n], globals={"tool": _same})).duration_ms
        for n in (0, CALLS)
    ]
    return max(0.0, took[1] - took[0]) * 1000 / CALLS


async def _same(value: object) -> object:
    return value


async def _kill_ms(sandbox: Sandbox, language: Language) -> float:
    began = asyncio.Event()
    execution = sandbox.run_code(ENDLESS[language], language=language, report=lambda _: began.set())
    await began.wait()
    begun = time.perf_counter()
    execution.terminate()
    await execution
    return (time.perf_counter() - begun) * 1000


def _idle_mb() -> float:
    """Of one engine that waits, with what it has started."""
    sizes = [_resident_mb(pid) for pid in _children("self")]
    return sum(sizes) / len(sizes) if sizes else 0.0


def _resident_mb(pid: str) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    own = int(text.split("VmRSS:")[1].split()[0]) / 1024 if "VmRSS:" in text else 0.0
    return own + sum(_resident_mb(child) for child in _children(pid))


def _children(pid: str) -> list[str]:
    return [child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]

"""`python -m campaigns.sandbox`: crowds, floods, bombs and kills, while the host must stay responsive.

This takes minutes of CPU time; the test suite has a short version.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from weftline.sandbox import CodeResult, Language, Sandbox

SIMPLE: dict[Language, str] = {
    "typescript": "export default async (n: number) => (await tool(n)) + 1",
    "python": "async def default(n):\n    return await tool(n) + 1",
}


class Bomb(Struct, frozen=True):
    """Harmful code, and how it may end."""

    name: str
    language: Language
    source: str
    ends: Sequence[str]


BOMBS = (
    Bomb("logs without end", "typescript", "for (;;) console.log('x'.repeat(999)); export default 1", ["terminated"]),
    Bomb("logs without end", "python", "while True:\n    print('x' * 999)\ndefault = 1", ["terminated"]),
    Bomb("reports without end", "typescript", "for (;;) report(1); export default 1", ["terminated"]),
    Bomb("reports without end", "python", "while True:\n    report(1)\ndefault = 1", ["terminated"]),
    Bomb(
        "calls without end", "typescript", "for (;;) tool('x'.repeat(999)); export default 1", ["terminated", "memory"]
    ),
    Bomb("calls without an answer", "typescript", "for (;;) never(1); export default 1", ["terminated", "memory"]),
    Bomb("a large value to a call", "typescript", "await tool('x'.repeat(9e6)); export default 1", ["terminated"]),
    Bomb("a promise without end", "typescript", "await new Promise(() => {}); export default 1", ["terminated"]),
    Bomb("microtasks without end", "typescript", "for (;;) await null; export default 1", ["terminated"]),
    Bomb("a slow expression", "typescript", "export default /(a+)+$/.test('a'.repeat(60) + '!')", ["terminated"]),
    Bomb(
        "strings",
        "typescript",
        "const a = []; for (;;) a.push('x'.repeat(1e6) + a.length); export default 1",
        ["memory"],
    ),
    Bomb(
        "flat strings",
        "typescript",
        "const a = []; for (;;) a.push([...'x'.repeat(1e5)]); export default 1",
        ["memory"],
    ),
    Bomb(
        "buffers",
        "typescript",
        "const a = []; for (;;) a.push(new Uint8Array(1e7).fill(1)); export default 1",
        ["memory"],
    ),
    Bomb("one buffer", "typescript", "export default new ArrayBuffer(4e9).byteLength", ["memory", "error"]),
    Bomb(
        "promises",
        "typescript",
        "const a = []; for (;;) a.push(new Promise(() => {})); export default 1",
        ["memory", "terminated"],
    ),
    Bomb("depth", "typescript", "let a = []; for (let i = 0; i < 1e6; i++) a = [a]; export default a", ["error"]),
    Bomb("breadth", "typescript", "export default new Array(5e6).fill(1)", ["error"]),
    Bomb("a large integer", "typescript", "export default 7n ** 200000n", ["error"]),
    Bomb("recursion", "typescript", "const f = () => f(); export default f", ["error"]),
    Bomb("lists", "python", "a = []\nwhile True:\n    a.append('x' * 9999)\ndefault = 1", ["memory"]),
    Bomb("a large power", "python", "default = 9 ** 9 ** 9", ["memory", "error", "terminated"]),
    Bomb("recursion", "python", "def default():\n    return default()", ["error"]),
    Bomb("depth", "python", "a = []\nfor i in range(100000):\n    a = [a]\ndefault = a", ["error", "terminated"]),
    Bomb("parentheses", "python", "default = " + "(" * 5000 + ")" * 5000, ["link_error"]),
    Bomb("unary operators", "python", "default = " + "-" * 100000 + "1", ["link_error", "error"]),
    Bomb(
        "parentheses",
        "typescript",
        "export default " + "(" * 20000 + "1" + ")" * 20000,
        ["link_error", "terminated", "memory"],
    ),
)


class Heart:
    """Beats on the host's loop and remembers its longest pause."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def beat(self) -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.005)
            self.longest_s = max(self.longest_s, time.perf_counter() - begun - 0.005)


async def tool(value: object) -> object:
    return value


async def never(_: object) -> None:
    await asyncio.Event().wait()


async def run(sandbox: Sandbox, language: Language, n: int, owner: str) -> CodeResult:
    return await sandbox.run_code(SIMPLE[language], language=language, args=[n], globals={"tool": tool}, owner=owner)


async def crowd(sandbox: Sandbox, count: int, faults: list[str]) -> None:
    for language in SIMPLE:
        begun = time.perf_counter()
        ends: dict[str, float] = {}

        owners = ["few" if n % 50 == 49 else "many" for n in range(count)]
        work = [asyncio.ensure_future(run(sandbox, language, n, owner)) for n, owner in enumerate(owners)]
        for owner, one in zip(owners, work, strict=True):
            one.add_done_callback(lambda _, owner=owner, ends=ends, begun=begun: _note(ends, owner, begun))
        for n, result in enumerate(await asyncio.gather(*work)):
            if (result.status, result.result) != ("success", n + 1):
                faults.append(f"{language} {n}: {result.status} {result.error}")
        took = time.perf_counter() - begun
        if ends["few"] > took / 2:
            faults.append(f"{language}: an owner with few pieces of code waited {ends['few']:.1f} s of {took:.1f} s")
        print(f"{language}: {count} at once in {took:.1f} s; an owner with few had all after {ends['few']:.1f} s")


def _note(ends: dict[str, float], owner: str, begun: float) -> None:
    ends[owner] = time.perf_counter() - begun


async def bombs(sandbox: Sandbox, faults: list[str]) -> None:
    for bomb in BOMBS:
        begun = time.perf_counter()
        result = await sandbox.run_code(
            bomb.source, language=bomb.language, globals={"tool": tool, "never": never}, report=lambda _: None
        )
        took = time.perf_counter() - begun
        if result.status not in bomb.ends:
            faults.append(f"{bomb.name} ({bomb.language}) ended as {result.status}: {result.error}")
        print(f"{bomb.name} ({bomb.language}): {result.status} after {took:.1f} s")
        alive = await run(sandbox, bomb.language, 1, "")
        if alive.result != 2:
            faults.append(f"after {bomb.name} ({bomb.language}): {alive.status} {alive.error}")


async def kills(sandbox: Sandbox, count: int, chance: random.Random, faults: list[str]) -> None:
    """Engine processes are killed at random: each takes down the code that it runs, and nothing else."""
    languages: list[Language] = [chance.choice(tuple(SIMPLE)) for _ in range(count)]
    work = [asyncio.ensure_future(run(sandbox, one, n, str(n % 7))) for n, one in enumerate(languages)]
    killed = 0
    while not all(one.done() for one in work):
        await asyncio.sleep(0.05)
        if children := engines():
            os.kill(chance.choice(children), signal.SIGKILL)
            killed += 1
    ended = Counter(one.result().status for one in work)
    if ended["terminated"] > killed or ended["success"] + ended["terminated"] != count:
        faults.append(f"{killed} processes were killed and the code ended as {dict(ended)}")
    print(f"kills: {killed} processes, {dict(ended)}")


def engines() -> list[int]:
    listed = (path.read_text().split() for path in Path("/proc/self/task").glob("*/children"))
    return [int(pid) for pids in listed for pid in pids]


async def campaign(args: argparse.Namespace) -> int:
    faults: list[str] = []
    heart = Heart()
    beating = asyncio.create_task(heart.beat())
    async with Sandbox(safety_cap_s=args.cap) as sandbox:
        await bombs(sandbox, faults)
    async with Sandbox() as sandbox:
        await crowd(sandbox, args.count, faults)
        await kills(sandbox, args.count // 5, random.Random(args.seed), faults)
    beating.cancel()
    if left := engines():
        faults.append(f"{len(left)} processes are left")
    print(f"the host's longest pause: {heart.longest_s * 1000:.0f} ms")
    for fault in faults:
        print(f"FAULT: {fault}")
    print(f"{len(faults)} faults")
    return 1 if faults else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m campaigns.sandbox", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="pieces of code at once")
    parser.add_argument("--cap", type=float, default=5.0, help="the safety cap for bombs, in seconds")
    parser.add_argument("--seed", type=int, default=1, help="which processes are killed")
    return asyncio.run(campaign(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())

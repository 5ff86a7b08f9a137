"""Values across the boundary: plain data, in both directions, as it was at the time of the call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime

from weftline.testing.sandbox.bench import Bench, Check, Gate, error_of, is_refused, settled, value_of

PLAIN: dict[str, object] = {
    "none": None,
    "yes": True,
    "no": False,
    "integers": [0, -1, 2**53 - 1, 2**53, -(2**53), 2**100],
    "floats": [1.5, -0.25, 1e300, 5e-324],
    "text": "é \U0001f600 \u2028 \x00 \\ \"'",
    "bytes": b"\x00\xff text",
    "empty": [{}, [], "", b""],
    "keys": {"": 1, "$b": "not bytes", "$i": "1", "$o": {"$f": 0}, "__proto__": {"x": 1}, "a b": 2, "constructor": 3},
    "nested": [[[{"deep": [None]}]]],
}


async def plain_data_crosses_both_ways_unchanged(bench: Bench) -> None:
    echoed: list[object] = []

    def echo(value: object) -> object:
        echoed.append(value)
        return value

    script = (
        "import { imported } from 'lib';"
        "export default async (x) => { report(x); console.log(x); return [x, imported, free, await echo(x)] }"
    )
    if bench.language == "typescript":
        script = script.replace("async (x)", "async (x: unknown)")
    python = (
        "from lib import imported\n"
        "async def default(x):\n    report(x)\n    console.log(x)\n    return [x, imported, free, await echo(x)]"
    )
    execution = bench.start(
        script,
        python,
        args=[PLAIN],
        imports={"lib": {"imported": PLAIN}},
        globals={"free": PLAIN, "echo": echo},
        report=lambda _: None,
    )
    assert await value_of(execution) == [PLAIN, PLAIN, PLAIN, PLAIN]
    result = await execution
    assert echoed == [PLAIN]
    assert result.reports == (PLAIN,)
    assert result.logs[0].args == (PLAIN,)
    tuples = bench.start("export default (x) => x", "def default(x):\n    return (x, 1)", args=[(1, (2,))])
    assert await value_of(tuples) == ([[1, [2]], 1] if bench.language == "python" else [1, [2]])


async def what_is_not_plain_data_is_refused_with_its_path(bench: Bench) -> None:
    scripts: Mapping[str, str] = {
        "result.a[1]": "export default { a: [1, () => 1] }",
        "result.b": "export default { b: new (class Thing {})() }",
        "result": "export default new Set()",
        "result[0]": "export default [new Date()]",
        "result.me": "const me = {}; me.me = me; export default me",
        "result.n": "export default { n: 0 / 0 }",
    }
    pythons: Mapping[str, str] = {
        "result.a[1]": "default = {'a': [1, lambda: 1]}",
        "result.b": "class Thing:\n    x = 1\ndefault = {'b': Thing()}",
        "result": "default = {1, 2}",
        "result.me": "me = {}\nme['me'] = me\ndefault = me",
        "result.n": "default = {'n': float('nan')}",
        "result.r": "default = {'r': range(3)}",
        "result.k[0]": "default = {'k': [{'a': 1}.keys()]}",
        "result.i": "default = {'i': iter([1])}",
    }
    if bench.language == "typescript":
        scripts = {**scripts, "result.me": "const me: any = {}; me.me = me; export default me"}
    for path, source in (pythons if bench.language == "python" else scripts).items():
        error = await error_of(bench.start(source, source), "error")
        assert error.message.startswith(f"{path}: "), error.message
    script, python = "report({ a: () => 1 }); export default 1", "report({'a': lambda: 1})\ndefault = 1"
    error = await error_of(bench.start(script, python, report=lambda _: None), "error")
    assert "report.a" in error.message
    for value in ({1}, datetime.now(UTC), float("nan"), object(), {1: 2}, print):
        assert is_refused(lambda value=value: bench.start("", "", args=[[value]]))
    assert is_refused(lambda: bench.start("", "", globals={"x": {1}}))


async def arguments_of_a_call_arrive_unchanged(bench: Bench) -> None:
    gate, received = Gate(), list[object]()

    async def keep(value: object) -> object:
        received.append(value)
        await gate()
        value["n"] = 7  # pyright: ignore
        return value

    script = "const x = { n: 1 }; const call = keep(x); x.n = 2; const y = await call; export default [x.n, y.n]"
    python = "x = {'n': 1}\ncall = keep(x)\nx['n'] = 2\ny = await call\ndefault = [x['n'], y['n']]"
    execution = bench.start(script, python, globals={"keep": keep})
    await gate.reached()
    assert received == [{"n": 1}]
    gate.let.set()
    assert await value_of(execution) == [2, 7]


async def many_calls_are_outstanding_and_each_gets_its_answer(bench: Bench) -> None:
    waiting: list[asyncio.Future[object]] = []
    both = asyncio.Event()

    async def later(value: int) -> object:
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        waiting.append(answer)
        if len(waiting) == 2:
            both.set()
        return [value, await answer]

    script = (
        "export default async () => { const [a, b] = [later(1), later(2)]; return [await sync(3), await b, await a] }"
    )
    python = "async def default():\n    a = later(1)\n    b = later(2)\n    return [await sync(3), await b, await a]"
    execution = bench.start(script, python, globals={"later": later, "sync": lambda x: x})  # pyright: ignore
    async with asyncio.timeout(60):
        await both.wait()
    waiting[1].set_result("second")
    waiting[0].set_result("first")
    assert await value_of(execution) == [3, [2, "second"], [1, "first"]]


async def a_call_that_is_open_at_the_end_changes_nothing(bench: Bench) -> None:
    gate, ended = Gate(), list[str]()

    async def open_call() -> None:
        try:
            await gate()
        finally:
            ended.append("ended")

    script = "open_call(); await other(); export default 1"
    python = "call = open_call()\nawait other()\ndefault = 1"
    result = await settled(bench.start(script, python, globals={"open_call": open_call, "other": lambda: None}))
    assert (result.status, result.result) == ("success", 1)
    assert ended == ["ended"] or not gate.called.is_set()


CHECKS: tuple[Check, ...] = (
    plain_data_crosses_both_ways_unchanged,
    what_is_not_plain_data_is_refused_with_its_path,
    arguments_of_a_call_arrive_unchanged,
    many_calls_are_outstanding_and_each_gets_its_answer,
    a_call_that_is_open_at_the_end_changes_nothing,
)

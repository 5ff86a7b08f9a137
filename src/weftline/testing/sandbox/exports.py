"""Execution of exports: a function is called, a value is taken, and an awaitable is awaited."""

from __future__ import annotations

from weftline.testing.sandbox.bench import Bench, Check, error_of, settled, value_of


async def the_selected_export_is_called_with_the_arguments(bench: Bench) -> None:
    script = "export const add = (a, b) => a + b; export default () => 'default'"
    python = "def add(a, b):\n    return a + b\ndef default():\n    return 'default'"
    assert await value_of(bench.start(script, python, fn="add", args=[1, 2])) == 3
    assert await value_of(bench.start(script, python)) == "default"


async def an_export_that_is_not_a_function_is_the_result(bench: Bench) -> None:
    assert await value_of(bench.start("export default { a: [1] }", "default = {'a': [1]}")) == {"a": [1]}
    error = await error_of(bench.start("export default 1", "default = 1", args=[1]), "error")
    assert error.name == "TypeError"


async def a_missing_export_is_named(bench: Bench) -> None:
    error = await error_of(bench.start("export const here = 1", "here = 1", fn="gone"), "link_error")
    assert "gone" in error.message
    assert error.specifier == "<runCode>"


async def what_can_be_awaited_is_awaited(bench: Bench) -> None:
    script = "const x = await wait(1); export default async () => [x, await wait(2)]"
    python = "x = await wait(1)\nasync def default():\n    return [x, await wait(2)]"
    assert await value_of(bench.start(script, python, globals={"wait": lambda x: x})) == [1, 2]  # pyright: ignore
    script = "export default wait(3)"
    python = "default = wait(3)"
    assert await value_of(bench.start(script, python, globals={"wait": lambda x: x})) == 3  # pyright: ignore
    script = "export default async () => { throw new RangeError('no') }"
    python = "async def default():\n    raise IndexError('no')"
    error = await error_of(bench.start(script, python), "error")
    assert error.message == "no"


async def types_are_erased_and_never_checked(bench: Bench) -> None:
    if bench.language == "python":
        assert await value_of(bench.start("", "x: int = 'text'\ndefault = x")) == "text"
        return
    typed = (
        "import type { Shape } from './shape.ts'\n"
        "interface Named { name: string }\n"
        "type Pair<T> = [T, T]\n"
        "const pair = <T,>(x: T): Pair<T> => [x, x]\n"
        "const wrong: number = 'text' as unknown as number\n"
        "export default (named: Named = { name: 'a' }): unknown => [pair(named!.name), wrong satisfies number]\n"
    )
    modules = {"./shape.ts": "export interface Shape { sides: number }"}
    execution = bench.start(typed, "", modules=modules)
    if bench.language == "typescript":
        assert await value_of(execution) == [["a", "a"], "text"]
    else:
        result = await settled(execution)
        assert result.status == "link_error" and result.error is not None
        assert result.error.name == "SyntaxError"


CHECKS: tuple[Check, ...] = (
    the_selected_export_is_called_with_the_arguments,
    an_export_that_is_not_a_function_is_the_result,
    a_missing_export_is_named,
    what_can_be_awaited_is_awaited,
    types_are_erased_and_never_checked,
)

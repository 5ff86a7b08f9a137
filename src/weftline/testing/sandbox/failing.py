"""Errors: they point into the source as it was given, and reveal nothing of the host."""

from __future__ import annotations

from pathlib import Path

import msgspec

from weftline.testing.sandbox.bench import Bench, Check, error_of, settled, value_of

HOST_WORDS = ("deno_boot", "monty_worker", "file:///", "ext:", "node:", "site-packages", "asyncio", "evalmachine")


async def an_error_points_into_the_source(bench: Bench) -> None:
    typed = ": number" if bench.language == "typescript" else ""
    script = f"\nconst fail = (x{typed}) => {{\n    throw new RangeError('over ' + x)\n}}\nexport default () => fail(1)"
    python = "\ndef fail(x):\n    raise IndexError('over ' + str(x))\n\ndef default():\n    return fail(1)"
    error = await error_of(bench.start(script, python, filename="src/a (b).ts"), "error")
    assert (error.name, error.message) == ("IndexError" if bench.language == "python" else "RangeError", "over 1")
    assert (error.filename, error.line) == ("src/a (b).ts", 3)
    assert error.column in (5, 11)  # the statement, or what it raises
    assert error.stack is not None and "src/a (b).ts:3" in error.stack
    assert (
        await error_of(bench.start("missing; export default 1", "missing\ndefault = 1"), "error")
    ).filename == "<runCode>"


async def an_exception_of_the_host_is_a_name_and_a_message(bench: Bench) -> None:
    def fail() -> None:
        raise LookupError("no such thing")

    script = (
        "export default async () => { try { await fail() } catch (e) { return [e.name, e.message, Object.keys(e)] } }"
    )
    python = (
        "async def default():\n    try:\n        await fail()\n"
        "    except Exception as e:\n        return [type(e).__name__, str(e)]"
    )
    caught = await value_of(bench.start(script, python, globals={"fail": fail}))
    assert isinstance(caught, list)
    assert caught[:2] == ["LookupError", "no such thing"]  # pyright: ignore
    error = await error_of(
        bench.start("export default () => fail()", "def default():\n    return fail()", globals={"fail": fail}), "error"
    )
    assert (error.name, error.message) == ("LookupError", "no such thing")
    _check_no_host(msgspec.json.encode(error).decode())


async def nothing_of_the_host_is_in_any_error(bench: Bench) -> None:
    failing = [
        ("export default () => { const f = () => f(); f() }", "def default():\n    return default()"),
        ("export default () => null.x", "def default():\n    return None.x"),
        ("export default () => new Error('x').stack", "def default():\n    return str(ValueError('x'))"),
        ("export default import('gone').catch((e) => e.stack)", "default = 1\nraise OSError(2, 'x')"),
        ("import 'gone'", "import gone"),
    ]
    for script, python in failing:
        result = await settled(bench.start(script, python))
        _check_no_host(msgspec.json.encode(result.error).decode() + str(result.result))


async def anything_that_code_throws_is_an_error(bench: Bench) -> None:
    """Code cannot claim that nothing has run, nor that the engine gave up."""
    called: list[object] = []
    throwing = [
        ("new SyntaxError('x')", "SyntaxError('x')"),
        ("new RangeError('Array buffer allocation failed')", "MemoryError('memory limit exceeded: 2 bytes > 1 bytes')"),
        ("Object.assign(new Error('x'), { name: 'LinkError' })", "ImportError('Cannot import')"),
        ("Object.assign(new Error('x'), { status: 'memory' })", "NotImplementedError('The monty syntax parser')"),
    ]
    for script, python in throwing:
        python = f"await tool(1)\ndefault = 1\ntry:\n    raise {python}\nexcept Exception:\n    raise"
        script = f"await tool(1); throw {script}; export default 1"
        await error_of(bench.start(script, python, globals={"tool": called.append}), "error")
    assert len(called) == len(throwing)


def _check_no_host(text: str) -> None:
    assert not [word for word in (*HOST_WORDS, str(Path.cwd()), str(Path.home())) if word != "/" and word in text], text


CHECKS: tuple[Check, ...] = (
    an_error_points_into_the_source,
    an_exception_of_the_host_is_a_name_and_a_message,
    nothing_of_the_host_is_in_any_error,
    anything_that_code_throws_is_an_error,
)

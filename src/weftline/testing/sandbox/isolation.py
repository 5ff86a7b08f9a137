"""Isolation: code has access to nothing but the language, and leaves nothing behind for the next."""

from __future__ import annotations

import os

from weftline.testing.sandbox.bench import Bench, Check, settled, value_of

SCRIPT_PROBES = (
    "Deno process require module exports fetch XMLHttpRequest WebSocket EventSource Worker setTimeout setInterval "
    "setImmediate queueMicrotask navigator location window self global state Buffer __dirname __filename performance "
    "crypto caches localStorage WebAssembly SharedArrayBuffer Atomics alert prompt URL Request"
)
PYTHON_PROBES = "os sys socket subprocess __import__ __builtins__ __loader__ globals vars input state compile"


async def only_the_language_itself_is_available(bench: Bench) -> None:
    if bench.language == "python":
        source = "found = []\n"
        for name in PYTHON_PROBES.split():
            source += f"try:\n    {name}\n    found.append('{name}')\nexcept NameError:\n    pass\n"
        source += "try:\n    open('/etc/hostname').read()\n    found.append('open')\nexcept Exception:\n    pass\n"
        assert await value_of(bench.start("", source + "default = found")) == []
        return
    names = ",".join(f"typeof {name} === 'undefined' ? 0 : '{name}'" for name in SCRIPT_PROBES.split())
    found = await value_of(bench.start(f"export default [{names}].filter(Boolean)", ""))
    assert found == []


async def executions_leave_nothing_behind(bench: Bench) -> None:
    script = (
        "export default () => { const seen = [globalThis.left, [].extra, {}.polluted, shared.x, Math.max === Math.min];"
        "globalThis.left = 1; Array.prototype.extra = 1; Object.prototype.polluted = 1; Math.max = Math.min;"
        "shared.x = 2; return seen }"
    )
    if bench.language == "typescript":
        script = "declare const globalThis: any, shared: any;\n" + script.replace("{}.polluted", "({} as any).polluted")
    python = "def default():\n    old = shared['x']\n    shared['x'] = 2\n    return [old]\nlen = 1"
    shared = {"x": 1}
    first, second = (bench.start(script, python, globals={"shared": shared}) for _ in range(2))
    expected = [1] if bench.language == "python" else [None, None, None, 1, False]
    assert await value_of(first) == expected
    assert await value_of(second) == expected
    assert await value_of(bench.start(script, python, globals={"shared": shared})) == expected
    assert shared == {"x": 1}


async def only_bridged_env_values_are_seen(bench: Bench) -> None:
    os.environ["WEFTLINE_TEST_SECRET"] = "hidden-value"
    try:
        script = "import { env } from 'env'; export default env"
        python = "from env import env\ndefault = env"
        result = await settled(bench.start(script, python, imports={"env": {"env": {"GIVEN": "shown"}}}))
        assert result.result == {"GIVEN": "shown"}
    finally:
        del os.environ["WEFTLINE_TEST_SECRET"]


CHECKS: tuple[Check, ...] = (
    only_the_language_itself_is_available,
    executions_leave_nothing_behind,
    only_bridged_env_values_are_seen,
)

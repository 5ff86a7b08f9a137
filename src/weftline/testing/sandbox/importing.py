"""Imports, modules and globals: the code links against what it was given and against nothing else."""

from __future__ import annotations

from weftline.testing.sandbox.bench import Bench, Check, error_of, is_refused, settled, value_of


async def bare_specifiers_come_from_imports(bench: Bench) -> None:
    script = (
        "import fs, { read, size } from '@scope/pkg'; import * as all from 'env';"
        "export default async () => [fs, await read('a'), size, all.env]"
    )
    python = (
        "import env\nfrom pkg import default as fs, read, size\n"
        "async def run():\n    return [fs, await read('a'), size, env.env]\n"
    )
    exported: dict[str, object] = {"default": "fs", "read": lambda path: f"<{path}>", "size": 3}  # pyright: ignore
    name = "pkg" if bench.language == "python" else "@scope/pkg"
    imports: dict[str, dict[str, object]] = {name: exported, "env": {"env": {"KEY": "value"}}}
    fn = "run" if bench.language == "python" else "default"
    execution = bench.start(script, python, fn=fn, imports=imports)
    assert await value_of(execution) == ["fs", "<a>", 3, {"KEY": "value"}]


async def relative_specifiers_come_from_modules(bench: Bench) -> None:
    modules = {
        "./src/lib/math.js": "import { base } from '../base.js'; export const two = base + 1",
        "src/base.js": "console.log('once'); export const base = 1",
    }
    script = "import { two } from './lib/math.js'; import { base } from './base.js'; export default [base, two]"
    if bench.language == "python":
        # An engine may not support this: then it is rejected at the call.
        assert is_refused(lambda: bench.start("", "from .base import base\ndefault = base", modules=modules))
        return
    execution = bench.start(script, "", modules=modules, filename="src/main.ts")
    result = await settled(execution)
    assert (result.status, result.result) == ("success", [1, 2]), result.error
    assert [log.args for log in result.logs] == [("once",)]


async def imports_have_no_fallback(bench: Bench) -> None:
    if bench.language == "python":
        for source, name in (("import json", "json"), ("import msgspec", "msgspec"), ("from .lib import x", ".lib")):
            error = await error_of(bench.start("", f"{source}\ndefault = 1", imports={"lib": {"x": 1}}), "link_error")
            assert error.specifier == name
        return
    given = {"imports": {"lib": {"x": 1}}, "modules": {"./own.js": "export const x = 1"}}
    probes = ["./lib", "own.js", "fs", "node:fs", "npm:left-pad", "jsr:@std/fs", "/etc/hostname", "../own.js", "."]
    dynamic = "export default Promise.all(" + repr(probes) + ".map((s) => import(s).then(() => s, () => null)))"
    assert await value_of(bench.start(dynamic, "", **given)) == [None] * len(probes)  # pyright: ignore
    error = await error_of(bench.start("import { x } from './lib'; export default x", "", **given), "link_error")  # pyright: ignore
    assert error.specifier == "./lib"


async def urls_cannot_be_imported(bench: Bench) -> None:
    if bench.language == "python":
        error = await error_of(bench.start("", "import http.client\ndefault = 1"), "link_error")
        assert error.specifier == "http.client"
        return
    url = "data:text/javascript,export default 1"
    error = await error_of(bench.start(f"import x from '{url}'; export default x", ""), "link_error")
    assert error.specifier == url
    urls = ["https://example.com/x.js", "data:text/javascript,export default 1", "file:///etc/hostname", "blob:x"]
    source = "export default Promise.all(" + repr(urls) + ".map((s) => import(s).then(() => s, (e) => e.name)))"
    assert await value_of(bench.start(source, "")) == ["TypeError"] * len(urls)


async def a_link_error_comes_before_any_statement(bench: Bench) -> None:
    ran: list[object] = []
    functions = {"tell": ran.append}
    wrong = [
        ("tell(1); import { gone } from 'lib'; export default 1", "tell(1)\nfrom lib import gone\ndefault = 1", "lib"),
        ("tell(1); import 'nothing'; export default 1", "tell(1)\nimport nothing\ndefault = 1", "nothing"),
        ("tell(1);\nlet x = (;", "tell(1)\nx = (", "<runCode>"),
    ]
    for script, python, specifier in wrong:
        error = await error_of(bench.start(script, python, globals=functions, imports={"lib": {"x": 1}}), "link_error")
        assert error.specifier == specifier
        assert error.name != "SyntaxError" or (error.filename, error.line) == ("<runCode>", 2)
    assert ran == []
    if bench.language != "python":
        source = "tell(1); import { x } from './broken.js'; export default x"
        execution = bench.start(source, "", globals=functions, modules={"broken.js": "let x = ("})
        assert (await error_of(execution, "link_error")).specifier == "broken.js"
        execution = bench.start("tell(1); import '../../up.js'; export default 1", "", globals=functions)
        assert (await error_of(execution, "link_error")).specifier == "../../up.js"
        assert ran == []


async def globals_are_free_variables_for_one_execution(bench: Bench) -> None:
    script = "export default [given, typeof globalThis.given, Object.keys(globalThis).includes('given')]"
    python = "default = [given, 'undefined', False]"
    execution = bench.start(script, python, globals={"given": {"a": 1}})
    assert await value_of(execution) == [{"a": 1}, "undefined", False]
    script = "export default () => typeof given === 'undefined' ? missing : 1"
    error = await error_of(bench.start(script, "def default():\n    return given"), "error")
    assert error.name in ("ReferenceError", "NameError")


CHECKS: tuple[Check, ...] = (
    bare_specifiers_come_from_imports,
    relative_specifiers_come_from_modules,
    imports_have_no_fallback,
    urls_cannot_be_imported,
    a_link_error_comes_before_any_statement,
    globals_are_free_variables_for_one_execution,
)

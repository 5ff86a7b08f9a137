"""The shape of the package, read from its source: imports point one way, the kernel is pure, files stay small.

Imports count wherever they stand (inside functions, under TYPE_CHECKING, as `import_module("…")`), because a
dependency that is only typed or only late is still a dependency. The exceptions are the public pages of names,
whose TYPE_CHECKING blocks tell type checkers about names that are loaded on first use.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from source_tree import SRC, Import, Module, imports, is_inside, nodes, package_modules, parse

MAX_LINES = 600
MIN_LINES = 80
SMALL_FOR_A_REASON = {
    "__main__.py|_version.py": "Python and the build look for them there",
    "behaviors.py|details.py|policies.py|runs.py": "public doors: names of other modules, loaded on first use",
    "framing.py|labels.py|plugins.py": "vocabulary of parts that may not import each other",
    "agent/_options.py": "written by `make options`",
    "agent/engine/in_memory.py": "loads light: an agent refers to it without loading an engine",
    "agent/engine/loop_proxy.py": "knows no agent and no engine: it forwards calls between event loops",
    "agent/engine/observing.py": "loads light: the protocol that a definition needs of an engine",
    "agent/engine/*_methods.py": "one part of the engine's methods each",
    "agent/hooking/hook_page.py|events/docs_page.py|work/process_worker.py": "programs of their own",
    "agent/preset.py|agent/presets.py": "a definition knows what a preset is without loading the tools of ours",
    "agent/tracing/run_traces.py": "loads light: a server loads the rest of tracing only if it emits spans",
    "api/principal.py|api/validation.py": "for the use cases of several resources",
    "api/cancelling.py|api/client_calls.py": "loaded when a server starts, unlike input with bodies of pydantic",
    "api/thread_imports.py": "for the library and the operator alike",
    "cli/*": "a command each, loaded when it is called, or what some of them share",
    "client/attachments.py|client/webhooks.py": "public names of the client, each loaded on first use",
    "events/profiles.py": "which events, for Python and HTTP alike, which frame and hand them out apart",
    "kernel/notes.py": "observations, which are never folded, apart from the facts, which are",
    "prompts/*": "texts by topic",
    "providers/renewals.py": "loads light: model calls are told of renewals, without OAuth",
    "providers/sampling.py": "for several families of providers",
    "replay/present_code.py|replay/recorded.py|replay/refusing.py": "loads light: what replays are given",
    "replay/pytests.py": "writes tests: loaded by one command",
    "runtime/decoding.py": "for readers of batches, without the hub that hands them out",
    "runtime/ids.py": "vocabulary of the runtime",
    "runtime/new_engine.py": "the only place that knows which engines there are",
    "runtime/model_calls/spending.py": "loads light: conversations count tokens, without model calls",
    "server/open_streams.py": "for the routes of several resources",
    "server/bodies.py": "loads light: `server/declared.py` works without pydantic",
    "server/heads.py|server/upgrades.py": "HTTP by the phase of a request; `server/protocol.py` is long enough",
    "server/operators.py": "who the operator is and what they may do, to be read at once",
    "server/routes/*": "one file per resource",
    "store/naming.py": "loads light: for commands and tests, without a store",
    "store/records/*": "one module of statements per table",
    "store/sqlite/pieces.py": "one table of the log",
    "testing/*": "parts of a conformance suite, and public doors",
    "text/*": "one kind of text each; everything may import them",
    "tools/builtin/*": "one file per tool",
    "tools/mcp/address.py": "loads light: where a server is, without a connection to it",
    "tools/secret_types.py": "loads light: for the client's tools too",
    "tools/workers.py": "for tools of all kinds",
    "wire/models.py": "loads light: bodies of pydantic, apart from those without",
    "wire/responses.py|wire/validation.py": "what all bodies and responses have in common",
    "work/heavy.py": "for large bodies and entries, wherever they are read",
    "workspace/*": "the use cases of one resource, or the context that all of them get",
}
"""Why a file is shorter than `MIN_LINES`, by patterns of paths. `__init__.py` is always short."""

BASE = frozenset(
    {"weftline.messages", "weftline.errors", "weftline.work", "weftline.prompts", "weftline.text"}
    | {"weftline.framing", "weftline.trace_context"}
    | {"weftline.peer_responses"}
    | {"weftline.failure", "weftline.labels", "weftline.reminders"}
    | {"weftline.engine_options", "weftline.labels"}
)
PURE = frozenset(
    {"weftline.kernel", "weftline.messages", "weftline.prompts"} | {"weftline.failure", "weftline.reminders"}
)
"""No clock, no disk, no network, no chance."""
MIDDLE = BASE | {"weftline.kernel", "weftline._version"}
SHELL = MIDDLE | {"weftline.net", "weftline.plan", "weftline.prompts", "weftline.providers", "weftline.tools"}
ARGUMENTS = frozenset(
    {"weftline.tools.arguments"}
    | {"weftline.tools.schema", "weftline.tools.signature"}
    | {"weftline.tools.secret_types", "weftline.tools.stored_form"}
)
"""From a function to a schema, and arguments against it: the same for tools of the server and of the client."""
UNDER_SPECS = frozenset(f"weftline.wire.{name}" for name in ("limits", "json_text", "validation")) | frozenset(
    {"weftline.wire.attachments", "weftline.wire.unknown_fields"}
)
"""What requests of all kinds have in common: limits, and how they are read."""
TOP = SHELL | {
    "weftline",
    "weftline.config",
    "weftline.events",
    "weftline.spec",
    "weftline.wire",
    "weftline.replay",
    "weftline.runtime",
    "weftline.store",
    "weftline.sandbox",
    "weftline.workspace",
}

MAY_IMPORT: dict[str, frozenset[str]] = {
    "weftline.__init__": frozenset({"weftline._version", "weftline.text"}),
    "weftline.__main__": frozenset({"weftline.cli"}),
    "weftline._version": frozenset(),
    "weftline.messages": frozenset(),
    "weftline.errors": frozenset(),
    "weftline.failure": frozenset(),
    "weftline.framing": frozenset(),
    "weftline.reminders": frozenset(),
    "weftline.text": frozenset(),
    "weftline.trace_context": frozenset(),
    "weftline.work": frozenset({"weftline.prompts"}),
    "weftline.peer_responses": frozenset({"weftline.text"}),
    "weftline.net": BASE | {"weftline._version"},
    "weftline.kernel": BASE - {"weftline.work"},
    "weftline.plan": MIDDLE,
    "weftline.prompts": frozenset({"weftline.text", "weftline.failure"}),
    "weftline.labels": frozenset({"weftline.text", "weftline.errors"}),
    "weftline.engine_options": frozenset({"weftline.text", "weftline.errors"}),
    "weftline.details": frozenset({"weftline.events"}),
    "weftline.spec": MIDDLE | {"weftline.plan"} | UNDER_SPECS,
    "weftline.wire": MIDDLE | {"weftline.events", "weftline.plan", "weftline.spec"},
    "weftline.plugins": frozenset(),
    "weftline.providers": MIDDLE | {"weftline.net", "weftline.plugins"},
    "weftline.config": MIDDLE | {"weftline.net", "weftline.providers"},
    "weftline.tools": MIDDLE
    | {"weftline.net", "weftline.plugins", "weftline.prompts"}
    | {"weftline.providers.base", "weftline.sandbox"},
    "weftline.sandbox": MIDDLE,
    "weftline.store": SHELL,
    "weftline.runtime": SHELL | {"weftline.store", "weftline.sandbox"},
    "weftline.replay": SHELL | {"weftline.runtime", "weftline.store"},
    "weftline.workspace": MIDDLE
    | {
        "weftline.config",
        "weftline.plan",
        "weftline.providers",
        "weftline.spec",
        "weftline.tools",
        "weftline.store.base",
        "weftline.store.rows",
        "weftline.store.budgets",
        "weftline.store.database",
        "weftline.net",
        "weftline.store.sealing",
        "weftline.store.records",
        "weftline.sandbox",
    },
    "weftline.events": MIDDLE | {"weftline.plan"},
    "weftline.api": TOP | {"weftline.events"},
    "weftline.cases": TOP | {"weftline.api"},
    "weftline.agent": TOP
    | {"weftline.api", "weftline.cases", "weftline.events"}
    | {"weftline.server.own_socket", "weftline.server.local_serving", "weftline.server.app"},
    "weftline.threads": TOP | {"weftline.agent", "weftline.plugins"},
    "weftline.hooks": frozenset({"weftline.agent", "weftline.text"}),
    "weftline.runs": frozenset({"weftline.agent", "weftline.runtime", "weftline.text"}),
    "weftline.policies": frozenset({"weftline.agent", "weftline.spec", "weftline.text"}),
    "weftline.behaviors": frozenset(
        {"weftline.agent", "weftline.engine_options", "weftline.reminders", "weftline.text"}
    ),
    "weftline.server": TOP
    | {"weftline.api", "weftline.cases", "weftline.events", "weftline.agent", "weftline.threads"},
    "weftline.client": BASE
    | {"weftline.events"}
    | {"weftline._version", "weftline.spec", "weftline.wire", "weftline.net.sse"}
    | ARGUMENTS,
    "weftline.cli": TOP
    | {"weftline.agent", "weftline.api", "weftline.cases", "weftline.events", "weftline.server", "weftline.client"}
    | {"weftline.threads"},
    "weftline.testing": TOP
    | {"weftline.agent", "weftline.api", "weftline.events", "weftline.server", "weftline.client"},
}
"""For each part of the package, what of ours it may import besides itself."""

STORES: dict[str, frozenset[str]] = {
    "weftline.store.memory": frozenset({"weftline.store.sqlite.database"}),
    "weftline.store.sqlite": frozenset(),
}
"""For each store, what it may import of the others: queries on records are SQL, so memory keeps them in SQLite too."""

KNOW_THE_WIRE = ("events", "spec", "wire", "api", "cases", "server", "client", "cli")
"""The parts that speak the HTTP protocol, and the table of the events' names there."""
WIRE_WORDS = re.compile(
    r"\b(toolUseId|runId|sessionId|errorClass|partialText|toolBudgets|loopDetection|inDoubt"
    r"|agentId|modelId|systemPrompt|outputSchema|apiKeys|oauthApps"
    r"|mcpServer|mcpToolName|mcpServerInfo|agentCard|displayHint|parentToolUseId|leaseMs|finishReason"
    r"|agent-runs|agent-sessions|session_ended|unknown_tool_use|local_tool_call|local_tool_result_in)\b"
)
SPEAKS_ANOTHER = {("weftline.providers.anthropic.bedrock", "modelId")}
"""Words of other protocols that are also words of ours."""

_PARTS = [
    "store",
    "log",
    "log_store",
    "hub",
    "ledger",
    "driver",
    "fleet",
    "recovery",
    "opener",
    "creator",
    "residents",
    "dispatcher",
    "loader",
    "timers",
    "lineage",
    "commits",
]
INSIDE_AN_ENGINE = frozenset(name for part in _PARTS for name in (part, f"_{part}"))
CALL_USE_CASES = ("weftline.agent", "weftline.api", "weftline.cli", "weftline.server")
"""They leave records to the use cases in `cases/` and `workspace/`, and query none of them themselves."""
USE_AN_ENGINE = (*CALL_USE_CASES, "weftline.cases", "weftline.replay")
"""Where `engine` and `host` are one."""
KNOW_AN_ENGINE = ("runtime", "simulation")
"""The tests of the embedded engine itself, and those that plant bugs in it."""

KERNEL_LIBRARIES = frozenset(
    {
        "__future__",
        "collections",
        "collections.abc",
        "dataclasses",
        "enum",
        "functools",
        "hashlib",
        "itertools",
        "math",
        "operator",
        "struct",
        "typing",
    }
)
IMPURE_CALLS = frozenset({"open", "input", "print", "hash", "id", "__import__", "exec", "eval"})
"""Builtins that do I/O or whose answer differs from process to process."""


def is_allowed(name: str, allowed: frozenset[str]) -> bool:
    # The root stands for its public names, not for everything below it.
    return any(name == one if one == "weftline" else is_inside(name, one) for one in allowed)


def is_pure_library(name: str) -> bool:
    return name in KERNEL_LIBRARIES or is_inside(name, "msgspec")


def told(module: Module, one: Import) -> str:
    return f"{module.path.name}:{one.line}: {module.name} imports {one.module}"


def wrong_directions(modules: list[Module], *, root: Path = SRC) -> list[str]:
    return [
        told(module, one)
        for module in modules
        for one in imports(module, root=root)
        if is_inside(one.module, "weftline")
        and not is_allowed(one.module, MAY_IMPORT.get(module.part, frozenset()) | {module.part})
    ]


def impurities(modules: list[Module], *, root: Path = SRC) -> list[str]:
    found: list[str] = []
    for module in modules:
        if module.part not in PURE:
            continue
        outside = (one for one in imports(module, root=root) if not is_inside(one.module, "weftline"))
        found += [told(module, one) for one in outside if not is_pure_library(one.module)]
        for node in nodes(module):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
                found.append(f"{module.path.name}:{node.lineno}: {module.name} calls {node.func.id}()")
            if isinstance(node, ast.AsyncFunctionDef | ast.Await):
                found.append(f"{module.path.name}:{node.lineno}: {module.name} is asynchronous")
    return found


def cycles(modules: list[Module], *, root: Path = SRC) -> list[list[str]]:
    """The groups of modules that import each other, directly or by way of others."""
    names = {module.name for module in modules}
    below = {module.name: set(_executed(module, root)) & names for module in modules}
    reached: dict[str, set[str]] = {}
    for name in names:
        seen, left = set[str](), list(below[name])
        while left:
            one = left.pop()
            if one not in seen:
                seen.add(one)
                left += below[one]
        reached[name] = seen
    circles = {frozenset(other for other in reached[name] if name in reached[other]) for name in names}
    return sorted(sorted(circle) for circle in circles if circle)


def _executed(module: Module, root: Path) -> Iterator[str]:
    """Everything that the imports of a module execute: the modules, and the packages that they are in.

    The packages that `module` is in itself do not count, since nobody can import it before them; what it imports from
    their `__init__` does. Nor does the root, which is in everybody's way, and so imports nothing until it is asked for
    a name.
    """
    for one in imports(module, root=root):
        yield one.module
        parts = one.module.split(".")
        packages = (".".join(parts[:count]) for count in range(2, len(parts)))
        yield from (package for package in packages if not is_inside(module.name, package))


def of_a_database(modules: list[Module], *, root: Path = SRC) -> list[str]:
    """Where modules that must work with every store know one of them."""
    return [
        told(module, one)
        for module in modules
        if not is_inside(module.name, "weftline.store") or is_inside(module.name, "weftline.store.records")
        for one in imports(module, root=root)
        if is_inside(one.module, "apsw") or is_inside(one.module, "weftline.store.sqlite")
    ]


def of_another_store(modules: list[Module], *, root: Path = SRC) -> list[str]:
    """Where a store imports something of another one that it may not share."""
    return [
        told(module, one)
        for module in modules
        for store, shared in STORES.items()
        if is_inside(module.name, store)
        for one in imports(module, root=root)
        if any(is_inside(one.module, other) for other in STORES.keys() - {store}) and not is_allowed(one.module, shared)
    ]


def of_an_engine(modules: list[Module], *, root: Path = SRC) -> list[str]:
    """Where modules that must work with every engine know one of them, or reach through it."""
    found: list[str] = []
    for module in modules:
        if is_inside(module.name, "weftline.runtime"):
            continue
        named = (one for one in imports(module, root=root) if is_inside(one.module, "weftline.runtime.embedded"))
        found += [told(module, one) for one in named]
        for node in nodes(module) if module.part in USE_AN_ENGINE else ():
            if isinstance(node, ast.Attribute) and node.attr in INSIDE_AN_ENGINE:
                whole = ast.unparse(node.value)
                if whole.rpartition(".")[2].lstrip("_") in ("engine", "host"):
                    found.append(f"{module.path.name}:{node.lineno}: {module.name} reads {whole}.{node.attr}")
    return found


def queries_of_their_own(modules: list[Module]) -> list[str]:
    """Where a module that should call a use case queries records itself. It may import types, such as those of rows."""
    users = (module for module in modules if module.part in CALL_USE_CASES)
    return [
        f"{module.path.name}:{line}: {module.name} uses {name}"
        for module in users
        for name, line in _used(module)
        if (is_inside(name, "weftline.store.records") and not name.rpartition(".")[2][0].isupper())
        or re.search(r"\brecords\.(read|write)$", name.replace("._", "."))
    ]


def _used(module: Module) -> Iterator[tuple[str, int]]:
    for node in nodes(module):
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, node.lineno) for alias in names)
            case ast.ImportFrom(module=str(package), names=names):
                yield from ((f"{package}.{alias.name}", node.lineno) for alias in names)
            case ast.Attribute(attr="read" | "write"):
                yield ast.unparse(node), node.lineno
            case _:
                pass


def standard_sqlite(modules: list[Module], *, root: Path = SRC) -> list[str]:
    return [
        told(module, one)
        for module in modules
        for one in imports(module, root=root)
        if one.module.partition(".")[0] in {"sqlite3", "_sqlite3"}
    ]


def waits_that_swallow_a_cancel(modules: list[Module]) -> list[str]:
    """On Python 3.11 `asyncio.wait_for` loses a cancel that comes when what it waits for is done."""
    return [
        f"{module.path.name}:{node.lineno}: {module.name} calls wait_for"
        for module in modules
        for node in nodes(module)
        if isinstance(node, ast.Attribute) and node.attr == "wait_for" and ast.unparse(node) == "asyncio.wait_for"
    ]


def words_of_the_wire(modules: list[Module]) -> list[str]:
    """Where modules use the protocol's names, in code, docstrings or comments, though they do not speak it."""
    return [
        f"{module.path.name}:{number}: {module.name} says {word}"
        for module in modules
        if not any(is_inside(module.name, f"weftline.{part}") for part in KNOW_THE_WIRE)
        for number, line in enumerate(module.path.read_text(encoding="utf-8").splitlines(), 1)
        for word in WIRE_WORDS.findall(line)
        if (module.name, word) not in SPEAKS_ANOTHER
    ]


def functions_that_differ_by_an_underscore(modules: list[Module]) -> list[str]:
    """Two names that say the same: which of them does what has to be looked up each time."""
    found: list[str] = []
    for module in modules:
        for node in nodes(module):
            if isinstance(node, ast.ClassDef | ast.Module):
                names = {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
                where = f"{module.name}: {node.name}." if isinstance(node, ast.ClassDef) else f"{module.name}: "
                found += [f"{where}{name}" for name in sorted(names) if f"_{name}" in names]
    return found


@pytest.fixture(scope="module")
def modules() -> Iterator[list[Module]]:
    """A million small objects without a cycle: looking for garbage among them takes longer than making them."""
    gc.disable()
    yield package_modules(SRC)
    gc.enable()


def test_table_has_every_part_of_package_and_no_other(modules: list[Module]) -> None:
    assert {module.part for module in modules} == MAY_IMPORT.keys()


def test_imports_point_one_way(modules: list[Module]) -> None:
    assert wrong_directions(modules) == []


def test_the_kernel_is_pure(modules: list[Module]) -> None:
    assert impurities(modules) == []


def test_no_modules_import_each_other(modules: list[Module]) -> None:
    assert cycles(modules) == []


def test_nobody_but_the_store_knows_a_database(modules: list[Module]) -> None:
    assert of_a_database(modules) == []


def test_a_store_shares_nothing_with_another_but_the_records(modules: list[Module]) -> None:
    assert of_another_store(modules) == []


def test_nobody_but_the_runtime_knows_an_engine(modules: list[Module]) -> None:
    assert of_an_engine(modules) == []


def test_records_are_queried_by_use_cases(modules: list[Module]) -> None:
    assert queries_of_their_own(modules) == []


@pytest.mark.parametrize(
    "source",
    [
        "from weftline.store.records import threads",
        "from weftline.store import records",
        "import weftline.store.records.threads",
        "def late():\n    from weftline.store.records.agents import AgentRow, ids_by_slug",
        "async def late(self):\n    await self._store.records.read(query)",
        "async def late(records):\n    await records.write(query)",
    ],
)
def test_a_query_elsewhere_would_be_noticed(tmp_path: Path, source: str) -> None:
    for part in CALL_USE_CASES:
        assert len(queries_of_their_own(plant(tmp_path, f"{part.rpartition('.')[2]}/x.py", source))) == 1
    assert queries_of_their_own(plant(tmp_path, "workspace/x.py", source)) == []


def test_tests_know_what_any_engine_can_do() -> None:
    tests = Path(__file__).parent
    others = (path for path in tests.rglob("*.py") if path.relative_to(tests).parts[0] not in KNOW_AN_ENGINE)
    used = re.compile(r"^\s*(from|import) weftline\.runtime\.embedded", re.MULTILINE)
    assert [path.name for path in others if used.search(path.read_text(encoding="utf-8"))] == []


def test_commands_know_of_the_server_only_how_it_is_started(modules: list[Module]) -> None:
    """What a command shares with a route is free of HTTP, and so in `api/`."""
    known = {
        one.module
        for module in modules
        if module.part == "weftline.cli"
        for one in imports(module)
        if is_inside(one.module, "weftline.server")
    }
    assert known <= {
        f"weftline.server.{name}" for name in ("serve", "options", "logs", "own_socket", "local_serving", "offline")
    }


def test_nobody_uses_the_standard_librarys_sqlite(modules: list[Module]) -> None:
    assert standard_sqlite(modules) == []


def test_nobody_waits_in_a_way_that_swallows_a_cancel(modules: list[Module]) -> None:
    assert waits_that_swallow_a_cancel(modules) == []


def test_nobody_but_the_edge_uses_words_of_the_wire(modules: list[Module]) -> None:
    assert words_of_the_wire(modules) == []


def test_no_two_functions_of_module_or_class_differ_by_underscore(modules: list[Module]) -> None:
    assert functions_that_differ_by_an_underscore(modules) == []


def test_no_file_is_longer_than_one_can_hold_in_mind(modules: list[Module]) -> None:
    lengths = {module.name: len(module.path.read_text(encoding="utf-8").splitlines()) for module in modules}
    too_long = {name: lines for name, lines in lengths.items() if lines > MAX_LINES}
    assert not too_long, f"over {MAX_LINES} lines, look for the seam: {too_long}"


def small_files(modules: list[Module], *, root: Path = SRC) -> list[str]:
    return [
        module.path.relative_to(root / "weftline").as_posix()
        for module in modules
        if module.path.name != "__init__.py" and len(module.path.read_text(encoding="utf-8").splitlines()) < MIN_LINES
    ]


def may_be_small(path: str, patterns: str) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns.split("|"))


def small_without_a_reason(modules: list[Module], *, root: Path = SRC) -> list[str]:
    small = small_files(modules, root=root)
    return [path for path in small if not any(may_be_small(path, patterns) for patterns in SMALL_FOR_A_REASON)]


def test_small_files_have_a_reason(modules: list[Module]) -> None:
    found = small_without_a_reason(modules)
    assert not found, f"under {MIN_LINES} lines, merge each into its neighbour or say why not: {found}"


def test_reasons_for_small_files_are_needed(modules: list[Module]) -> None:
    small = small_files(modules)
    patterns = [pattern for some in SMALL_FOR_A_REASON for pattern in some.split("|")]
    assert [pattern for pattern in patterns if not any(may_be_small(path, pattern) for path in small)] == []


def test_a_small_file_without_a_reason_would_be_noticed(tmp_path: Path) -> None:
    planted = [*plant(tmp_path, "runtime/x.py", "x = 1"), *more(tmp_path, "cli/x.py", "x = 1")]
    planted += more(tmp_path, "kernel/x.py", "x = 1\n" * MIN_LINES)
    assert small_without_a_reason(planted, root=tmp_path) == ["runtime/x.py"]


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("kernel/x.py", "from weftline.runtime import driver"),
        ("kernel/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import weftline.tools.base"),
        ("kernel/x.py", "def late():\n    from ..store import sqlite"),
        ("kernel/__init__.py", "from .. import wire"),
        ("kernel/x.py", "import weftline"),
        ("tools/x.py", "from weftline.providers import scripted"),
        ("providers/x.py", "from weftline.tools.base import Tool"),
        ("store/sqlite/x.py", "from weftline import runtime"),
        ("runtime/x.py", "from weftline.server import app"),
        ("client/x.py", "from importlib import import_module\nimport_module('weftline.kernel.state')"),
        ("server/x.py", "from weftline.cli import main"),
        ("api/x.py", "from weftline.server.http import Request"),
        ("workspace/x.py", "from weftline.runtime import clock"),
        ("workspace/x.py", "from weftline.server.app import App"),
        ("runtime/x.py", "from weftline.workspace import agents"),
        ("store/records/x.py", "from weftline.workspace import agents"),
        ("runtime/x.py", "from weftline.testing import crash"),
        ("runtime/x.py", "from weftline.spec.plan import plan_from_spec"),
        ("store/x.py", "from weftline.wire import limits"),
        ("plan.py", "from weftline.wire import plan"),
        ("__init__.py", "from weftline.errors import WeftlineError"),
    ],
)
def test_a_wrong_import_would_be_noticed(tmp_path: Path, place: str, source: str) -> None:
    planted = plant(tmp_path, place, source)
    assert len(wrong_directions(planted, root=tmp_path)) == 1


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("tools/x.py", "from weftline.providers.base import ToolSpec"),
        ("tools/x.py", "from weftline.providers import base"),
        ("kernel/x.py", "from . import state\nfrom .state import State\nfrom weftline.messages import Usage"),
        ("client/x.py", "from weftline.wire import limits"),
        ("cli/x.py", "from weftline import tool"),
        ("__init__.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import weftline.errors"),
    ],
)
def test_a_right_import_is_left_alone(tmp_path: Path, place: str, source: str) -> None:
    planted = plant(tmp_path, place, source)
    assert wrong_directions(planted, root=tmp_path) == []


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio",
        "from time import monotonic",
        "import os.path",
        "def late():\n    import random",
        "print('x')",
        "key = hash('x')",
        "async def step(): ...",
    ],
)
def test_an_impurity_of_the_kernel_would_be_noticed(tmp_path: Path, source: str) -> None:
    planted = plant(tmp_path, "kernel/x.py", source)
    assert len(impurities(planted, root=tmp_path)) == 1


def test_a_cycle_would_be_noticed(tmp_path: Path) -> None:
    planted = [
        *plant(tmp_path, "workspace/a.py", "from weftline.workspace import b"),
        *more(tmp_path, "workspace/b.py", "def late():\n    from weftline.workspace.c import x"),
        *more(tmp_path, "workspace/c.py", "import weftline.workspace.a"),
        *more(tmp_path, "workspace/d.py", "import weftline.workspace.a"),
    ]
    circle = ["weftline.workspace.a", "weftline.workspace.b", "weftline.workspace.c"]
    assert cycles(planted, root=tmp_path) == [circle]


def test_a_cycle_through_packages_would_be_noticed(tmp_path: Path) -> None:
    planted = [
        *plant(tmp_path, "store/__init__.py", "from weftline.store.a import x"),
        *more(tmp_path, "store/a.py", "from weftline.sandbox.b import x"),
        *more(tmp_path, "store/c.py", ""),
        *more(tmp_path, "sandbox/__init__.py", "from weftline.sandbox.d import x"),
        *more(tmp_path, "sandbox/b.py", ""),
        *more(tmp_path, "sandbox/d.py", "from weftline.store.c import x"),
    ]
    circle = ["weftline.sandbox", "weftline.sandbox.d", "weftline.store", "weftline.store.a"]
    assert cycles(planted, root=tmp_path) == [circle]


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("store/records/x.py", "import apsw"),
        ("workspace/x.py", "from weftline.store.sqlite.database import run_query"),
    ],
)
def test_a_database_among_records_and_use_cases_would_be_noticed(tmp_path: Path, place: str, source: str) -> None:
    (tmp_path / "weftline" / "store" / "sqlite").mkdir(parents=True)
    planted = plant(tmp_path, place, source)
    assert len(of_a_database(planted, root=tmp_path)) == 1


@pytest.mark.parametrize(
    ("place", "source", "count"),
    [
        ("store/memory/x.py", "from weftline.store.sqlite import pieces", 1),
        ("store/memory/x.py", "def late():\n    from weftline.store.sqlite.connection import connect", 1),
        ("store/sqlite/x.py", "from weftline.store.memory import MemoryStore", 1),
        ("store/memory/x.py", "from weftline.store.sqlite.database import run_query", 0),
    ],
)
def test_a_store_that_uses_another_would_be_noticed(tmp_path: Path, place: str, source: str, count: int) -> None:
    for store in ("memory", "sqlite"):
        (tmp_path / "weftline" / "store" / store).mkdir(parents=True)
    for name in ("pieces", "connection", "database"):
        (tmp_path / "weftline" / "store" / "sqlite" / f"{name}.py").touch()
    assert len(of_another_store(plant(tmp_path, place, source), root=tmp_path)) == count


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("server/x.py", "from weftline.runtime.embedded import EmbeddedEngine"),
        ("agent/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import weftline.runtime.embedded"),
        ("server/x.py", "def late(app):\n    return app.engine.store"),
        ("cli/x.py", "def late(self):\n    return self._host._fleet.loader"),
        ("api/x.py", "def late(app):\n    return app.engine.dispatcher"),
    ],
)
def test_an_engine_among_its_users_would_be_noticed(tmp_path: Path, place: str, source: str) -> None:
    (tmp_path / "weftline" / "runtime").mkdir(parents=True)
    (tmp_path / "weftline" / "runtime" / "embedded.py").touch()
    planted = plant(tmp_path, place, source)
    assert len(of_an_engine(planted, root=tmp_path)) == 1


def test_the_standard_librarys_sqlite_would_be_noticed(tmp_path: Path) -> None:
    planted = plant(tmp_path, "store/x.py", "def late():\n    from sqlite3 import connect")
    assert len(standard_sqlite(planted, root=tmp_path)) == 1


def test_a_wait_that_swallows_a_cancel_would_be_noticed(tmp_path: Path) -> None:
    planted = plant(tmp_path, "store/x.py", "async def late():\n    await asyncio.wait_for(x, 1)")
    assert len(waits_that_swallow_a_cancel(planted)) == 1


@pytest.mark.parametrize(
    "source", ['"""Its `toolUseId`."""', "raise Conflict(code='session_ended')", "x = 1  # as in agent-runs"]
)
def test_a_word_of_the_wire_would_be_noticed(tmp_path: Path, source: str) -> None:
    assert len(words_of_the_wire(plant(tmp_path, "store/x.py", source))) == 1
    assert words_of_the_wire(plant(tmp_path, "wire/x.py", source)) == []


def test_two_functions_that_differ_by_an_underscore_would_be_noticed(tmp_path: Path) -> None:
    source = "class A:\n  def load(self): ...\n  async def _load(self): ...\n\ndef a(): ...\ndef _a(): ..."
    found = functions_that_differ_by_an_underscore(plant(tmp_path, "store/x.py", source))
    assert found == ["weftline.store.x: a", "weftline.store.x: A.load"]


def plant(root: Path, place: str, source: str) -> list[Module]:
    """A package with the real one's folders and nothing in it but `source` at `place`."""
    for name in MAY_IMPORT:
        folder = root.joinpath(*name.split("."))
        if name not in {"weftline.__init__", "weftline._version", "weftline.messages", "weftline.errors"}:
            folder.mkdir(parents=True, exist_ok=True)
    (root / "weftline" / "providers" / "base.py").write_text("")
    return more(root, place, source)


def more(root: Path, place: str, source: str) -> list[Module]:
    path = root / "weftline" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    return [parse(path, root=root)]

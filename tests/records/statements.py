# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""Every statement of the records, found by running each query on SQLite with arguments of every shape it takes."""

from __future__ import annotations

import ast
import inspect
import itertools
import pkgutil
import types
import typing
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from weftline.store import records
from weftline.store.budgets import Booking
from weftline.store.database import Query, SqlValue, Statement
from weftline.store.records import budgets
from weftline.store.sqlite.database import records_in_memory

_TEXTS = {"table": "agents", "message": "message", "metadata": '{"env": "prod"}'}
"""Texts that a query reads itself."""
_LISTS = {"metadata": "{}", "agents": "[]", "events": '["x"]', "redirect_uris": "[]"}
"""Columns of JSON."""
_SIMPLE: dict[Any, list[Any]] = {types.NoneType: [None], bool: [False, True], int: [1], bytes: [b"x"]}
_MORE: dict[str, list[Callable[[], Query[Any]]]] = {
    "budgets.book": [lambda: budgets.book([Booking(1, f"run:{key}", 1, nusd=1) for key in range(7)])]
}
"""Calls that nobody would guess from the types of the arguments."""
_ONCE = ("thread_messages.keep",)
"""Queries that refuse the same row twice, as the examples have it."""
_VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")


class Seen(NamedTuple):
    query: str
    """Module and function."""
    statement: Statement


def modules() -> list[types.ModuleType]:
    return [import_module(f"{records.__name__}.{found.name}") for found in pkgutil.iter_modules(records.__path__)]


def queries() -> Iterator[tuple[str, Callable[..., Query[Any]]]]:
    """Every public query of the package, by name."""
    for module in modules():
        for name, value in vars(module).items():
            if inspect.isgeneratorfunction(value) and value.__module__ == module.__name__ and name[0] != "_":
                yield f"{module.__name__.rpartition('.')[2]}.{name}", value


def literals() -> Iterator[str]:
    """Every piece of SQL that the source of the package begins a statement with."""
    for module in modules():
        assert module.__file__ is not None
        for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(_VERBS):
                yield node.value


def examples(hint: Any, name: str = "") -> list[Any]:
    """Values of a type: the emptiest and the fullest."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return [value for part in typing.get_args(hint) for value in examples(part, name)[-1:]]
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _structs(hint)
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if hint is str:
        return [_TEXTS.get(name, "x")]
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and arguments[-1] is not Ellipsis:
        return [tuple(examples(part)[-1] for part in arguments)]
    if typing.get_origin(hint) is typing.Literal:
        return [arguments[-1]]
    if typing.get_origin(hint) is dict:
        return [{}, {examples(arguments[0])[-1]: examples(arguments[1])[-1]}]
    assert typing.get_origin(hint) in (tuple, list, Sequence), f"give examples of {hint}"
    item = examples(arguments[0])[-1]
    return [(), (item, item)]


def _structs(kind: type[msgspec.Struct]) -> list[msgspec.Struct]:
    hints = typing.get_type_hints(kind)
    full = {name: examples(hints[name], name) for name in kind.__struct_fields__}
    required = {field.name for field in msgspec.structs.fields(kind) if field.required}
    emptiest = {name: values[0] for name, values in full.items() if name in required}
    alone = [kind(**{**emptiest, name: value}) for name, values in full.items() for value in values]
    fullest = kind(**{name: values[-1] for name, values in full.items()})
    return [*alone, fullest]


def calls(query: Callable[..., Query[Any]]) -> Iterator[Query[Any]]:
    """The query with every combination of examples for its arguments."""
    hints = typing.get_type_hints(query)
    parameters = inspect.signature(query).parameters
    choices = [examples(hints[name], name) for name in parameters]
    for values in itertools.product(*choices):
        bound = inspect.signature(query).bind_partial()
        bound.arguments.update(zip(parameters, values, strict=True))
        yield query(*bound.args, **bound.kwargs)


def run(execute: Callable[[Statement], list[Any]], query: Query[Any]) -> Iterator[Statement]:
    try:
        statement = next(query)
        while True:
            yield statement
            statement = query.send(execute(statement))
    except StopIteration:
        return


@contextmanager
def database() -> Generator[Callable[[Statement], list[Any]]]:
    """Executes statements on a new SQLite database, which has no tables but those of the records."""
    with closing(records_in_memory()) as db:

        def execute(statement: Statement) -> list[Any]:
            return db.execute(statement.sql, statement.values).fetchall()

        yield execute


def fill(execute: Callable[[Statement], list[Any]]) -> None:
    """Puts into every table one row of the same values that `examples` gives, so that look-ups find it."""
    values: dict[str, SqlValue] = {"INTEGER": 1, "TEXT": "x", "BLOB": b"x"}
    for (table,) in execute(Statement("SELECT name FROM sqlite_schema WHERE type = 'table'")):
        columns = execute(Statement('SELECT name, type, "notnull", pk FROM pragma_table_info($1)', (table,)))
        given = {
            name: _LISTS.get(name, values[kind]) if kind != "BLOB" else _LISTS.get(name, "x").encode()
            for name, kind, required, primary in columns
            if required or primary or name == "active_run"
        }
        names = ", ".join(f'"{name}"' for name in given)
        marks = ", ".join(f"${number + 1}" for number in range(len(given)))
        execute(Statement(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(given.values())))


def every_statement() -> list[Seen]:
    """What all queries execute, each text once for each query. Each call finds the tables empty, and then filled."""
    seen: dict[tuple[str, str], Seen] = {}
    with database() as execute:
        for filled, (name, query) in itertools.product((False, True), queries()):
            for one in (*calls(query), *(more() for more in _MORE.get(name, ()))):
                execute(Statement("BEGIN"))
                if filled:
                    fill(execute)
                try:
                    for statement in run(execute, one):
                        seen.setdefault((name, statement.sql), Seen(name, statement))
                except apsw.ConstraintError:
                    assert filled or name in _ONCE, (name, "is against a rule of the empty database")
                execute(Statement("ROLLBACK"))
    return list(seen.values())

"""Bounds the work of pydantic's validators for arguments that a model wrote.

They cannot run in another process, as `weftline.work.processes` does it: they return Python objects, and call code of
the tool's author. A few types make pydantic work far more than the arguments are long:

* A recursive union (a filter of `And`, `Or` and `Not`) is tried once for each of its members, at each level. 200 bytes
  can take minutes.
* The items of a set, and the keys of a dict, can be chosen so that their hashes are equal: numbers, decimals and UUIDs.
  Then each is compared with all others.

So their validators count (`count`) and give up. Everything else takes time in proportion to the arguments, whose size
is limited; it takes place in a thread if they are large (`bounded`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from weftline import prompts

if TYPE_CHECKING:
    from weftline.tools.workers import ToolWorkers

T = TypeVar("T")
_Schema: TypeAlias = dict[str, Any]

SMALL_BYTES = 16 * 1024
"""Arguments up to this size are validated on the event loop."""
MAX_STEPS_ON_LOOP = 200
"""How many unions are tried there. This takes 1 ms, and several times as long if nothing fits."""
_FREE_STEPS = 20
"""After more of them, other tasks have a turn: a model may ask for a thousand calls at once."""
MAX_STEPS_AGAIN = 10_000
"""The same for arguments that are known to fit. This takes up to 40 ms."""
CPU_S = 0.2
"""CPU time for reading the arguments that a model wrote."""
CPU_AGAIN_S = 2.0
"""The same for arguments that have been read before, which must not fail for being a little slower."""
MAX_ALIKE = 32
"""How many different values with the same hash a set may have."""

NOT_SCHEMAS = frozenset({"metadata", "default", "expected", "members"})
"""The parts of a schema that are not schemas."""
_STEPS_BETWEEN = 256
"""How often the CPU time is looked at."""
_TAG = "\0"
_ANY: _Schema = {"type": "any"}
_TEXT: _Schema = {"type": "str"}
"""The keys of a JSON object."""
_SCALARS = frozenset({"any", "none", "bool", "int", "float", "decimal", "str", "bytes", "date", "time", "datetime"}) | {
    *("timedelta", "literal", "missing-sentinel", "enum", "uuid", "url", "multi-host-url", "complex"),
}
_SAFE_HASHES = frozenset({"none", "bool", "str", "bytes", "date", "time", "datetime", "literal", "enum", "url"})
"""Types with few values, or whose hashes nobody outside can foresee."""


class TooMuchWork(Exception):
    """Arguments took too long to validate."""

    def __init__(self) -> None:
        super().__init__(prompts.calls.TOO_MUCH_TO_CHECK)


class _Work(threading.local):
    """The work of one validation so far. Each thread validates one thing at a time."""

    max_steps: int | None = None
    """None if CPU time is what counts."""
    cpu_s = CPU_AGAIN_S
    steps = 0
    check_at = 0
    until = 0.0
    hashes: dict[int, object]
    alike: dict[int, list[object]]


_work = _Work()


@contextmanager
def counting() -> Generator[None]:
    """A validation by validators that `count`; they raise `TooMuchWork`."""
    _work.steps, _work.hashes, _work.alike = 0, {}, {}
    if _work.max_steps is not None:
        _work.check_at = _work.max_steps
    else:
        _work.check_at, _work.until = _STEPS_BETWEEN, time.thread_time() + _work.cpu_s
    try:
        yield
    finally:
        _work.hashes, _work.alike = {}, {}


@contextmanager
def on_loop() -> Generator[None]:
    """Within this, validations of what is known to fit may take no longer than is acceptable on the event loop."""
    _work.max_steps = MAX_STEPS_AGAIN
    try:
        yield
    finally:
        _work.max_steps = None


async def bounded(read: Callable[[], T], *, size: int, cpu_s: float = CPU_AGAIN_S) -> T:
    """Returns what `read` returns, which validates arguments of this size: at once, or in a thread if it takes long.

    Raises `TooMuchWork`, and what `read` raises.
    """
    if size <= SMALL_BYTES:
        _work.max_steps, _work.steps = MAX_STEPS_ON_LOOP, 0
        try:
            return read()
        except TooMuchWork:
            pass
        finally:
            _work.max_steps = None
            if _work.steps > _FREE_STEPS:
                from asyncio import sleep  # whoever only defines tools does not need it

                await sleep(0)
    return await _threads().run(lambda: _read_in_thread(read, cpu_s), tool=NOT_CHECKED)


def _read_in_thread(read: Callable[[], T], cpu_s: float) -> T:
    _work.cpu_s = cpu_s
    try:
        return read()
    finally:
        _work.cpu_s = CPU_AGAIN_S


NOT_CHECKED = "arguments"
"""What `workers.not_started` returns for arguments that were still waiting for the thread of their workspace."""
_pool: list[ToolWorkers] = []


def _threads() -> ToolWorkers:
    """One thread for each workspace: more would compete with the event loop for the interpreter."""
    if not _pool:
        from weftline.tools.workers import ToolWorkers  # needs asyncio, which whoever only defines tools does not

        _pool.append(ToolWorkers(max_per_workspace=1))
    return _pool[0]


os.register_at_fork(after_in_child=_pool.clear)


def needs_counting(schema: _Schema, *, recursive: bool) -> bool:
    """Returns True if the values of a schema can cost far more than they are long. `recursive` says whether it is part
    of a type that contains itself.
    """
    match schema["type"]:
        case "union":
            return recursive and not all(one["type"] in _SCALARS for one in _choices(schema))
        case "set" | "frozenset":
            return schema.get("items_schema", _ANY)["type"] not in _SAFE_HASHES
        case "dict":
            return schema.get("keys_schema", _TEXT)["type"] not in _SAFE_HASHES
        case _:
            return False


def count(schema: _Schema) -> None:
    """Makes a schema that needs it count what its values cost."""
    match schema["type"]:
        case "union":
            inner = dict(schema)
            ref = inner.pop("ref", None)
            schema.clear()
            # It is asked before its only choice reads the value, and leaves that alone. A validator around the union
            # would get Python objects in place of JSON, and those are read in another way.
            schema.update({"type": "tagged-union", "choices": {_TAG: inner}, "discriminator": _step})
            if ref is not None:
                schema["ref"] = ref
        case "dict":
            schema["keys_schema"] = _hashed(schema["keys_schema"])
        case _:
            schema["items_schema"] = _hashed(schema.get("items_schema", _ANY))


def is_recursive(schema: Mapping[str, Any]) -> bool:
    """Returns True if a core schema has a type that contains itself."""
    parts = [one for one in _parts(schema) if one.get("type") == "definitions"]
    uses = {one["ref"]: set(_refs(one)) for part in parts for one in cast("list[_Schema]", part["definitions"])}
    return any(_reaches(ref, ref, uses) for ref in uses)


def _reaches(start: str, wanted: str, uses: Mapping[str, set[str]]) -> bool:
    seen, left = set[str](), [start]
    while left:
        found = uses.get(left.pop(), set[str]()) - seen
        if wanted in found:
            return True
        seen |= found
        left += found
    return False


def _refs(schema: _Schema) -> Iterator[str]:
    return (one["schema_ref"] for one in _parts(schema) if one.get("type") == "definition-ref")


def _parts(part: object) -> Iterator[Mapping[str, Any]]:
    """The schemas in a part of a schema, and what else looks like one."""
    if isinstance(part, Mapping):
        one = cast("Mapping[str, Any]", part)
        yield one
        for name, value in one.items():
            if name not in NOT_SCHEMAS:
                yield from _parts(value)
    elif isinstance(part, list | tuple):
        for value in cast("list[object]", part):
            yield from _parts(value)


def without_tags(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The location of an error, without what counting adds to it."""
    return tuple([step for step in location if step != _TAG]) if _TAG in location else location


def _choices(union: _Schema) -> list[_Schema]:
    choices = cast("list[_Schema | tuple[_Schema, str]]", union["choices"])
    return [one[0] if isinstance(one, tuple) else one for one in choices]


def _hashed(items: _Schema) -> _Schema:
    return {"type": "function-after", "function": {"type": "no-info", "function": _note_hash}, "schema": items}


def _step(value: object) -> str:
    _work.steps = steps = _work.steps + 1
    if steps >= _work.check_at:
        if _work.max_steps is not None or time.thread_time() > _work.until:
            raise TooMuchWork
        _work.check_at = steps + _STEPS_BETWEEN
    return _TAG


def _note_hash(value: T) -> T:
    try:
        number = hash(value)
    except TypeError:
        return value  # reported by the set itself
    first = _work.hashes.setdefault(number, value)
    if first is not value and first != value:
        others = _work.alike.setdefault(number, [])
        if value not in others:
            if len(others) >= MAX_ALIKE:
                raise TooMuchWork
            others.append(value)
    return value

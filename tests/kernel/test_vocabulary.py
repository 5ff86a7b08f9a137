"""What a log can hold is pinned, with a number: code that does not know the number leaves the run alone.

`tests/fixtures/formats/N.txt` is the vocabulary of format N. After a change raise `FORMAT` and write the new page:
`python tests/kernel/test_vocabulary.py`. A page of a released format is never written again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, inspect

from weftline.kernel import bodies, notes
from weftline.kernel.entries import FACTS, FORMAT
from weftline.kernel.notes import (
    ARGS_DELTA,
    CHILD_NOTE,
    PROMPT_NOTE,
    PROVIDER_CALL,
    RUN_NOTE,
    TEXT_DELTA,
    THINKING_DELTA,
    TOOL_NOTE,
    TOOL_PROGRESS,
)
from weftline.messages import Message
from weftline.plan import RunPlan

_OBSERVATIONS = (
    TEXT_DELTA,
    THINKING_DELTA,
    PROVIDER_CALL,
    TOOL_PROGRESS,
    TOOL_NOTE,
    RUN_NOTE,
    PROMPT_NOTE,
    CHILD_NOTE,
    ARGS_DELTA,
)
FIRST = 11
"""The format of the first release; earlier ones were never released."""
FORMATS = Path(__file__).parents[1] / "fixtures" / "formats"
_BODIES = [
    cls
    for module in (bodies, notes)
    for cls in vars(module).values()
    if isinstance(cls, type) and cls.__module__ == module.__name__
]
_PLAIN: dict[type[inspect.Type], str] = {
    inspect.AnyType: "Any",
    inspect.BoolType: "bool",
    inspect.FloatType: "float",
    inspect.IntType: "int",
    inspect.NoneType: "None",
    inspect.RawType: "JSON",
    inspect.StrType: "str",
}


def vocabulary() -> str:
    """Every struct that a log can hold, by name, with its fields, their types and defaults."""
    found: dict[str, inspect.StructType] = {}
    for root in (*FACTS.values(), *_BODIES, Message, RunPlan):
        _collect(inspect.type_info(root), found)
    lines = [f"format {FORMAT}", f"observations: {', '.join(sorted(_OBSERVATIONS))}"]
    for name, struct in sorted(found.items()):
        tag = f" {struct.tag_field}={struct.tag!r}" if struct.tag is not None else ""
        lines += ["", f"{name}{tag}{' strict' if struct.forbid_unknown_fields else ''}"]
        lines += [f"  {field.encode_name}: {_name(field.type)}{_default(field)}" for field in struct.fields]
    return "\n".join(lines) + "\n"


def _collect(kind: inspect.Type, found: dict[str, inspect.StructType]) -> None:
    match kind:
        case inspect.StructType(cls=cls):
            assert found.get(cls.__name__, kind).cls is cls, "two structs have one name"
            if cls.__name__ not in found:
                found[cls.__name__] = kind
                for field in kind.fields:
                    _collect(field.type, found)
        case inspect.UnionType(types=types) | inspect.TupleType(item_types=types):
            for one in types:
                _collect(one, found)
        case inspect.VarTupleType(item_type=one) | inspect.DictType(value_type=one):
            _collect(one, found)
        case _:
            assert type(kind) in _PLAIN or isinstance(kind, inspect.LiteralType), kind


def _name(kind: inspect.Type) -> str:
    match kind:
        case inspect.StructType(cls=cls):
            return cls.__name__
        case inspect.UnionType(types=types):
            return " | ".join(_name(one) for one in types)
        case inspect.TupleType(item_types=types):
            return f"({', '.join(_name(one) for one in types)})"
        case inspect.VarTupleType(item_type=one):
            return f"[{_name(one)}]"
        case inspect.DictType(key_type=key, value_type=value):
            return f"{{{_name(key)}: {_name(value)}}}"
        case inspect.LiteralType(values=values):
            return "Literal[" + ", ".join(map(repr, values)) + "]"
        case _:
            return _PLAIN[type(kind)]


def _default(field: inspect.Field) -> str:
    if field.required:
        return ""
    if field.default is field.default_factory is msgspec.NODEFAULT:
        return " = absent"
    default: Any = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    shown = msgspec.json.encode(default).decode() if isinstance(default, Struct) else repr(default)
    return f" = {shown}"


def test_change_of_the_log_vocabulary_has_a_new_format_number() -> None:
    """If this fails the vocabulary has changed: raise `FORMAT`, or older code takes new runs for damaged ones."""
    assert vocabulary() == (FORMATS / f"{FORMAT}.txt").read_text(encoding="utf-8")


def test_each_released_format_has_left_its_page() -> None:
    assert {file.stem for file in FORMATS.iterdir()} == {str(number) for number in range(FIRST, FORMAT + 1)}


if __name__ == "__main__":
    (FORMATS / f"{FORMAT}.txt").write_text(vocabulary(), encoding="utf-8")

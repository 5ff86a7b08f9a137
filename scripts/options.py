"""Writes the options of the client and of the library from the fields of a spec: `make options`."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import Struct

from weftline.agent.settings import Limits
from weftline.spec import fields
from weftline.spec.declare import Field, Where, fields_of
from weftline.spec.plan import CONVERTED, NOT_STORED

SRC = Path(fields.__file__).parent.parent
CLIENT, LIBRARY = SRC / "client" / "_options.py", SRC / "agent" / "_options.py"
_SPELT_OTHERWISE = CONVERTED | NOT_STORED | frozenset(Limits.__struct_fields__)
"""Fields for which the library has words and types of its own, such as `Settings` and `Limits`."""
_KINDS = (
    ("MessageOptions", "CallOptions", Where.MESSAGE, "What may differ from run to run."),
    ("SessionOptions", "ToolOptions", Where.SESSION, "What holds for all runs of a session."),
    ("RunOptions", "CallOptions", Where.RUN, "What a run may be asked to do."),
)
_CLIENT = '''"""The options of the client, written by `make options` from the fields of `weftline.spec.fields.RunSpec`.

Options that are left out, and None, are not sent. All others are sent as they are given, including `False` and `{}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from weftline.client.options import CallOptions, ToolOptions

'''


_LIBRARY = '''"""Options of a run in the library that are fields of a spec as they are, written by `make options`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

'''


def written() -> dict[Path, str]:
    """Returns the source of each module."""
    kinds = [
        _written(
            name, base, doc, [one for one in fields_of(fields.RunSpec) if one.opt.client and one.opt.where & where]
        )
        for name, base, where, doc in _KINDS
    ]
    ours = [one for one in fields_of(fields.RunSpec) if one.name not in _SPELT_OTHERWISE]
    library = _written("SpecOptions", "TypedDict", "What a run may be asked to do here as over HTTP.", ours)
    return {CLIENT: _formatted(_CLIENT + "\n\n".join(kinds)), LIBRARY: _formatted(_LIBRARY + library)}


def _formatted(source: str) -> str:
    for command in (["check", "--fix", "--quiet", "--select", "F401"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(CLIENT), "-"]
        source = subprocess.run(ruff, input=source, capture_output=True, text=True, check=True).stdout
    return source


def _written(name: str, base: str, doc: str, given: Sequence[Field]) -> str:
    about = _docs()
    lines = [f"\nclass {name}({base}, total=False):", f'    """{doc}"""\n']
    for one in given:
        lines.append(f"    {one.name}: {_type(one.type)}")
        if one.name in about:
            lines.append(f'    """{about[one.name]}"""')
    return "\n".join(lines) + "\n"


def _docs() -> dict[str, str]:
    """Returns the documentation below each field."""
    (declared,) = ast.parse(inspect.getsource(fields.RunSpec)).body
    assert isinstance(declared, ast.ClassDef)
    found: dict[str, str] = {}
    for field, after in zip(declared.body, declared.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                found[name] = text
            case _:
                pass
    return found


def _type(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _type(args[0])
    if origin in (Union, UnionType):
        named = dict.fromkeys(_type(one) for one in args if one is not NoneType)
        return " | ".join([*named, "None"] if NoneType in args else named)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, args))}]".replace("'", '"')
    if origin in (tuple, Sequence):
        return f"Sequence[{_type(args[0])}]"
    if origin in (dict, Mapping):
        return f"Mapping[{_type(args[0])}, {_type(args[1])}]"
    if isinstance(kind, type) and issubclass(kind, Struct):
        return "Mapping[str, Any]"
    return "Any" if kind is Any else str(kind.__name__)


if __name__ == "__main__":
    for target, source in written().items():
        target.write_text(source, encoding="utf-8")

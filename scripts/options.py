"""Writes the options of the Python client from the fields of a spec: `make options`."""

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

from weftline.spec import fields
from weftline.spec.declare import Where, fields_of

TARGET = Path(fields.__file__).parent.parent / "client" / "_options.py"
_KINDS = (
    ("MessageOptions", "CallOptions", Where.MESSAGE, "What may differ from run to run."),
    ("SessionOptions", "ToolOptions", Where.SESSION, "What holds for all runs of a session."),
    ("RunOptions", "CallOptions", Where.RUN, "What a run may be asked to do."),
)
_HEAD = '''"""The options of the client, written by `make options` from the fields of `weftline.spec.fields.RunSpec`.

Options that are left out, and None, are not sent. All others are sent as they are given, including `False` and `{}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from weftline.client.options import CallOptions, ToolOptions

'''


def written() -> str:
    """Returns the source of the module."""
    source = _HEAD + "\n\n".join([_written(*kind) for kind in _KINDS])
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"],
        input=source,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def _written(name: str, base: str, where: Where, doc: str) -> str:
    about = _docs()
    lines = [f"\nclass {name}({base}, total=False):", f'    """{doc}"""\n']
    for one in fields_of(fields.RunSpec):
        if one.opt.client and one.opt.where & where:
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
    TARGET.write_text(written(), encoding="utf-8")

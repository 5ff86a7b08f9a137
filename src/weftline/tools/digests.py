"""What tells one version of a tool, or of other code of an agent's, from the next: digests of what it declares and of
its source.

They are the same in every process and on every machine, so nothing goes into them that depends on one: no address in
memory, no path, no compiled code.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable
from functools import partial
from hashlib import sha256

from weftline.canonical import NotCanonical, canonical
from weftline.tools.base import Tool

_LENGTH = 16


def digest(*parts: str | bytes) -> str:
    """Of texts in this order; none of them runs into the next."""
    whole = sha256()
    for part in parts:
        encoded = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        whole.update(b"%d:" % len(encoded))
        whole.update(encoded)
    return whole.hexdigest()[:_LENGTH]


def declared(tool: Tool) -> str:
    """Of what models and the runtime are told about a tool: its name, description, schema and effect, what people are
    asked about its calls, and what policies know it by.
    """
    spec = tool.spec
    schema = bytes(spec.parameters)
    try:
        schema = canonical(schema)
    except NotCanonical:
        pass  # it is what it is
    return digest(spec.name, spec.description, schema, tool.effect, *_rules(tool))


def _rules(tool: Tool) -> list[str]:
    """Nothing for a tool without any, which most are."""
    rules: dict[str, list[str]] = {
        "asks": list(getattr(tool, "asks", ())),
        "in_doubt": [getattr(tool, "in_doubt", None) or ""],
        "tags": sorted(getattr(tool, "tags", ())),
        "bookkeeping": ["yes" if getattr(tool, "bookkeeping", False) else ""],
        "terminal": ["yes" if getattr(tool, "terminal", False) else ""],
    }
    return [digest(name, *words) for name, words in rules.items() if any(words)]


def written(tool: Tool) -> str:
    """Of the source of a tool's functions, or of its class; of nothing for Weftline's own."""
    functions: Iterable[object] = getattr(tool, "functions", ())
    shaping: Iterable[object] = getattr(getattr(tool, "shaping", None), "functions", ())
    sources = [source_of(one) for one in (*functions, *shaping)]
    if not sources and not _is_ours(type(tool)):
        sources = [source_of(type(tool))]
    return digest(*sources)


def source_of(code: object) -> str:
    """The source of a function without what the other digests cover: decorators, signature and docstring.

    Of anything else the whole source; the name of what has none, such as a function typed at a prompt.
    """
    code = inspect.unwrap(code) if callable(code) else code
    while isinstance(code, partial):
        code = code.func
    if not inspect.isroutine(code) and not inspect.isclass(code):
        code = type(code)
    if _is_ours(code):
        return ""
    try:
        text = textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError):
        return f"{getattr(code, '__module__', '')}.{getattr(code, '__qualname__', '')}"
    try:
        (first, *_) = ast.parse(text).body
    except (SyntaxError, ValueError):
        return text
    if not isinstance(first, ast.FunctionDef | ast.AsyncFunctionDef):
        return text
    body = first.body[1:] if ast.get_docstring(first, clean=False) is not None else first.body
    if not body:
        return ""
    lines = text.splitlines()[body[0].lineno - 1 :]
    lines[0] = lines[0].encode()[body[0].col_offset :].decode()
    return textwrap.dedent("\n".join([line.rstrip() for line in lines]).rstrip())


def _is_ours(code: object) -> bool:
    module: str = getattr(code, "__module__", None) or ""
    return module == "weftline" or module.startswith("weftline.")

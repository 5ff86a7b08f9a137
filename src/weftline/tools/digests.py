"""Digests of what a tool, or other code of an agent, declares and of its source, to tell versions apart.

They are the same in every process and on every machine, so they contain nothing that depends on one: no address in
memory, no path, no compiled code.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import partial
from hashlib import sha256

from weftline.text.canonical import NotCanonical, canonical
from weftline.tools.base import Tool

_LENGTH = 16


def digest(*parts: str | bytes) -> str:
    """Returns a digest of texts in this order. Their lengths are included, so that no two lists collide."""
    whole = sha256()
    for part in parts:
        encoded = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        whole.update(b"%d:" % len(encoded))
        whole.update(encoded)
    return whole.hexdigest()[:_LENGTH]


def declared(tool: Tool) -> str:
    """Returns a digest of what a tool declares.

    That is its name, description, schema and effect, what people are asked about its calls, and what policies filter
    by.
    """
    spec = tool.spec
    schema = bytes(spec.parameters)
    try:
        schema = canonical(schema)
    except NotCanonical:
        pass  # used as it stands
    return digest(spec.name, spec.description, schema, tool.effect, *_rules(tool))


def _rules(tool: Tool) -> list[str]:
    """Returns a digest for each rule that the tool has; most have none."""
    traits = tool.traits
    rules: dict[str, list[str]] = {
        "asks": list(traits.asks),
        "in_doubt": [traits.in_doubt or ""],
        "tags": sorted(traits.tags),
        "bookkeeping": ["yes" if traits.bookkeeping else ""],
        "terminal": ["yes" if traits.terminal else ""],
    }
    return [digest(name, *words) for name, words in rules.items() if any(words)]


def written(tool: Tool) -> str:
    """Returns a digest of the source of a tool's functions, or of its class. Weftline's own source does not count."""
    traits = tool.traits
    shaping = () if traits.shaping is None else traits.shaping.functions
    sources = [source_of(one) for one in (*traits.functions, *shaping)]
    if not sources and not _is_ours(type(tool)):
        sources = [source_of(type(tool))]
    return digest(*sources)


def source_of(code: object) -> str:
    """Returns the source of a function without what other digests cover: decorators, signature and docstring.

    For other objects, returns the whole source; for those without a source, such as a function typed at a prompt, the
    name.
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

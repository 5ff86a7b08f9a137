"""Turns the arguments of `run_code` into `Code`: all errors of a caller are reported here, at the call."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from typing import cast

from weftline.sandbox.base import DEFAULT_FILENAME, LANGUAGES, MIN_MEMORY_LIMIT_BYTES, Code, Module
from weftline.sandbox.values import Functions, copied, path_to
from weftline.text.characters import whole
from weftline.text.suggestions import did_you_mean

JS_WORDS = frozenset(
    {"arguments", "await", "break", "case", "catch", "class", "const", "continue", "debugger", "default", "delete"}
    | {"do", "else", "enum", "eval", "export", "extends", "false", "finally", "for", "function", "globalThis", "if"}
    | {"implements", "import", "in", "Infinity", "instanceof", "interface", "let", "NaN", "new", "null", "package"}
    | {"private", "protected", "public", "return", "static", "super", "switch", "this", "throw", "true", "try"}
    | {"typeof", "undefined", "var", "void", "while", "with", "yield"}
)
"""Names that JavaScript does not allow to be declared."""
_URL = re.compile(r"[A-Za-z][\w+.-]*:")


def read(
    source: str,
    *,
    language: str,
    fn: str,
    args: Sequence[object],
    imports: Mapping[str, Mapping[str, object]],
    modules: Mapping[str, str],
    globals: Mapping[str, object],
    reports: bool,
    memory_limit_bytes: int,
    filename: str | None,
) -> tuple[Code, Functions]:
    """Raises `ValueError` that names what is wrong."""
    check_texts(source=source, language=language, fn=fn, **({} if filename is None else {"filename": filename}))
    for option, given in (("imports", imports), ("modules", modules), ("globals", globals)):
        _check_mapping(option, given)
    if not isinstance(cast("object", args), list | tuple):
        raise ValueError(f"args must be a list, not {_kind(args)}.")
    if language not in LANGUAGES:
        hint = did_you_mean(language, LANGUAGES)
        raise ValueError(f"{language!r} is not a language; use one of {', '.join(LANGUAGES)}.{hint}")
    if reports and "report" in globals:
        raise ValueError("`report` and `globals['report']` cannot be combined: both are called `report` in the code.")
    check_memory_limit(memory_limit_bytes)
    for name in globals:
        _check_name(name, python=language == "python")
    functions = Functions()
    entry, files = _files(source, modules, filename)
    code = Code(
        language=language,
        entry=entry,
        modules=files,
        imports={specifier: _exports(specifier, exported, functions) for specifier, exported in imports.items()},
        globals={name: copied(value, path_to("globals", name), functions=functions) for name, value in globals.items()},
        fn=fn,
        args=[copied(value, f"args[{index}]") for index, value in enumerate(args)],
        reports=reports,
        memory_limit_bytes=memory_limit_bytes,
    )
    return code, functions


def check_memory_limit(limit: object) -> None:
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise ValueError(f"memory_limit_bytes must be an integer, not {_kind(limit)}.")
    if limit < MIN_MEMORY_LIMIT_BYTES:
        raise ValueError(f"memory_limit_bytes must be at least {MIN_MEMORY_LIMIT_BYTES:,}, not {limit:,}.")


def check_texts(**given: object) -> None:
    for name, value in given.items():
        if not isinstance(value, str):
            raise ValueError(f"{name} must be text, not {_kind(value)}.")


def _check_mapping(option: str, given: object) -> None:
    if not isinstance(given, Mapping):
        raise ValueError(f"{option} must be a mapping, not {_kind(given)}.")
    for key, value in cast("Mapping[object, object]", given).items():
        if not isinstance(key, str):
            raise ValueError(f"{option}: names must be text, not {_kind(key)}.")
        if option == "modules" and not isinstance(value, str):
            raise ValueError(f"{path_to(option, key)} must be text, not {_kind(value)}.")
        if option == "imports":
            _check_mapping(path_to(option, key), value)


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _check_name(name: str, *, python: bool) -> None:
    fits = name.isidentifier() if python else name.replace("$", "_").isidentifier()
    if not fits or (keyword.iskeyword(name) if python else name in JS_WORDS):
        raise ValueError(f"globals: {name!r} cannot be the name of a variable.")


def _exports(specifier: str, exported: Mapping[str, object], functions: Functions) -> dict[str, object]:
    if specifier.startswith((".", "/")) or not specifier:
        raise ValueError(f"imports: {specifier!r} is not a bare specifier; put your own modules in `modules`.")
    if _URL.match(specifier):
        raise ValueError(f"imports: {specifier!r} is a URL, which code cannot import.")
    path = path_to("imports", specifier)
    return {name: copied(value, path_to(path, name), functions=functions) for name, value in exported.items()}


def _files(source: str, modules: Mapping[str, str], filename: str | None) -> tuple[str, dict[str, Module]]:
    label = whole(filename or DEFAULT_FILENAME)
    files: dict[str, Module] = {}
    for key, text in modules.items():
        path = normal(key)
        if path is None or path in files or key.startswith("/"):
            raise ValueError(f"modules: {key!r} is not a path inside the graph, or occurs twice.")
        files[path] = Module(whole(key), whole(text))
    entry = (normal(filename) if filename else None) or label
    if entry in files:
        raise ValueError(f"modules: {entry!r} is the entry's own path.")
    files[entry] = Module(label, whole(source))
    return entry, files


def normal(path: str) -> str | None:
    """A path from the root of the graph, without `./` and `../`; None if it leaves the graph or names no file."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return None if not parts or path.endswith("/") else "/".join(parts)

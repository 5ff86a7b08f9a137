"""Output of commands: ids alone for scripts, fields for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from textwrap import indent
from typing import Any, cast

import click

from weftline.cli.terminal import is_terminal, show_table
from weftline.store.naming import DEFAULT_DB

_MAX_COLUMNS = 6

DB = click.option(
    "--db",
    envvar="WEFTLINE_DB",
    default=DEFAULT_DB,
    show_default=True,
    show_envvar=True,
    type=click.Path(path_type=Path),
    help="The store.",
)
CODE = click.Path(path_type=str)
"""Python code: a file, a folder of files, `package.module` or `package.module:name`. The shell completes paths."""
TOOLS = click.option(
    "--tools", type=CODE, metavar="CODE", help="@weftline.tool functions: a file, folder, module or module:name."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def show_all(items: Iterable[dict[str, Any]], *, id_field: str, as_json: bool) -> None:
    """Prints one id per line, a JSON list with everything, or a table on a terminal."""
    if as_json:
        show_json(items)
        return
    if not is_terminal():
        for item in items:
            click.echo(item[id_field])
        return
    fields: list[str] = []
    rows: list[list[str]] = []
    for item in items:
        if not fields:
            fields = [id_field, *(name for name, value in item.items() if name != id_field and _is_short(value))]
            fields = fields[:_MAX_COLUMNS]
        rows.append([_text(item.get(name)) for name in fields])
    if rows:
        show_table([name.upper() for name in fields], rows, whole=[id_field.upper()])


def show_json(items: Iterable[dict[str, Any]]) -> None:
    """Prints what `json.dumps` with an indent of two would return, but one item at a time."""
    before = "["
    for item in items:
        click.echo(f"{before}\n{indent(json.dumps(item, indent=2), '  ')}", nl=False)
        before = ","
    click.echo("[]" if before == "[" else "\n]")


def show_done(fields: dict[str, Any], *, as_json: bool) -> None:
    """Prints the result of a command that has nothing else to print."""
    if as_json:
        click.echo(json.dumps(fields))


def show_one(item: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(item, indent=2))
        return
    width = max(len(name) for name in item)
    for name, value in item.items():
        click.echo(f"{name:<{width}}  {_text(value)}".rstrip())


def _is_short(value: Any) -> bool:
    return not isinstance(value, dict)


def show_warnings(made: dict[str, Any]) -> None:
    """Prints the server's warnings about a request to stderr."""
    for warning in made.get("warnings", ()):
        click.echo(f"Warning: {warning['path']} {warning['message']}", err=True)


def _text(value: Any) -> str:
    """Returns a value for people, in the API's terms: JSON unless it is a plain value."""
    if isinstance(value, list | tuple):
        return " ".join(map(_text, cast("list[object]", value)))
    if isinstance(value, dict | bool):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else str(value)

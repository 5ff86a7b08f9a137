"""Output of commands: columns for people and scripts, ids for other commands, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from textwrap import indent
from typing import Any, Literal, TypeAlias, cast

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
_QUIET = click.option("-q", "--quiet", is_flag=True, help="Print only the ids, one per line.")

Form: TypeAlias = Literal["columns", "ids", "json"]
"""How a list is printed."""


def list_forms(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command that lists things its `form`: `-q`, `--json`, or columns."""

    @JSON
    @_QUIET
    @wraps(command)
    def with_form(*, as_json: bool, quiet: bool, **given: Any) -> Any:
        return command(**given, form="json" if as_json else "ids" if quiet else "columns")

    return with_form


def show_list(
    items: Iterable[dict[str, Any]],
    form: Form,
    *,
    id_field: str = "id",
    columns: Callable[[dict[str, Any]], Mapping[str, str]] | None = None,
    colours: Mapping[str, str] | None = None,
    headings: Sequence[str] = (),
) -> None:
    """Prints a list: what every command that lists things does.

    `columns` returns the cells of an item by their headings, the id first; by default they are its first plain fields.
    Elsewhere than on a terminal, an empty list has its `headings` too.
    """
    if form == "json":
        show_json(items)
    elif form == "ids":
        for item in items:
            click.echo(item[id_field])
    else:
        names: list[str] = []
        rows: list[Sequence[str]] = []
        fields: list[str] = []
        for item in items:
            fields = fields or _plain_fields(item, id_field)
            cells = columns(item) if columns else {name.upper(): _text(item.get(name)) for name in fields}
            names = names or list(cells)
            rows.append(list(cells.values()))
        if not rows and not is_terminal():
            names = [*headings]
        if names:
            show_table(names, rows, colours=colours, whole=names[:1])


def _plain_fields(item: dict[str, Any], id_field: str) -> list[str]:
    others = [name for name, value in item.items() if name != id_field and not isinstance(value, dict)]
    return [id_field, *others][:_MAX_COLUMNS]


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

"""The commands shared by every kind of stored thing: list, show, delete."""

from __future__ import annotations

import json
from pathlib import Path

import click

from weftline.cli.output import DB, JSON, Form, list_forms, show_list, show_one

WORKSPACE = click.option("--workspace", required=True, metavar="SLUG")
NEW_WORKSPACE = click.option("--workspace", required=True, metavar="SLUG", help="Created if it does not exist.")


def add_commands(
    group: click.Group, *, kind: str, by: str = "its id", show: bool = True, lists: bool = True, paged: bool = True
) -> None:
    """Gives `group` the commands that list, show and delete what is stored below the path `<kind>`.

    Without `lists` or `show`, the group has its own such command, or none. `kind` is the plural, such as `agents`;
    `by` says how a single one is identified; `paged` is whether the list has pages.
    """
    one = kind.removesuffix("s")

    @click.command("list", help=f"List a workspace's {kind}.")
    @WORKSPACE
    @DB
    @list_forms
    def _list(workspace: str, db: Path, form: Form) -> None:
        from weftline.cli.reach import reach

        with reach(db, workspace=workspace) as at:
            found = at.items(f"/{kind}", kind) if paged else at.get(f"/{kind}")[kind]
            show_list(found, form)

    @click.command("delete", help=f"Delete one of the {kind}, by {by}, and print its id.")
    @click.argument("name", metavar=one.upper())
    @WORKSPACE
    @DB
    @JSON
    def _delete(name: str, workspace: str, db: Path, as_json: bool) -> None:
        from weftline.cli.reach import named, reach

        path = f"/{kind}/{named(name)}"
        with reach(db, workspace=workspace, writes=True) as at:
            removed = at.get(path)["id"] if show else name
            at.call("DELETE", path)
        click.echo(json.dumps({"id": removed, "deleted": True}) if as_json else removed)

    commands: tuple[click.Command, ...] = (_list, _delete) if lists else (_delete,)
    if show:

        @click.command("show", help=f"Print one of the {kind}, by {by}; never its secrets.")
        @click.argument("name", metavar=one.upper())
        @WORKSPACE
        @DB
        @JSON
        def _show(name: str, workspace: str, db: Path, as_json: bool) -> None:
            from weftline.cli.reach import named, reach

            with reach(db, workspace=workspace) as at:
                show_one(at.get(f"/{kind}/{named(name)}"), as_json=as_json)

        commands = (*commands, _show)
    for command in commands:
        group.add_command(command)

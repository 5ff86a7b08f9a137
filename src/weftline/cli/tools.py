"""`weftline tools`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, TextIO, cast

import click

from weftline.cli.output import CODE, DB, JSON, Form, list_forms, show_json, show_list, show_one, show_warnings
from weftline.cli.resource import WORKSPACE, add_commands


@click.group()
def command() -> None:
    """Tools: those stored in a workspace, and the server's own."""


@command.command()
@WORKSPACE
@DB
@click.option("--file", "source", default="-", type=click.File(encoding="utf-8"), help="The tool as JSON; - for stdin.")
@click.option("--secret", "secrets", multiple=True, metavar="NAME=VALUE", help="A secret; may be repeated.")
@JSON
def create(workspace: str, db: Path, source: TextIO, secrets: tuple[str, ...], as_json: bool) -> None:
    """Store a tool, described as for POST …/tools, and print its id."""
    from weftline.cli.reach import reach

    try:
        loaded: object = json.load(source)
    except ValueError as error:
        raise click.ClickException(f"The tool is not valid JSON: {error}") from None
    if not isinstance(loaded, dict):
        raise click.ClickException("The tool must be a JSON object.")
    tool = cast("dict[str, Any]", loaded)
    if secrets:
        tool["secrets"] = {**(tool.get("secrets") or {}), **dict(_secret(one) for one in secrets)}
    with reach(db, workspace=workspace, writes=True) as at:
        made = at.post("/tools", tool)
    show_warnings(made)
    if as_json:
        show_one(made, as_json=True)
    else:
        click.echo(made["id"])


@command.command("list")
@click.option("--workspace", metavar="SLUG", help="The stored tools of this workspace too.")
@click.option("--tools", "file", type=CODE, metavar="CODE", help="Tools, as for `serve`.")
@DB
@list_forms
def list_tools(workspace: str | None, file: str | None, db: Path, form: Form) -> None:
    """List the tools that runs can name: stored tools by their ids, the server's own by their names.

    The server's own tools are those that the running server has loaded; without one, or with --tools, those that
    `weftline serve` would load. A run names a tool as {"kind": "server", "name": NAME} or {"kind": "stored", "id": ID}.
    """
    from weftline.cli.reach import reach

    loaded = _loaded(db, file)
    with ExitStack() as stack:
        stored: Iterable[dict[str, Any]] = ()
        if workspace is not None:
            stored = stack.enter_context(reach(db, workspace=workspace)).items("/tools", "tools")
        if form == "json":
            show_json(chain(loaded, stored))
            return
        own = ({"NAME": tool["name"], "KIND": "server", "DESCRIPTION": tool["description"]} for tool in loaded)
        others = ({"NAME": tool["id"], "KIND": "stored", "DESCRIPTION": _described(tool)} for tool in stored)
        show_list(chain(own, others), form, id_field="NAME", columns=dict)


def _described(tool: dict[str, Any]) -> str:
    return f"{tool['name']}: {tool['description']}".rstrip(": ")


add_commands(command, kind="tools", by="its id", lists=False)


def _loaded(db: Path, file: str | None) -> list[dict[str, Any]]:
    import msgspec

    from weftline.cli.reach import reach_if_running
    from weftline.net.dial import Dialer
    from weftline.net.egress import egress_from
    from weftline.tools.loader import loaded_tools, server_tools

    if file is None:
        with reach_if_running(db) as at:
            if at is not None and (running := at.operate("GET", "tools")["tools"]):
                return running
    return msgspec.to_builtins(loaded_tools(server_tools(file, pages=Dialer(egress_from({})))))


def _secret(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark:
        raise click.BadParameter("must be NAME=VALUE", param_hint="--secret")
    return name, value

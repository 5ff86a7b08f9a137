"""`weftline providers`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from weftline.cli.output import DB, JSON, show_one
from weftline.cli.resource import WORKSPACE, add_commands


@click.group()
def command() -> None:
    """Model providers that a workspace adds, with its own keys."""


@command.command()
@click.argument("name")
@WORKSPACE
@DB
@click.option("--family", required=True, help="anthropic, google, openai_chat, openai_responses, or an installed one.")
@click.option("--base-url", metavar="URL", help="An address other than the vendor's.")
@click.option("--api-key-env", metavar="NAME", help="The environment variable that holds the key.")
@click.option("--api-key-stdin", is_flag=True, help="Read the key from standard input.")
@click.option("--model", "models", multiple=True, metavar="ID", help="A model to offer; may be repeated.")
@click.option("--any-model/--only-listed", default=None, help="Whether models that are not listed are accepted.")
@click.option("--option", "options", multiple=True, metavar="NAME=JSON", help="An option of the family.")
@JSON
def create(
    name: str,
    workspace: str,
    db: Path,
    family: str,
    base_url: str | None,
    api_key_env: str | None,
    api_key_stdin: bool,
    models: tuple[str, ...],
    any_model: bool | None,
    options: tuple[str, ...],
    as_json: bool,
) -> None:
    """Store a provider and print its id. Its key is never taken from the command line, which others can read."""
    from weftline.cli.reach import reach

    provider: dict[str, Any] = {"name": name, "family": family}
    key = _key(api_key_env, from_stdin=api_key_stdin)
    if key is not None:
        provider["apiKey"] = key
    if base_url is not None:
        provider["baseUrl"] = base_url
    if models:
        provider["models"] = list(models)
    if any_model is not None:
        provider["anyModel"] = any_model
    if options:
        provider["options"] = dict(_option(one) for one in options)
    with reach(db, workspace=workspace, writes=True) as at:
        made = at.post("/providers", provider)
    if as_json:
        show_one(made, as_json=True)
    else:
        click.echo(made["id"])


add_commands(command, kind="providers", by="its id or name")


def _key(variable: str | None, *, from_stdin: bool) -> str | None:
    if variable is not None and from_stdin:
        raise click.UsageError("Give --api-key-env or --api-key-stdin, not both.")
    if variable is not None:
        key = os.environ.get(variable, "").strip()
        if not key:
            raise click.ClickException(f"The environment variable {variable} is not set.")
        return key
    if from_stdin:
        key = sys.stdin.read().strip()
        if not key:
            raise click.ClickException("There is no key on standard input.")
        return key
    return None


def _option(text: str) -> tuple[str, Any]:
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise click.BadParameter("must be NAME=JSON", param_hint="--option")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value

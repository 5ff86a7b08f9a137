"""Shared code of the commands with which people answer runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from weftline.cli.target import chosen_url

AWAIT = click.argument("ref", metavar="AWAIT")


def respond(ref: str, body: dict[str, Any], *, url: str | None, workspace: str | None, db: Path, as_json: bool) -> None:
    """Answers an await, and prints its outcome."""
    from weftline.cli.await_lookup import answer

    done = answer(ref, body, url=chosen_url(url), workspace=workspace, db=db)
    click.echo(json.dumps(done) if as_json else done["outcome"])

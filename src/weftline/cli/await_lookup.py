"""Open questions to people, and the answers of the commands `approve`, `deny` and `answer`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from weftline.cli.reach import AtServer, Reached, named, reach
from weftline.cli.run_lookup import path_of, whole_id
from weftline.errors import InvalidRequest, NotFound


def open_awaits(
    url: str | None, workspace: str | None, db: Path, filters: Mapping[str, str | None]
) -> list[dict[str, Any]]:
    """Returns the open awaits. Each has a `ref`, by which the commands that answer identify it."""
    with reach(db, url=url, workspace=workspace) as at:
        if (run := filters.get("run")) is not None:
            filters = {**filters, "run": whole_id(at, run)}
        return [{"ref": f"{one['runId']}/{one['id']}", **one} for one in _asked(at, filters)]


def _asked(at: Reached, filters: Mapping[str, str | None]) -> list[dict[str, Any]]:
    names = {"run": "runId", "agent": "agentId"}
    query = {names.get(name, name): value for name, value in filters.items()}
    places = [at] if at.workspace is not None or isinstance(at, AtServer) else map(at.of, at.slugs())
    return [one for place in places for one in place.items("/awaits", "awaits", **query)]


def respond(ref: str, body: dict[str, Any], *, url: str | None, workspace: str | None, db: Path, as_json: bool) -> None:
    """Answers an await, and prints its outcome. `ref` is from the list, or a run that asks only one thing."""
    with reach(db, url=url, workspace=workspace, writes=True) as at:
        start, _, id = ref.partition("/")
        run = whole_id(at, start)
        if not id:
            run, id = _only(_asked(at, {"run": run}), ref)
        done = at.post(f"{path_of(run)}/awaits/{named(id)}", body, once=True)
    click.echo(json.dumps(done) if as_json else done["outcome"])


def _only(found: list[dict[str, Any]], ref: str) -> tuple[str, str]:
    if not found:
        raise NotFound(f"{ref} has no open questions.")
    if len(found) > 1:
        refs = ", ".join(f"{one['runId']}/{one['id']}" for one in found[:5])
        raise InvalidRequest(f"{ref} has several open questions; name one of {refs}.")
    return found[0]["runId"], found[0]["id"]

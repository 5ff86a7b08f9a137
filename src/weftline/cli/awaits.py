"""`weftline awaits`, `approve`, `deny`, `answer` and `grants`: what runs ask people, and what people allowed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

import click

from weftline.cli.output import DB, JSON, Form, list_forms, show_list
from weftline.cli.reach import Reached, named, reach
from weftline.cli.run_lookup import path_of, whole_id
from weftline.cli.target import URL, WORKSPACE, chosen_url
from weftline.errors import InvalidRequest, NotFound
from weftline.kernel.control import AwaitKind


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
    return [one for place in at.places() for one in place.items("/awaits", "awaits", **query)]


def respond(ref: str, body: dict[str, Any], *, url: str | None, workspace: str | None, db: Path, as_json: bool) -> None:
    """Answers an await, and prints its outcome. `ref` is from the list, or a run that asks only one thing."""
    with reach(db, url=url, workspace=workspace, writes=True) as at:
        start, _, id = ref.partition("/")
        run = whole_id(at, start)
        if not id:
            run, id = _only(_asked(at, {"run": run}), ref)
        done = at.post_once(f"{path_of(run)}/awaits/{named(id)}", body)
    click.echo(json.dumps(done) if as_json else done["outcome"])


def _only(found: list[dict[str, Any]], ref: str) -> tuple[str, str]:
    if not found:
        raise NotFound(f"{ref} has no open questions.")
    if len(found) > 1:
        refs = ", ".join(f"{one['runId']}/{one['id']}" for one in found[:5])
        raise InvalidRequest(f"{ref} has several open questions; name one of {refs}.")
    return found[0]["runId"], found[0]["id"]


class _ListsByDefault(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ListsByDefault)
def awaits() -> None:
    """What runs ask people: on the server that --url names, or in a store on this machine.

    Answer with `weftline approve`, `deny` and `answer`.
    """


@awaits.command("list")
@click.option("--kind", type=click.Choice(get_args(AwaitKind)), help="Only these.")
@click.option("--run", metavar="RUN", help="Only questions of this run and its subagents.")
@click.option("--agent", metavar="NAME", help="Only questions of this agent's runs.")
@click.option("--name", metavar="TOOL", help="Only about calls of this tool.")
@URL
@WORKSPACE
@DB
@list_forms
def list_awaits(
    kind: str | None,
    run: str | None,
    agent: str | None,
    name: str | None,
    url: str | None,
    workspace: str | None,
    db: Path,
    form: Form,
) -> None:
    """List what is open, oldest runs first, with the ids to answer with."""

    filters = {"kind": kind, "run": run, "agent": agent, "name": name}
    found = open_awaits(chosen_url(url), workspace, db, filters)
    show_list(found, form, id_field="ref", columns=_await_columns, headings=_OF_AWAITS)


_OF_AWAITS = ("AWAIT", "KIND", "TOOL", "SINCE", "QUESTION")


def _await_columns(one: dict[str, Any]) -> dict[str, str]:
    from weftline.cli.terminal import ago

    return {
        "AWAIT": one["ref"],
        "KIND": one["kind"],
        "TOOL": one["name"],
        "SINCE": ago(one["openedAt"]),
        "QUESTION": one["question"],
    }


@click.command()
@click.argument("ref", metavar="AWAIT")
@click.option(
    "--args",
    "args",
    metavar="JSON",
    help="All arguments of the call, or another plan, instead of those shown.",
)
@click.option("--comment", metavar="TEXT", help="A comment on a plan, for the model to read.")
@click.option("--remember", is_flag=True, help="Also allow later calls of the same tool in this run.")
@URL
@WORKSPACE
@DB
@JSON
def approve(
    ref: str,
    args: str | None,
    comment: str | None,
    remember: bool,
    url: str | None,
    workspace: str | None,
    db: Path,
    as_json: bool,
) -> None:
    """Approve the call that a run asks about, or its plan.

    AWAIT is an id as `weftline awaits` prints it, or a run that asks only one thing.
    """

    answer: dict[str, Any] = {"outcome": "approved"}
    if args is not None:
        answer["args"] = _object(args)
    if comment:
        answer["reason"] = comment
    if remember:
        answer["remember"] = True
    respond(ref, answer, url=chosen_url(url), workspace=workspace, db=db, as_json=as_json)


def _object(text: str) -> dict[str, Any]:
    try:
        value: object = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"is not JSON: {error}", param_hint="--args") from None
    if not isinstance(value, dict):
        raise click.BadParameter("must be a JSON object", param_hint="--args")
    return cast("dict[str, Any]", value)


@click.command()
@click.argument("ref", metavar="AWAIT")
@click.argument("reason", default="")
@URL
@WORKSPACE
@DB
@JSON
def deny(ref: str, reason: str, url: str | None, workspace: str | None, db: Path, as_json: bool) -> None:
    """Deny the call that a run asks about, or decline to answer its question. The model reads the REASON.

    AWAIT is an id as `weftline awaits` prints it, or a run that asks only one thing.
    """

    respond(
        ref, {"outcome": "denied", "reason": reason}, url=chosen_url(url), workspace=workspace, db=db, as_json=as_json
    )


@click.command()
@click.argument("ref", metavar="AWAIT")
@click.argument("values", nargs=-1, required=True, metavar="ANSWER...")
@URL
@WORKSPACE
@DB
@JSON
def answer(ref: str, values: tuple[str, ...], url: str | None, workspace: str | None, db: Path, as_json: bool) -> None:
    """Answer a run's question, comment on its plan, or give the result of a call in doubt.

    AWAIT is an id as `weftline awaits` prints it, or a run that asks only one thing. Give several answers if several
    options may be chosen, and one for each if there are several questions.
    """

    value = values[0] if len(values) == 1 else list(values)
    respond(
        ref, {"outcome": "answered", "value": value}, url=chosen_url(url), workspace=workspace, db=db, as_json=as_json
    )


@click.command()
@click.argument("run_id", metavar="RUN")
@URL
@WORKSPACE
@DB
@list_forms
def grants(run_id: str, url: str | None, workspace: str | None, db: Path, form: Form) -> None:
    """List what people allowed a run to do.

    With --json each has the exact arguments that were approved, whether they were edited, by whom and when, when it
    expires, and which calls used it. The beginning of the run's id is enough.
    """
    from weftline.cli.reach import reach
    from weftline.cli.run_lookup import path_of, whole_id

    with reach(db, url=chosen_url(url), workspace=workspace) as at:
        found = at.get(f"{path_of(whole_id(at, run_id))}/grants")["grants"]
    named = [{"ref": f"{one['runId']}/{one['awaitId']}", **one} for one in found]
    show_list(named, form, id_field="ref", columns=_grant_columns, headings=_OF_GRANTS)


_OF_GRANTS = ("GRANT", "TOOL", "BY", "EDITED", "DIGEST", "USED BY", "SINCE")


def _grant_columns(one: dict[str, Any]) -> dict[str, str]:
    from weftline.cli.terminal import ago

    return {
        "GRANT": one["ref"],
        "TOOL": one["name"],
        "BY": one["byName"] or one["by"],
        "EDITED": "yes" if one["edited"] else "no",
        "DIGEST": one["digest"][:8],
        "USED BY": ", ".join(use["toolUseId"] for use in one["used"]) or "not used",
        "SINCE": ago(one["at"]),
    }

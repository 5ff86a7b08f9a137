"""`weftline runs`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weftline.cli.control import COMMANDS as CONTROL
from weftline.cli.output import DB, JSON, Form, list_forms, show_list, show_one
from weftline.cli.target import URL, WORKSPACE, chosen_url
from weftline.store.naming import db_option

if TYPE_CHECKING:
    from weftline.client import AsyncClient
    from weftline.client.events import Frame

_STATUSES = ("queued", "running", "paused", "succeeded", "failed", "cancelled")
_MAX_LIMIT = 10_000


@click.group()
def command() -> None:
    """Runs: on the server that --url names, or in a store on this machine.

    A store can be read while a server is using it.
    """


@command.command("list")
@click.option("--status", type=click.Choice(_STATUSES), help="Only these.")
@click.option("--agent", metavar="NAME", help="Only runs of this agent, by its id or slug.")
@click.option("--session", metavar="ID", help="Only runs of this session.")
@click.option(
    "--limit",
    default=20,
    show_default=True,
    type=click.IntRange(1, _MAX_LIMIT),
    metavar="N",
    help="At most this many.",
)
@click.option("--all", "everything", is_flag=True, help="All of them, however many.")
@click.option("--cursor", metavar="CURSOR", help="Where an earlier list ended.")
@click.option(
    "--children", is_flag=True, help="With --session, also the runs of subagents. Each is shown below its parent."
)
@click.option("--in-doubt", is_flag=True, help="Only runs with a call that may or may not have happened.")
@click.option("--unsupported", is_flag=True, help="Unfinished runs written by a newer version, and why.")
@URL
@WORKSPACE
@DB
@list_forms
def list_runs(
    status: str | None,
    agent: str | None,
    session: str | None,
    limit: int,
    everything: bool,
    cursor: str | None,
    children: bool,
    in_doubt: bool,
    unsupported: bool,
    url: str | None,
    workspace: str | None,
    db: Path,
    form: Form,
) -> None:
    """List runs, newest first.

    Runs that are --unsupported can be read; the version that wrote them, or a newer one, can continue them.
    """
    from weftline.cli.reach import reach

    if unsupported:
        with reach(db) as at:
            found = at.operate("GET", "unsupported-runs", query={"workspace": workspace})["runs"]
        show_list(found, form)
        return
    from weftline.cli.run_lookup import RunQuery
    from weftline.cli.run_lookup import list_runs as listed
    from weftline.cli.terminal import STATUS_COLOURS, is_terminal

    max_runs = None if everything else limit
    wanted = RunQuery(
        limit=max_runs,
        cursor=cursor,
        status=status,
        agent=agent,
        session=session,
        children=children,
        in_doubt=in_doubt,
    )

    with reach(db, url=chosen_url(url), workspace=workspace) as at:
        found = listed(at, wanted)
    depths: dict[str, int] = {}
    runs = found.runs
    if children and form == "columns" and is_terminal():
        tree = _as_tree(runs)
        depths = {run["id"]: depth for run, depth in tree}
        runs = [run for run, _ in tree]
    show_list(
        runs,
        form,
        columns=lambda run: _columns(run, depths.get(run["id"], 0)),
        colours=STATUS_COLOURS,
        headings=_HEADINGS,
    )
    if found.next_cursor is not None:
        more = f"--all, a larger --limit, or --cursor {found.next_cursor}"
        click.echo(f"These are the newest {len(found.runs)}; there are more: {more}.", err=True)


@command.command()
@click.argument("run_id")
@click.option(
    "--turn", type=click.IntRange(0), metavar="N", help="A turn, from 0: what the model was sent and answered."
)
@click.option("--messages", is_flag=True, help="The whole conversation, or with --turn up to that turn.")
@click.option("--request", is_flag=True, help="All that the model was sent in the latest turn, or in --turn.")
@URL
@WORKSPACE
@DB
@JSON
def show(
    run_id: str,
    turn: int | None,
    messages: bool,
    request: bool,
    url: str | None,
    workspace: str | None,
    db: Path,
    as_json: bool,
) -> None:
    """Show a run: its status, what it cost, and its final text. The beginning of its id is enough.

    With --turn, --messages or --request: what a model was sent, what it answered, and what that cost.
    """
    of_turn = turn is not None or messages or request

    from weftline.cli.reach import reach
    from weftline.cli.run_lookup import path_of, whole_id

    if messages and request:
        raise click.UsageError("Give --messages or --request, not both.")
    with reach(db, url=chosen_url(url), workspace=workspace) as at:
        path = path_of(whole_id(at, run_id))
        found = at.get(f"{path}/turns/{'last' if turn is None else turn}" if of_turn else path)
    if not of_turn:
        if as_json:
            show_one(found, as_json=True)
        else:
            _show_run(found)
            _show_questions(found, chosen_url(url), workspace, db)
        return
    from weftline.cli.turns import conversation, show_conversation, show_turn

    if as_json:
        click.echo(json.dumps(conversation(found) if messages else found, indent=2))
    elif messages:
        show_conversation(found)
    else:
        show_turn(found, whole_request=request)


@command.command()
@click.argument("run_id")
@click.option("--after", default=0, type=click.IntRange(0), metavar="SEQ", help="Start after this event.")
@URL
@WORKSPACE
@DB
@JSON
def follow(run_id: str, after: int, url: str | None, workspace: str | None, db: Path, as_json: bool) -> None:
    """Show the events of a run: live with --url, otherwise those that the store has.

    Tool calls for the run's client are not answered. Exit codes are those of `weftline run`, and 5 if the run
    has not ended in the store. The beginning of its id is enough.
    """
    from weftline.cli.asking import at_server, how_to_answer
    from weftline.cli.reach import AtServer, reach
    from weftline.cli.run_lookup import path_of, whole_id
    from weftline.cli.screen import EXIT_CODES, INTERRUPTED, NOT_ENDED, Screen
    from weftline.events import AwaitOpened

    screen = Screen(as_json=as_json)
    server = chosen_url(url)
    where = db_option(db) if server is None else at_server(server, workspace)

    async def show_frames(frames: AsyncGenerator[Frame], *, goes_on: bool) -> int | None:
        code: int | None = None
        async for frame in frames:
            code = screen.show(frame)
            if isinstance(frame.event, AwaitOpened) and not as_json:
                screen.announce(frame.event, with_question=True)
                if goes_on:
                    asked = frame.event
                    screen.note(how_to_answer(asked.run_id, asked.id, asked.kind, where))
        return code

    try:
        with reach(db, url=server, workspace=workspace) as at:
            run = whole_id(at, run_id)
            goes_on = at.get(path_of(run))["status"] not in EXIT_CODES
            if isinstance(at, AtServer):
                code = at.run(show_frames(_live(at.client, run, after), goes_on=goes_on))
            else:
                code = asyncio.run(show_frames(_stored(db, run, workspace, after), goes_on=goes_on))
            if code is None:
                # Either the run continues, or its end is not after `after`.
                code = EXIT_CODES.get(at.get(path_of(run))["status"])
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    if code is None:
        screen.note(f"{run} has not ended; --url follows it at its server.")
        code = NOT_ENDED
    sys.exit(code)


async def _live(client: AsyncClient, run_id: str, after: int) -> AsyncGenerator[Frame]:
    async with await client.attach(run_id, dispatch=False, last_seq=after) as run:
        async for frame in run.frames(raise_on_failure=False):
            yield frame


async def _stored(db: Path, run_id: str, workspace: str | None, after: int) -> AsyncGenerator[Frame]:
    from weftline.cli.ended_runs import ended_runs
    from weftline.cli.events import stored_frames

    async with ended_runs(db, workspace) as runs:
        async for frame in stored_frames(runs.log, (await runs.find(run_id)).key, run_id, after=after):
            yield frame


@command.command()
@click.argument("run_id")
@URL
@WORKSPACE
@DB
@JSON
def cancel(run_id: str, url: str | None, workspace: str | None, db: Path, as_json: bool) -> None:
    """Cancel a run and print its status. A run that has ended is not changed. The beginning of its id is enough.

    Without --url this asks the server or script that has the store open.
    """
    from weftline.cli.reach import reach
    from weftline.cli.run_lookup import path_of, whole_id

    with reach(db, url=chosen_url(url), workspace=workspace, writes=True) as at:
        receipt = at.post(f"{path_of(whole_id(at, run_id))}/cancel")
    click.echo(json.dumps(receipt) if as_json else receipt["status"])
    if receipt["status"] != "cancelled":
        click.echo("The run had already ended: nothing was cancelled.", err=True)


for _one in CONTROL:
    command.add_command(_one)


def _as_tree(runs: list[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """Returns each run with its depth, directly below its parent, the oldest child first.

    A run whose parent is not in the list is at the top.
    """
    listed = {run["id"] for run in runs}
    below: dict[str | None, list[dict[str, Any]]] = {}
    for run in runs:
        parent = run.get("parentRunId")
        below.setdefault(parent if parent in listed else None, []).append(run)
    found: list[tuple[dict[str, Any], int]] = []
    left = [(run, 0) for run in reversed(below.get(None, []))]
    while left:
        run, depth = left.pop()
        found.append((run, depth))
        left += [(child, depth + 1) for child in below.get(run["id"], ())]
    return found


_HEADINGS = ("RUN", "STATUS", "NAME", "MODEL", "CREATED", "TURNS", "COST")


def _columns(run: dict[str, Any], depth: int) -> dict[str, str]:
    """Returns what the list shows of a run, at its depth in the tree."""
    from weftline.cli.terminal import ago

    return {
        "RUN": f"└{'─' * (2 * depth - 1)} {run['id']}" if depth else run["id"],
        "STATUS": _status(run),
        "NAME": run["name"],
        "MODEL": _model(run),
        "CREATED": ago(run["createdAt"]),
        "TURNS": _number(run["turns"]),
        "COST": _cost(run),
    }


def _show_run(run: dict[str, Any]) -> None:
    from weftline.cli.terminal import STATUS_COLOURS, clean, styled

    tokens: dict[str, int] | None = run["tokens"]
    failure: dict[str, str] | None = run["failureReason"]
    estimated = " (estimated)" if run.get("usageEstimated") else ""
    status = _status(run)
    fields = {
        "run": run["id"],
        "status": styled(status, fg=STATUS_COLOURS.get(status)),
        "reason": run.get("reason"),
        "name": run["name"],
        "session": run["sessionId"],
        "parent": run.get("parentRunId"),
        "model": _model(run),
        "created": run["createdAt"],
        "finished": run["finishedAt"],
        "turns": _number(run["turns"]),
        "tokens": f"{tokens['inputTokens']} in, {tokens['outputTokens']} out{estimated}" if tokens else "",
        "cost": _cost(run),
        "metadata": " ".join(f"{name}={value}" for name, value in run["metadata"].items()),
        "in doubt": ", ".join(f"{call['name']} ({call['toolUseId']})" for call in run.get("inDoubt", ())),
        "error": run["error"],
        "code": run.get("errorCode"),
        "class": failure["errorClass"] if failure else "",
    }
    for name, value in fields.items():
        if value:
            click.echo(f"{styled(f'{name:<9}', dim=True)} {value if name == 'status' else clean(value)}")
    if run["finalText"]:
        click.echo(f"\n{clean(run['finalText'])}")


def _show_questions(run: dict[str, Any], server: str | None, workspace: str | None, db: Path) -> None:
    """Prints what the run asks people, and how to answer."""
    from weftline.cli.asking import at_server, how_to_answer
    from weftline.cli.terminal import call_text, clean

    where = db_option(db) if server is None else at_server(server, workspace)
    for one in run.get("awaits", ()):
        call = call_text(one["name"], one["args"])
        click.echo(f"\nIt asks a person: {clean(one['question'])}" + (f"\n· {call}" if call else ""))
        click.echo(how_to_answer(one["runId"], one["id"], one["kind"], where))


def _status(run: dict[str, Any]) -> str:
    return "paused" if run.get("paused") else run["status"]


def _model(run: dict[str, Any]) -> str:
    model: dict[str, str] | None = run["model"]
    return model["id"] if model else ""


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _cost(run: dict[str, Any]) -> str:
    from weftline.cli.screen import cost

    usd: float | None = run.get("costUsd")
    return "" if usd is None else cost(usd, estimated=bool(run.get("usageEstimated")))

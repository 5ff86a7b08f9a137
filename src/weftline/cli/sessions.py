"""`weftline sessions`: threads, with what was said in them."""

from __future__ import annotations

import asyncio
import json
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from weftline.cli.output import DB, JSON, Form, list_forms, show_list
from weftline.cli.target import URL, WORKSPACE, chosen_url

if TYPE_CHECKING:
    from weftline.store.base import ReadStore

_PAGE = 200
_HEADINGS = ("SESSION", "STATUS", "NAME", "AGENT", "CREATED", "USED")


@click.group()
def command() -> None:
    """Sessions, which code calls threads: on the server that --url names, or in a store on this machine.

    A store can be read while a server is using it.
    """


@command.command("list")
@click.option("--status", type=click.Choice(("active", "ended")), help="Only these.")
@click.option("--agent", metavar="NAME", help="Only sessions with this agent, by its id or slug.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), metavar="N", help="At most this many.")
@click.option("--all", "everything", is_flag=True, help="All of them, however many.")
@URL
@WORKSPACE
@DB
@list_forms
def list_sessions(
    status: str | None,
    agent: str | None,
    limit: int,
    everything: bool,
    url: str | None,
    workspace: str | None,
    db: Path,
    form: Form,
) -> None:
    """List sessions, newest first."""
    from weftline.cli.terminal import STATUS_COLOURS

    filters = {"status": status, "agentId": agent}
    wanted = None if everything else limit
    server = chosen_url(url)
    if server is not None:
        found, more = asyncio.run(_at_server(server, workspace, filters, wanted))
    else:
        found, more = asyncio.run(_in_store(db, workspace, filters, wanted))
    show_list(found, form, columns=_columns, colours=STATUS_COLOURS, headings=_HEADINGS)
    if more:
        click.echo(f"These are the newest {len(found)}; there are more: --all, or a larger --limit.", err=True)


@command.command()
@click.argument("session_id")
@URL
@WORKSPACE
@DB
@JSON
def show(session_id: str, url: str | None, workspace: str | None, db: Path, as_json: bool) -> None:
    """Show a session: what was said in it, when, and in which runs.

    `weftline runs show RUN` and `weftline calls RUN` have the rest.
    """
    server = chosen_url(url)
    found = asyncio.run(
        _shown_in_store(db, workspace, session_id) if server is None else _shown(server, workspace, session_id)
    )
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        _print_session(found)


def _columns(session: dict[str, Any]) -> dict[str, str]:
    from weftline.cli.terminal import ago

    return {
        "SESSION": session["id"],
        "STATUS": session.get("errorCode") or session["status"],
        "NAME": session["name"],
        "AGENT": session["agentId"] or "",
        "CREATED": ago(session["createdAt"]),
        "USED": ago(session["lastUsedAt"]),
    }


def _print_session(session: dict[str, Any]) -> None:
    from weftline.cli.screen import cost
    from weftline.cli.terminal import ago, clean, styled

    used = session["usage"]
    runs = "1 run" if used["runs"] == 1 else f"{used['runs']} runs"
    price = "" if used["costUsd"] is None else cost(used["costUsd"], estimated=used["usageEstimated"])
    facts = (session["id"], session["status"], session["name"], runs, f"used {ago(session['lastUsedAt'])}", price)
    click.echo(styled(" · ".join([clean(fact) for fact in facts if fact]), bold=True))
    run = ""
    for message in session["messages"]:
        if message.get("runId", run) != run:
            run = message["runId"]
            click.echo(styled(f"\n{run}", dim=True))
        click.echo(f"{styled(message['role'], bold=True)}  {styled(message.get('createdAt', ''), dim=True)}")
        for line in clean(message["content"]).splitlines():
            click.echo(f"  {line}")
        for one in message.get("attachments", ()):
            click.echo(f"  [{clean(one.get('name') or one.get('url') or one['mediaType'])}]")


# At a server


async def _at_server(
    url: str, workspace: str | None, filters: dict[str, str | None], limit: int | None
) -> tuple[list[dict[str, Any]], bool]:
    """Returns the newest sessions, and whether there are more."""
    from weftline.cli.target import connected

    found: list[dict[str, Any]] = []
    async with connected(url, workspace) as client:
        cursor: str | None = None
        while limit is None or len(found) < limit:
            room = _PAGE if limit is None else min(_PAGE, limit - len(found))
            asked = {**filters, "limit": str(room), "cursor": cursor}
            query = [(name, value) for name, value in asked.items() if value is not None]
            page = json.loads(await client.http.call("GET", "/agent-sessions", query=query))
            found += page["sessions"]
            cursor = page["nextCursor"]
            if cursor is None:
                break
    return found, cursor is not None


async def _shown(url: str, workspace: str | None, session_id: str) -> dict[str, Any]:
    from weftline.cli.target import connected

    async with connected(url, workspace) as client:
        return json.loads(await client.http.call("GET", f"/agent-sessions/{quote(session_id, safe='')}"))


# In a store


async def _in_store(
    db: Path, workspace: str | None, filters: dict[str, str | None], limit: int | None
) -> tuple[list[dict[str, Any]], bool]:
    """As `_at_server`, in all workspaces unless one is named."""
    from msgspec.json import decode, encode

    from weftline.api.sessions import listed_session
    from weftline.runtime.clock import SystemClock
    from weftline.store import open_for_reading
    from weftline.store.records.threads import ThreadFilter, ThreadRow
    from weftline.workspace import agents, threads, workspaces
    from weftline.workspace.context import Workspaces

    store = open_for_reading(db)
    try:
        at = Workspaces(store.records, store.vault, SystemClock())
        status, agent = filters["status"], filters["agentId"]
        of = () if agent is None else (agent, *await agents.ids_by_slug(at, agent))
        rows: list[ThreadRow] = []
        for slug in [workspace] if workspace is not None else await workspaces.slugs(at):
            key, before = await workspaces.find(at, slug), None
            while True:
                room = _PAGE if limit is None else limit + 1
                ended = None if status is None else status == "ended"
                wanted = ThreadFilter(workspace=key, before=before, limit=room, ended=ended, agents=of)
                page = await threads.page(at, wanted)
                rows += page
                if limit is not None or len(page) < room:
                    break
                before = page[-1].key
        rows.sort(key=lambda row: row.key, reverse=True)
        kept = rows if limit is None else rows[:limit]
        return [decode(encode(listed_session(row))) for row in kept], len(rows) > len(kept)
    finally:
        await store.close()


async def _shown_in_store(db: Path, workspace: str | None, session_id: str) -> dict[str, Any]:
    from weftline.store import open_for_reading

    store = open_for_reading(db)
    try:
        return await _read(store, workspace, session_id)
    finally:
        await store.close()


async def _read(store: ReadStore, workspace: str | None, session_id: str) -> dict[str, Any]:
    from msgspec.json import decode

    from weftline.api.sessions import origins
    from weftline.errors import NotFound
    from weftline.kernel.bodies import decode_message
    from weftline.kernel.entries import RunEnded, decode_fact
    from weftline.runtime import ids
    from weftline.runtime.clock import SystemClock
    from weftline.wire import snapshots
    from weftline.wire.session_responses import SessionView, session_info
    from weftline.workspace import threads, workspaces
    from weftline.workspace.context import Workspaces

    at, log = Workspaces(store.records, store.vault, SystemClock()), store.log
    given = ids.parse(session_id, prefix="ses_")
    row = None if given is None else await threads.by_key(at, given[0])
    of = None if workspace is None else await workspaces.find(at, workspace)
    if given is None or row is None or row.salt != given[1] or of not in (None, row.workspace):
        raise NotFound(f"There is no session {session_id!r}.")
    ends = [decode_fact.decode(head) for head in await log.ends_of_thread(row.key)]
    view = SessionView(
        id=session_id,
        created_us=row.created_at,
        last_used_us=row.last_used_at,
        spec=await threads.spec(at, row),
        name=row.name,
        ended_us=row.ended_at,
        metadata=decode(row.metadata, type=dict[str, str]),
        usage=snapshots.session_usage([head for head in ends if isinstance(head, RunEnded)]),
    )
    messages = [decode_message(message) for message in await log.thread_messages(row.key)]
    said_in = await origins(log.runs, at, row)
    return decode(session_info(view, zip_longest(messages, said_in[: len(messages)])))

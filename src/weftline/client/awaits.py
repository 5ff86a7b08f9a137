"""People in runs: questions to them, and their answers."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct, field

from weftline.client.http import Http
from weftline.client.results import Page, decoded
from weftline.events.parts import WireClarification

_PAGE = 200


class Await(Struct, frozen=True, rename="camel"):
    """An open question of a run to a person."""

    id: str
    run_id: str
    kind: str
    """`confirm`, `question`, `plan`, `clarification`, `deploy`, `budget`, or `doubt` (did a call happen?)."""
    question: str = ""
    name: str = ""
    """The name of the tool."""
    args: dict[str, Any] = {}
    """The exact arguments that will run."""
    call_id: str = field(default="", name="toolUseId")
    options: tuple[str, ...] = ()
    multiple: bool = False
    """Whether several of the options may be chosen."""
    clarification: WireClarification | None = None
    """For a `clarification`: what the failed call lacks."""
    root_run_id: str = ""
    """The run at the top, if a subagent asks the question."""
    session_id: str | None = None
    agent_id: str | None = None
    run_name: str = ""
    opened_at: datetime | None = None
    expires_at: datetime | None = None
    idempotency_key: str = ""
    """For a call in doubt: the idempotency key that its tool received."""
    called_at: datetime | None = None
    """For a call in doubt: when it began."""
    approvers: tuple[str, ...] = ()
    """Who may decide; empty means anybody."""


class Answered(Struct, frozen=True, rename="camel"):
    """An accepted answer. `by` is who gave it, as in the server's log."""

    id: str
    run_id: str
    outcome: str
    by: str = ""


class _Awaits(Struct, rename="camel"):
    awaits: tuple[Await, ...]
    next_cursor: str | None = None


class RunPeople:
    """Input of people for one run. See `AsyncClient.awaits` for the questions of all runs."""

    id: str
    _http: Http

    async def awaits(self) -> tuple[Await, ...]:
        """Returns the open questions of this run and the runs below it."""
        found: list[Await] = []
        cursor: str | None = None
        while True:
            query = [("limit", str(_PAGE)), *([("cursor", cursor)] if cursor else [])]
            page = decoded(await self._http.call("GET", f"{_path(self.id)}/awaits", query=query), _Awaits)
            found += page.awaits
            cursor = page.next_cursor
            if cursor is None:
                return tuple(found)

    async def approve(
        self,
        await_id: str,
        *,
        args: Mapping[str, Any] | None = None,
        remember: bool | Mapping[str, Any] = False,
        comment: str = "",
    ) -> Answered:
        """Approves the call that an await asks about, optionally with other arguments, or a plan.

        Args:
            await_id: The id of an `Await`, or of an `AwaitOpened` event of this run.
            args: All arguments of the call, replacing those that were shown. For a plan, `{"plan": …}` replaces it.
            remember: Also allows later calls of the same tool in this run: True for all of them, or the arguments that
                they must have. A string that ends in `*` is a prefix.
            comment: A comment on a plan, for the model to read.

        Raises:
            BadRequest: if it does not fit the question; the run keeps waiting.
            Conflict: if somebody else was faster, or it comes too late.
            Forbidden: if somebody else has to decide.
            NotFound: if the run has not asked this.
        """
        body: dict[str, Any] = {"outcome": "approved"}
        if args is not None:
            body["args"] = dict(args)
        if remember is not False:
            body["remember"] = remember
        if comment:
            body["reason"] = comment
        return await answer(self._http, self.id, await_id, body)

    async def deny(self, await_id: str, reason: str = "") -> Answered:
        """Denies a call, or declines to answer a question. The model reads the reason."""
        return await answer(self._http, self.id, await_id, {"outcome": "denied", "reason": reason})

    async def answer(self, await_id: str, value: Any, *, labels: Mapping[str, str] | None = None) -> Answered:
        """Answers a question, comments on a plan, or gives the result of a call that was in doubt."""
        body: dict[str, Any] = {"outcome": "answered", "value": value}
        if labels:
            body["labels"] = dict(labels)
        return await answer(self._http, self.id, await_id, body)

    async def pause(self, reason: str = "", *, labels: Mapping[str, str] | None = None) -> None:
        """Finishes work in progress and starts nothing new until the run is resumed."""
        await _post(self._http, f"{_path(self.id)}/pause", {"reason": reason, "labels": dict(labels or {})})

    async def resume(
        self, notes: str = "", *, messages: Sequence[str] = (), labels: Mapping[str, str] | None = None
    ) -> None:
        """Lets a paused run continue. The model reads `messages` before its next turn."""
        body = {"notes": notes, "messages": list(messages), "labels": dict(labels or {})}
        await _post(self._http, f"{_path(self.id)}/resume", body)

    async def steer(self, text: str, *, labels: Mapping[str, str] | None = None) -> str:
        """Hands a message to the run at its next turn; calls that have not begun by then are skipped.

        Returns the id of the message. The `labels` are kept with it in the log.
        """
        return await post_message(self._http, self.id, text, mode="steer", labels=labels)

    async def follow_up(self, text: str, *, labels: Mapping[str, str] | None = None) -> str:
        """Hands a message to the run when it would otherwise end; returns its id."""
        return await post_message(self._http, self.id, text, mode="follow_up", labels=labels)


class _Queued(Struct):
    id: str


async def post_message(http: Http, run_id: str, text: str, *, mode: str, labels: Mapping[str, str] | None) -> str:
    body = {"text": text, "mode": mode, "labels": dict(labels or {})}
    # A key, so that the model does not read a message twice if its response got lost.
    key = secrets.token_urlsafe(18)
    return decoded(await _post(http, f"{_path(run_id)}/messages", body, idempotency_key=key), _Queued).id


async def answer(http: Http, run_id: str, await_id: str, body: Mapping[str, Any]) -> Answered:
    path = f"{_path(run_id)}/awaits/{quote(await_id, safe='')}"
    # A key, so that an answer can be sent again if its response got lost.
    return decoded(await _post(http, path, body, idempotency_key=secrets.token_urlsafe(18)), Answered)


async def provide(http: Http, run_id: str, await_id: str, results: Sequence[Mapping[str, Any]]) -> None:
    path = f"{_path(run_id)}/tool-results/{quote(await_id, safe='')}"
    await _post(http, path, {"results": list(results)}, idempotency_key=secrets.token_urlsafe(18))


async def inbox(http: Http, query: Sequence[tuple[str, str]]) -> Page[Await]:
    page = decoded(await http.call("GET", "/awaits", query=query), _Awaits)
    return Page(page.awaits, page.next_cursor)


async def _post(http: Http, path: str, body: Mapping[str, Any], *, idempotency_key: str | None = None) -> bytes:
    return await http.call("POST", path, body=msgspec.json.encode(body), idempotency_key=idempotency_key)


def _path(run_id: str) -> str:
    return f"/agent-runs/{quote(run_id, safe='')}"

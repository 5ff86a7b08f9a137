"""The asynchronous client."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, Self, Unpack
from urllib.parse import quote

from msgspec import Struct

from weftline.client._options import MessageOptions, RunOptions, SessionOptions
from weftline.client.awaits import Answered, Await, answer, inbox, provide
from weftline.client.budgets import AsyncBudgets
from weftline.client.credentials import DEFAULT_BASE_URL, Credentials, TokenCallable, TokenSource, setting
from weftline.client.ended import LoggedCall, LoggedGrant, calls, fork, grants, run_path
from weftline.client.errors import ClientError, InvalidSpec, NetworkError, warn_of
from weftline.client.events import ClientEvent
from weftline.client.http import Created, Http, Retry, logger
from weftline.client.options import body_of, check_lease
from weftline.client.results import (
    Models,
    Page,
    RunResult,
    RunSnapshot,
    SessionInfo,
    Totals,
    decoded,
)
from weftline.client.run import CANCEL_WAIT_S, AsyncRun
from weftline.client.schedules import AsyncSchedules
from weftline.client.session import AsyncSession
from weftline.client.threads import AsyncThreads
from weftline.client.tools import ToolLike, Toolset
from weftline.client.usage import CancelReceipt
from weftline.work.threads import Threads


class _CreatedRun(Struct, rename="camel"):
    run_id: str
    warnings: Any = None


class _CreatedSession(Struct, rename="camel"):
    session_id: str
    warnings: Any = None


class _Runs(Struct, rename="camel"):
    runs: tuple[RunSnapshot, ...]
    next_cursor: str | None = None


class _Sessions(Struct, rename="camel"):
    sessions: tuple[SessionInfo, ...]
    next_cursor: str | None = None


class AsyncClient:
    """A client of one workspace.

        async with AsyncClient(api_key="…", workspace="acme") as client:
            result = await client.run("What is the weather in Oslo?", tools=[weather])

    Give exactly one of `api_key`, `access_token` and `token_source`. What is not given comes from the environment:
    `WEFTLINE_API_KEY`, `WEFTLINE_WORKSPACE_SLUG`, `WEFTLINE_BASE_URL`, or the same with `MANTYX_`.

    Args:
        timeout_s: For one request; streams have none.
        idle_timeout_s: The longest silence of a stream before it is reopened.
        retry: Pauses and attempts of requests and of reopening a stream.
        max_tool_threads: How many sync tool handlers run at once.
        format_error: Makes the text that the model reads for an exception in a tool handler.
        trust_env: Whether to use the proxies that the environment names.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        access_token: str | None = None,
        token_source: TokenSource | TokenCallable | None = None,
        workspace: str | None = None,
        base_url: str | None = None,
        timeout_s: float = 60.0,
        idle_timeout_s: float = 60.0,
        retry: Retry | None = None,
        max_tool_threads: int = 32,
        format_error: Callable[[Exception], str] | None = None,
        headers: Mapping[str, str] | None = None,
        trust_env: bool = False,
    ) -> None:
        self.workspace = workspace or setting("WORKSPACE_SLUG") or ""
        if not self.workspace:
            raise InvalidSpec("give workspace, or set WEFTLINE_WORKSPACE_SLUG")
        self._credentials = Credentials(api_key=api_key, access_token=access_token, token_source=token_source)
        self.http = Http(
            base_url=base_url or setting("BASE_URL") or DEFAULT_BASE_URL,
            workspace=self.workspace,
            credentials=self._credentials,
            timeout_s=timeout_s,
            idle_timeout_s=idle_timeout_s,
            retry=retry,
            headers=headers,
            trust_env=trust_env,
        )
        self.schedules = AsyncSchedules(self.http)
        self.budgets = AsyncBudgets(self.http)
        """Budgets of the workspace, its agents, sessions and runs."""
        self.threads = AsyncThreads(self.http)
        self.workers = Threads(max_per_workspace=max_tool_threads, max_idle=0, name="weftline-handler")
        self.format_error = format_error
        self.usage = Totals()
        """The usage of runs that this client has followed to their end."""
        self._live: set[AsyncRun] = set()
        self._late: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.http.base_url!r}, workspace={self.workspace!r}, {self._credentials!r})"

    async def run(self, prompt: str | None = None, **options: Unpack[RunOptions]) -> RunResult:
        """Creates a run, answers its calls and waits for its end. See `AsyncRun.result` for what it raises."""
        async with await self.start(prompt, **options) as run:
            return await run.result()

    async def stream(self, prompt: str | None = None, **options: Unpack[RunOptions]) -> AsyncGenerator[ClientEvent]:
        """Creates a run and yields its events. If the run does not succeed, raises after its last event. Stopping early
        cancels the run."""
        async with await self.start(prompt, **options) as run:
            async for event in run.events():
                yield event

    async def start(self, prompt: str | None = None, **options: Unpack[RunOptions]) -> AsyncRun:
        """Creates a run and returns as soon as the server has answered with its id."""
        tools = Toolset(options.get("tools") or ())
        return await self._create_run("/agent-runs", prompt, options, tools=tools, sends_tools=True)

    async def attach(
        self,
        run_id: str,
        *,
        tools: Sequence[ToolLike] = (),
        last_seq: int = 0,
        dispatch: bool = True,
        cancel_on_exit: bool = False,
        deadline_s: float | None = None,
        lease_s: float | None = None,
        output_type: Any = None,
        on_event: Callable[[ClientEvent], object] | None = None,
    ) -> AsyncRun:
        """Follows an existing run, from the event after `last_seq`.

        Its open calls are answered with `tools`; answered calls are not executed again. With `dispatch=False`, no calls
        are answered. With `lease_s` it claims each call before executing it, so that no two clients that do so execute
        the same one. Leaving cancels the run only with `cancel_on_exit`.
        """
        check_lease(lease_s)
        toolset = Toolset(tools)
        await toolset.acquire()
        run = AsyncRun(
            self,
            run_id,
            tools=toolset,
            owned=cancel_on_exit,
            dispatch=dispatch,
            replay=True,
            last_seq=last_seq,
            deadline_s=deadline_s,
            lease_s=lease_s,
            output_type=output_type,
            on_event=on_event,
            on_end=self._live.discard,
            totals=(self.usage,),
        )
        self._live.add(run)
        return run

    async def get_run(self, run_id: str) -> RunSnapshot:
        return decoded(await self.http.call("GET", f"/agent-runs/{quote(run_id, safe='')}"), RunSnapshot)

    async def wait_run(self, run_id: str) -> RunSnapshot:
        """Waits until a run has ended, however it ends, without answering its calls."""
        async with await self.attach(run_id, dispatch=False) as run:
            async for _ in run.events(raise_on_failure=False):
                pass
        return await self.get_run(run_id)

    async def cancel_run(self, run_id: str) -> CancelReceipt:
        return decoded(await self.http.call("POST", f"/agent-runs/{quote(run_id, safe='')}/cancel"), CancelReceipt)

    async def list_runs(
        self,
        *,
        status: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        children: bool = False,
    ) -> Page[RunSnapshot]:
        """Returns runs, newest first. All filters must match; `cursor` is the `next_cursor` of the previous page.

        With `children`, a session's list includes the runs of its subagents.
        """
        query = _filters(status=status, sessionId=session_id, agentId=agent_id, limit=limit, cursor=cursor)
        query += [("children", "true")] if children else []
        page = decoded(await self.http.call("GET", "/agent-runs", query=[*query, *_metadata(metadata)]), _Runs)
        return Page(page.runs, page.next_cursor)

    async def list_sessions(
        self,
        *,
        status: str | None = None,
        agent_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[SessionInfo]:
        """Returns sessions, newest first."""
        query = _filters(status=status, agentId=agent_id, limit=limit, cursor=cursor)
        page = decoded(await self.http.call("GET", "/agent-sessions", query=[*query, *_metadata(metadata)]), _Sessions)
        return Page(page.sessions, page.next_cursor)

    async def awaits(
        self,
        *,
        kind: str | None = None,
        run_id: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        name: str | None = None,
        waiting_since: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Await]:
        """Returns the open questions of the workspace's runs; oldest runs first.

        Args:
            run_id: Only those of this run and its subagents.
            name: Only those about calls of this tool.
            waiting_since: Only those that were already open at this time.
        """
        since = None if waiting_since is None else waiting_since.astimezone(UTC).isoformat()
        query = _filters(kind=kind, runId=run_id, sessionId=session_id, agentId=agent_id, name=name, waitingSince=since)
        return await inbox(self.http, [*query, *_filters(limit=limit, cursor=cursor)])

    async def answer_await(
        self,
        run_id: str,
        await_id: str,
        outcome: Literal["approved", "denied", "answered"],
        *,
        args: Mapping[str, Any] | None = None,
        value: Any = None,
        reason: str = "",
        remember: bool | Mapping[str, Any] = False,
    ) -> Answered:
        """Answers a question of a run without following it; see `AsyncRun.approve`, `deny` and `answer`."""
        body: dict[str, Any] = {"outcome": outcome, "reason": reason}
        if args is not None:
            body["args"] = dict(args)
        if value is not None:
            body["value"] = value
        if remember is not False:
            body["remember"] = remember
        return await answer(self.http, run_id, await_id, body)

    async def provide(self, run_id: str, await_id: str, results: Sequence[Mapping[str, Any]]) -> None:
        """Provides the results of all client-side calls of a turn, without following the run.

        Args:
            await_id: `external_` and the number of the turn; the event `await_external_tools` has it, with the calls.
            results: One for each open call, as in the protocol: `{"toolUseId": …, "result": …}`, or with an `error`.
                They are accepted together, or refused with everything that is wrong with them.
        """
        await provide(self.http, run_id, await_id, results)

    async def calls(self, run_id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[LoggedCall]:
        """Returns the calls of a run in the order in which they were announced, with their keys, times and states."""
        return await calls(self.http, f"{run_path(run_id)}/calls", _filters(limit=limit, cursor=cursor))

    async def grants(self, run_id: str) -> tuple[LoggedGrant, ...]:
        """Returns the approvals of a run: the arguments, who approved them and when, and the calls that used them."""
        return await grants(self.http, run_id)

    async def calls_in_doubt(self, *, limit: int | None = None, cursor: str | None = None) -> Page[LoggedCall]:
        """Returns the calls of the workspace that may or may not have happened, those of the newest run first."""
        return await calls(self.http, "/calls", _filters(state="in_doubt", limit=limit, cursor=cursor))

    async def fork(
        self,
        run_id: str,
        turn: int,
        *,
        message: str | None = None,
        model_id: str | None = None,
        system_prompt: str | None = None,
        reasoning_level: str | int | None = None,
        budgets: Mapping[str, Any] | None = None,
    ) -> str:
        """Continues from a turn of a run that has ended, counted from 0, as a new run; returns its id.

        Args:
            message: What the model reads before that turn.
            model_id: Instead of the run's own; the others likewise.
        """
        changes = {
            "turn": turn,
            "message": message,
            "modelId": model_id,
            "systemPrompt": system_prompt,
            "reasoningLevel": reasoning_level,
            "budgets": None if budgets is None else dict(budgets),
        }
        given = {name: value for name, value in changes.items() if value is not None}
        return await fork(self.http, run_id, given)

    async def list_models(self) -> Models:
        return decoded(await self.http.call("GET", "/models"), Models)

    async def create_session(self, **options: Unpack[SessionOptions]) -> AsyncSession:
        """Creates a session. As a context manager, it ends the session on exit."""
        tools = Toolset(options.get("tools") or ())
        await tools.acquire()
        try:
            body = body_of(options, tools=tools.refs, asks=False)
            key = secrets.token_urlsafe(18)
            created = decoded(
                await self.http.call("POST", "/agent-sessions", body=body, idempotency_key=key), _CreatedSession
            )
            warn_of(created.warnings)
        except BaseException:
            await tools.release()
            raise
        return AsyncSession(self, created.session_id, tools=tools)

    async def session(self, session_id: str, *, tools: Sequence[ToolLike] = ()) -> AsyncSession:
        """Resumes an existing session. `tools`, if given, are sent again with every message."""
        toolset = Toolset(tools)
        await toolset.acquire()
        return AsyncSession(self, session_id, tools=toolset, sends_tools=bool(tools))

    async def get_session(self, session_id: str, *, with_calls: bool = False) -> SessionInfo:
        """Returns a session with its messages. `with_calls` adds the calls of each run to its last answer."""
        path, query = f"/agent-sessions/{quote(session_id, safe='')}", [("calls", "true")] if with_calls else []
        return decoded(await self.http.call("GET", path, query=query), SessionInfo)

    async def close(self) -> None:
        """Stops following all runs, without cancelling them, and closes the connections."""
        for run in list(self._live):
            await run.detach()
            # A run that has just ended is still tidying up: its tools are released before the connections close.
            await run.ended()
        if self._late:
            await asyncio.wait(self._late, timeout=CANCEL_WAIT_S)
        await self.http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start_message(
        self,
        session_id: str,
        prompt: str | None,
        options: MessageOptions,
        *,
        tools: Toolset,
        sends_tools: bool,
        totals: Totals,
    ) -> AsyncRun:
        """Starts the run of a message, for sessions, which know their tools."""
        path = f"/agent-sessions/{quote(session_id, safe='')}/messages"
        return await self._create_run(
            path, prompt, options, tools=tools, sends_tools=sends_tools, session_id=session_id, totals=(totals,)
        )

    async def _create_run(
        self,
        path: str,
        prompt: str | None,
        options: RunOptions | MessageOptions,
        *,
        tools: Toolset,
        sends_tools: bool,
        session_id: str | None = None,
        totals: Sequence[Totals] = (),
    ) -> AsyncRun:
        await tools.acquire()
        try:
            body = body_of(options, prompt=prompt, tools=tools.refs if sends_tools else None)
            key = options.get("idempotency_key") or secrets.token_urlsafe(18)
            creating = asyncio.get_running_loop().create_task(self.http.create(path, body, idempotency_key=key))
            try:
                made = await asyncio.shield(creating)
            except asyncio.CancelledError:
                await self._cancel_pending(creating)
                raise
            created = _created(made)
            await self._warn_of(made, created)
        except BaseException:
            await tools.release()
            raise
        run = AsyncRun(
            self,
            created.run_id,
            tools=tools,
            owned=True,
            stream=made.stream,
            session_id=session_id,
            deadline_s=options.get("deadline_s"),
            lease_s=options.get("lease_s"),
            output_type=options.get("output_type"),
            on_event=options.get("on_event"),
            on_end=self._live.discard,
            totals=(self.usage, *totals),
        )
        self._live.add(run)
        return run

    async def _warn_of(self, made: Created, created: _CreatedRun) -> None:
        try:
            warn_of(created.warnings)
        except Warning:
            # If warnings are errors, the caller never gets the run's handle.
            if made.stream is not None:
                made.stream.close()
            await self.cancel_run(created.run_id)
            raise

    async def _cancel_pending(self, creating: asyncio.Task[Created]) -> None:
        """Cancels a run whose caller left while it was being created."""

        async def finish() -> None:
            try:
                made = await creating
                if made.stream is not None:
                    made.stream.close()
                await self.cancel_run(_created(made).run_id)
            except (ClientError, NetworkError) as error:
                logger.warning("an abandoned run could not be cancelled: %s", error)

        task = asyncio.get_running_loop().create_task(finish())
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        await asyncio.wait([task], timeout=CANCEL_WAIT_S)


def _created(made: Created) -> _CreatedRun:
    if made.stream is not None:
        return _CreatedRun(made.run_id, made.warnings)
    return decoded(made.body, _CreatedRun)


def _filters(**values: str | int | None) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in values.items() if value is not None]


def _metadata(metadata: Mapping[str, str] | None) -> list[tuple[str, str]]:
    return [("metadata", f"{key}:{value}") for key, value in (metadata or {}).items()]

"""The synchronous client: the asynchronous one on a loop in a background thread, with the same names."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack

from weftline.client.awaits import Answered, Await
from weftline.client.budgets import Budgets
from weftline.client.core import AsyncClient
from weftline.client.credentials import TokenCallable, TokenSource
from weftline.client.ended import LoggedCall, LoggedGrant
from weftline.client.events import ClientEvent, Frame
from weftline.client.notices import from_here
from weftline.client.results import (
    ChatMessage,
    Models,
    Page,
    RunResult,
    RunSnapshot,
    SessionInfo,
    Totals,
)
from weftline.client.retry import Retry
from weftline.client.run import AsyncRun
from weftline.client.schedules import Schedules
from weftline.client.session import AsyncSession
from weftline.client.spec import MessageOptions, RunOptions, SessionOptions
from weftline.client.tools import ToolLike
from weftline.client.usage import CancelReceipt
from weftline.events import TextDelta
from weftline.work.loop_thread import LoopThread

T = TypeVar("T")


class Client:
    """A client of one workspace; see `AsyncClient` for the arguments.

    with Client(api_key="…", workspace="acme") as client:
        print(client.run("What is the weather in Oslo?", tools=[weather]).text)
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
        self._core = AsyncClient(
            api_key=api_key,
            access_token=access_token,
            token_source=token_source,
            workspace=workspace,
            base_url=base_url,
            timeout_s=timeout_s,
            idle_timeout_s=idle_timeout_s,
            retry=retry,
            max_tool_threads=max_tool_threads,
            format_error=format_error,
            headers=headers,
            trust_env=trust_env,
        )
        self._thread = LoopThread("weftline-client")
        # A client that is never closed is closed when it is garbage-collected, or when the process ends.
        self._finalizer = weakref.finalize(self, _shut, self._core, self._thread)

    def __repr__(self) -> str:
        return repr(self._core).replace("AsyncClient", "Client", 1)

    @property
    def workspace(self) -> str:
        return self._core.workspace

    @property
    def schedules(self) -> Schedules:
        """Runs that the server starts automatically."""
        return Schedules(self._core.schedules, self.wait)

    @property
    def budgets(self) -> Budgets:
        """Limits on spending, and what was spent."""
        return Budgets(self._core.budgets, self.wait)

    @property
    def usage(self) -> Totals:
        return self._core.usage

    def run(self, prompt: str | None = None, **options: Unpack[RunOptions]) -> RunResult:
        """Creates a run, answers its calls and waits for its end."""
        return self.wait(self._core.run(prompt, **options))

    def stream(self, prompt: str | None = None, **options: Unpack[RunOptions]) -> Generator[ClientEvent]:
        """Creates a run and yields its events; stopping early cancels the run."""
        with self.start(prompt, **options) as run:
            yield from run.events()

    def start(self, prompt: str | None = None, **options: Unpack[RunOptions]) -> Run:
        """Creates a run and returns as soon as the server has answered with its id."""
        return Run(self, self.wait(self._core.start(prompt, **options)))

    def attach(
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
    ) -> Run:
        """Follows an existing run, from the event after `last_seq`; see `AsyncClient.attach`."""
        attached = self._core.attach(
            run_id,
            tools=tools,
            last_seq=last_seq,
            dispatch=dispatch,
            cancel_on_exit=cancel_on_exit,
            deadline_s=deadline_s,
            lease_s=lease_s,
            output_type=output_type,
            on_event=on_event,
        )
        return Run(self, self.wait(attached))

    def get_run(self, run_id: str) -> RunSnapshot:
        return self.wait(self._core.get_run(run_id))

    def wait_run(self, run_id: str) -> RunSnapshot:
        """Waits until a run has ended, however it ends, without answering its calls."""
        return self.wait(self._core.wait_run(run_id))

    def cancel_run(self, run_id: str) -> CancelReceipt:
        return self.wait(self._core.cancel_run(run_id))

    def list_runs(
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
        """Returns runs, newest first.

        All filters must match; `cursor` is the `next_cursor` of the previous page. With `children`, a session's list
        includes the runs of its subagents.
        """
        return self.wait(
            self._core.list_runs(
                status=status,
                session_id=session_id,
                agent_id=agent_id,
                metadata=metadata,
                limit=limit,
                cursor=cursor,
                children=children,
            )
        )

    def list_sessions(
        self,
        *,
        status: str | None = None,
        agent_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[SessionInfo]:
        """Returns sessions, newest first."""
        return self.wait(
            self._core.list_sessions(status=status, agent_id=agent_id, metadata=metadata, limit=limit, cursor=cursor)
        )

    def awaits(
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
        """Returns the open questions of the workspace's runs; see `AsyncClient.awaits`."""
        return self.wait(
            self._core.awaits(
                kind=kind,
                run_id=run_id,
                session_id=session_id,
                agent_id=agent_id,
                name=name,
                waiting_since=waiting_since,
                limit=limit,
                cursor=cursor,
            )
        )

    def calls(self, run_id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[LoggedCall]:
        """Returns the calls of a run in the order in which they were announced, with their keys, times and states."""
        return self.wait(self._core.calls(run_id, limit=limit, cursor=cursor))

    def grants(self, run_id: str) -> tuple[LoggedGrant, ...]:
        """Returns the approvals of a run: the arguments, who approved them and when, and the calls that used them."""
        return self.wait(self._core.grants(run_id))

    def calls_in_doubt(self, *, limit: int | None = None, cursor: str | None = None) -> Page[LoggedCall]:
        """Returns the calls of the workspace that may or may not have happened, those of the newest run first."""
        return self.wait(self._core.calls_in_doubt(limit=limit, cursor=cursor))

    def fork(
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
        """Continues from a turn of a run that has ended, as a new run; see `AsyncClient.fork`."""
        return self.wait(
            self._core.fork(
                run_id,
                turn,
                message=message,
                model_id=model_id,
                system_prompt=system_prompt,
                reasoning_level=reasoning_level,
                budgets=budgets,
            )
        )

    def provide(self, run_id: str, await_id: str, results: Sequence[Mapping[str, Any]]) -> None:
        """Provides the results of all client-side calls of a turn; see `AsyncClient.provide`."""
        self.wait(self._core.provide(run_id, await_id, results))

    def answer_await(
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
        """Answers a question of a run without following it."""
        return self.wait(
            self._core.answer_await(run_id, await_id, outcome, args=args, value=value, reason=reason, remember=remember)
        )

    def list_models(self) -> Models:
        return self.wait(self._core.list_models())

    def create_session(self, **options: Unpack[SessionOptions]) -> Session:
        """Creates a session. As a context manager, it ends the session on exit."""
        return Session(self, self.wait(self._core.create_session(**options)))

    def session(self, session_id: str, *, tools: Sequence[ToolLike] = ()) -> Session:
        """Resumes an existing session. `tools`, if given, are sent again with every message."""
        return Session(self, self.wait(self._core.session(session_id, tools=tools)))

    def get_session(self, session_id: str) -> SessionInfo:
        return self.wait(self._core.get_session(session_id))

    def close(self) -> None:
        """Stops following all runs, without cancelling them, and closes the connections."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` on the client's loop."""
        with from_here():
            return self._thread.run(work)


class Run:
    """A handle on one run; see `AsyncRun`."""

    def __init__(self, client: Client, run: AsyncRun) -> None:
        self._client = client
        self._run = run

    def __repr__(self) -> str:
        return repr(self._run).replace("AsyncRun", "Run", 1)

    @property
    def id(self) -> str:
        return self._run.id

    @property
    def session_id(self) -> str | None:
        return self._run.session_id

    @property
    def last_seq(self) -> int:
        return self._run.last_seq

    @property
    def done(self) -> bool:
        return self._run.done

    def events(self, *, raise_on_failure: bool = True) -> Generator[ClientEvent]:
        """Yields every event from the first, each once; raises after the last event if the run did not succeed."""
        return (frame.event for frame in self.frames(raise_on_failure=raise_on_failure))

    def frames(self, *, raise_on_failure: bool = True) -> Generator[Frame]:
        """Like `events`, but yields each event with its payload."""
        position = 0
        while batch := self._client.wait(self._run.take(position)):
            for frame in batch:
                position += 1
                yield frame
        self._run.check(raise_on_failure=raise_on_failure)

    def __iter__(self) -> Iterator[ClientEvent]:
        return self.events()

    def text(self) -> Generator[str]:
        """Yields the pieces of the model's text, as they come."""
        return (event.text for event in self.events() if isinstance(event, TextDelta))

    def result(self) -> RunResult:
        """Waits for the end; see `AsyncRun.result` for what it raises."""
        return self._client.wait(self._run.result())

    def cancel(self) -> CancelReceipt:
        """Cancels the run on the server; a run that has ended is not changed."""
        return self._client.wait(self._run.cancel())

    def snapshot(self) -> RunSnapshot:
        return self._client.wait(self._run.snapshot())

    def awaits(self) -> tuple[Await, ...]:
        """Returns the open questions of this run and the runs below it."""
        return self._client.wait(self._run.awaits())

    def approve(
        self,
        await_id: str,
        *,
        args: Mapping[str, Any] | None = None,
        remember: bool | Mapping[str, Any] = False,
        comment: str = "",
    ) -> Answered:
        """Approves the call that an await asks about, optionally with other arguments; see `AsyncRun.approve`."""
        return self._client.wait(self._run.approve(await_id, args=args, remember=remember, comment=comment))

    def deny(self, await_id: str, reason: str = "") -> Answered:
        """Denies a call, or declines to answer a question. The model reads the reason."""
        return self._client.wait(self._run.deny(await_id, reason))

    def answer(self, await_id: str, value: Any, *, labels: Mapping[str, str] | None = None) -> Answered:
        """Answers a question, comments on a plan, or gives the result of a call that was in doubt."""
        return self._client.wait(self._run.answer(await_id, value, labels=labels))

    def pause(self, reason: str = "", *, labels: Mapping[str, str] | None = None) -> None:
        """Finishes work in progress and starts nothing new until the run is resumed."""
        self._client.wait(self._run.pause(reason, labels=labels))

    def resume(self, notes: str = "", *, messages: Sequence[str] = (), labels: Mapping[str, str] | None = None) -> None:
        """Lets a paused run continue. The model reads `messages` before its next turn."""
        self._client.wait(self._run.resume(notes, messages=messages, labels=labels))

    def steer(self, text: str, *, labels: Mapping[str, str] | None = None) -> str:
        """Hands a message to the run at its next turn; calls that have not begun by then are skipped."""
        return self._client.wait(self._run.steer(text, labels=labels))

    def follow_up(self, text: str, *, labels: Mapping[str, str] | None = None) -> str:
        """Hands a message to the run when it would otherwise end; returns its id."""
        return self._client.wait(self._run.follow_up(text, labels=labels))

    def detach(self) -> None:
        """Stops following. The run continues; its calls are no longer answered here."""
        self._client.wait(self._run.detach())

    def close(self) -> None:
        """Cancels the run if this client created it and it has not ended, and waits briefly for its end."""
        self._client.wait(self._run.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Session:
    """A session; see `AsyncSession`. It may be used from several threads: messages wait for each other."""

    def __init__(self, client: Client, session: AsyncSession) -> None:
        self._client = client
        self._session = session

    def __repr__(self) -> str:
        return f"<Session {self.id}>"

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def usage(self) -> Totals:
        return self._session.usage

    def send(self, prompt: str | None = None, **options: Unpack[MessageOptions]) -> RunResult:
        """Sends a message and waits for the answer. Options given here apply only to this message."""
        return self._client.wait(self._session.send(prompt, **options))

    def stream(self, prompt: str | None = None, **options: Unpack[MessageOptions]) -> Generator[ClientEvent]:
        """Sends a message and yields the events of its run."""
        with self.start(prompt, **options) as run:
            yield from run.events()

    def start(self, prompt: str | None = None, **options: Unpack[MessageOptions]) -> Run:
        """Sends a message and returns the handle of its run, once the previous message is done."""
        return Run(self._client, self._client.wait(self._session.start(prompt, **options)))

    def info(self) -> SessionInfo:
        return self._client.wait(self._session.info())

    def history(self) -> tuple[ChatMessage, ...]:
        return self._client.wait(self._session.history())

    def end(self) -> None:
        """Ends the session on the server, which cancels its unfinished runs."""
        self._client.wait(self._session.end())

    def close(self) -> None:
        """Releases the session's tools; the session itself stays."""
        self._client.wait(self._session.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def _shut(core: AsyncClient, thread: LoopThread) -> None:
    if thread.started:
        thread.run(core.close())
    thread.stop()

"""Blocking faces of async classes, written by `scripts/faces.py`: change those, then `make faces`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from weftline.client._options import MessageOptions, RunOptions, SessionOptions
from weftline.client.awaits import Answered, Await
from weftline.client.budgets import AsyncBudgets, Budget, BudgetLimit, Level
from weftline.client.ended import LoggedCall, LoggedGrant
from weftline.client.events import ClientEvent, Frame
from weftline.client.oauth import AuthorizationRequest, CachedTokens, Introspection, OAuthTokens, UserInfo
from weftline.client.results import ChatMessage, Models, Page, RunResult, RunSnapshot, SessionInfo
from weftline.client.schedules import AsyncSchedules, CatchUp, Schedule
from weftline.client.sync import ClientFace, Face, OAuthFace, RunFace, SessionFace
from weftline.client.threads import AsyncThreads, EnvType, EnvValue, Thread
from weftline.client.tools import ToolLike
from weftline.client.usage import CancelReceipt
from weftline.events import TextDelta


class Budgets(Face[AsyncBudgets]):
    """The budgets of a workspace: `client.budgets`."""

    def list(self) -> tuple[Budget, ...]:
        """Returns the budgets with limits, and what is spent and reserved."""
        return self._wait(self._core.list())

    def set(self, level: Level, id: str | None = None, *, limits: Sequence[BudgetLimit]) -> Budget:
        """Replaces the limits of the workspace, an agent, a session or a run; with none, it is unlimited. See
        `AsyncBudgets.set`.
        """
        return self._wait(self._core.set(level, id, limits=limits))

    def of_run(self, run_id: str) -> tuple[Budget, ...]:
        """Returns the budgets that apply to a run, the nearest first."""
        return self._wait(self._core.of_run(run_id))


class Schedules(Face[AsyncSchedules]):
    """The schedules of a workspace: `client.schedules`. Its runs are those with the metadata `weftline.schedule`."""

    def create(
        self,
        schedule_name: str,
        prompt: str | None = None,
        /,
        *,
        at: datetime | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        catch_up: CatchUp | None = None,
        enabled: bool = True,
        **run: Unpack[RunOptions],
    ) -> Schedule:
        """Creates a schedule: `at` a time, or by a `cron` expression. The other options are those of its runs. See
        `AsyncSchedules.create`.
        """
        return self._wait(
            self._core.create(
                schedule_name, prompt, at=at, cron=cron, timezone=timezone, catch_up=catch_up, enabled=enabled, **run
            )
        )

    def list(self) -> tuple[Schedule, ...]:
        """Returns all schedules of the workspace, oldest first, without their `spec`."""
        return self._wait(self._core.list())

    def get(self, schedule_id: str) -> Schedule:
        return self._wait(self._core.get(schedule_id))

    def change(
        self,
        schedule_id: str,
        *,
        name: str | None = None,
        at: datetime | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        catch_up: CatchUp | None = None,
        enabled: bool | None = None,
        spec: Mapping[str, Any] | None = None,
    ) -> Schedule:
        """Changes what is given. With new times it starts over, and does not catch up on missed ones. See
        `AsyncSchedules.change`.
        """
        return self._wait(
            self._core.change(
                schedule_id,
                name=name,
                at=at,
                cron=cron,
                timezone=timezone,
                catch_up=catch_up,
                enabled=enabled,
                spec=spec,
            )
        )

    def pause(self, schedule_id: str) -> Schedule:
        """Switches it off. Runs that it has started continue."""
        return self._wait(self._core.pause(schedule_id))

    def resume(self, schedule_id: str) -> Schedule:
        """Switches it on again. It does not catch up on missed times."""
        return self._wait(self._core.resume(schedule_id))

    def run(self, schedule_id: str) -> str:
        """Starts a run of it now; returns the run's id."""
        return self._wait(self._core.run(schedule_id))

    def delete(self, schedule_id: str) -> None:
        """Deletes it. Its runs stay."""
        self._wait(self._core.delete(schedule_id))


class Threads(Face[AsyncThreads]):
    """The threads of a workspace: `client.threads`. A thread is named by either of its ids."""

    def create(
        self,
        agent_id: str,
        *,
        user_id: str | None = None,
        name: str = "",
        tags: Sequence[str] = (),
        values: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Thread:
        """Creates a thread of an agent. See `AsyncThreads.create`."""
        return self._wait(
            self._core.create(
                agent_id, user_id=user_id, name=name, tags=tags, values=values, env=env, idempotency_key=idempotency_key
            )
        )

    def list(
        self,
        *,
        agent_id: str | None = None,
        user_id: str | None = None,
        tag: str | None = None,
        status: Literal["active", "terminated"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Thread]:
        """Returns threads, newest first. `cursor` is the `next_cursor` of the previous page."""
        return self._wait(
            self._core.list(agent_id=agent_id, user_id=user_id, tag=tag, status=status, limit=limit, cursor=cursor)
        )

    def get(self, thread_id: str) -> Thread:
        return self._wait(self._core.get(thread_id))

    def delete(self, thread_id: str) -> None:
        """Terminates a thread: its runs are cancelled, and it takes nothing more. It can still be read."""
        self._wait(self._core.delete(thread_id))

    def values(self, thread_id: str) -> dict[str, Any]:
        """Returns all values of a thread, by key."""
        return self._wait(self._core.values(thread_id))

    def value(self, thread_id: str, key: str) -> Any:
        """Returns one value. Raises `NotFound` if there is none."""
        return self._wait(self._core.value(thread_id, key))

    def set_value(self, thread_id: str, key: str, value: Any) -> None:
        """Sets a value, any JSON; None removes it."""
        self._wait(self._core.set_value(thread_id, key, value))

    def env(self, thread_id: str) -> tuple[EnvValue, ...]:
        """Returns the variables that were set for a thread itself, without the values of secrets."""
        return self._wait(self._core.env(thread_id))

    def set_env(self, thread_id: str, name: str, value: str, *, type: EnvType | None = None) -> EnvValue:
        """Sets a variable. Without a type it keeps the one it has; a new one is a secret."""
        return self._wait(self._core.set_env(thread_id, name, value, type=type))

    def delete_env(self, thread_id: str, name: str) -> None:
        self._wait(self._core.delete_env(thread_id, name))


class Run(RunFace):
    """A handle on one run; see `AsyncRun`."""

    @property
    def done(self) -> bool:
        """True if the last event has arrived, or the run is no longer followed."""
        return self._core.done

    def events(self, *, raise_on_failure: bool = True) -> Generator[ClientEvent]:
        """Yields every event from the first, each once; ends with the run. See `AsyncRun.events`."""
        for frame in self.frames(raise_on_failure=raise_on_failure):
            yield frame.event

    def frames(self, *, raise_on_failure: bool = True) -> Generator[Frame]:
        """Like `events`, but yields each event with its payload."""
        position = 0
        while batch := self._wait(self._core.take(position)):
            for frame in batch:
                position += 1
                yield frame
        self._core.check(raise_on_failure=raise_on_failure)

    def __iter__(self) -> Iterator[ClientEvent]:
        return self.events()

    def text(self) -> Generator[str]:
        """Yields the pieces of the model's text, as they come."""
        for event in self.events():
            if isinstance(event, TextDelta):
                yield event.text

    def result(self) -> RunResult:
        """Waits for the end. See `AsyncRun.result`."""
        return self._wait(self._core.result())

    def cancel(self) -> CancelReceipt:
        """Cancels the run on the server; a run that has ended is not changed."""
        return self._wait(self._core.cancel())

    def snapshot(self) -> RunSnapshot:
        return self._wait(self._core.snapshot())

    def detach(self) -> None:
        """Stops following. The run continues; its calls are no longer answered here."""
        self._wait(self._core.detach())

    def close(self) -> None:
        """Cancels the run if this client created it and it has not ended, and waits briefly for its end."""
        self._wait(self._core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def awaits(self) -> tuple[Await, ...]:
        """Returns the open questions of this run and the runs below it."""
        return self._wait(self._core.awaits())

    def approve(
        self,
        await_id: str,
        *,
        args: Mapping[str, Any] | None = None,
        remember: bool | Mapping[str, Any] = False,
        comment: str = "",
    ) -> Answered:
        """Approves the call that an await asks about, optionally with other arguments, or a plan. See
        `AsyncRun.approve`.
        """
        return self._wait(self._core.approve(await_id, args=args, remember=remember, comment=comment))

    def deny(self, await_id: str, reason: str = "") -> Answered:
        """Denies a call, or declines to answer a question. The model reads the reason."""
        return self._wait(self._core.deny(await_id, reason))

    def answer(self, await_id: str, value: Any, *, labels: Mapping[str, str] | None = None) -> Answered:
        """Answers a question, comments on a plan, or gives the result of a call that was in doubt."""
        return self._wait(self._core.answer(await_id, value, labels=labels))

    def pause(self, reason: str = "", *, labels: Mapping[str, str] | None = None) -> None:
        """Finishes work in progress and starts nothing new until the run is resumed."""
        self._wait(self._core.pause(reason, labels=labels))

    def resume(self, notes: str = "", *, messages: Sequence[str] = (), labels: Mapping[str, str] | None = None) -> None:
        """Lets a paused run continue. The model reads `messages` before its next turn."""
        self._wait(self._core.resume(notes, messages=messages, labels=labels))

    def steer(self, text: str, *, labels: Mapping[str, str] | None = None) -> str:
        """Hands a message to the run at its next turn; calls that have not begun by then are skipped. See
        `AsyncRun.steer`.
        """
        return self._wait(self._core.steer(text, labels=labels))

    def follow_up(self, text: str, *, labels: Mapping[str, str] | None = None) -> str:
        """Hands a message to the run when it would otherwise end; returns its id."""
        return self._wait(self._core.follow_up(text, labels=labels))


class Session(SessionFace):
    """A session; see `AsyncSession`. It may be used from several threads: messages wait for each other."""

    def send(self, prompt: str | None = None, **options: Unpack[MessageOptions]) -> RunResult:
        """Sends a message and waits for the answer. Options given here apply only to this message."""
        return self._wait(self._core.send(prompt, **options))

    def stream(self, prompt: str | None = None, **options: Unpack[MessageOptions]) -> Generator[ClientEvent]:
        """Sends a message and yields the events of its run."""
        with self.start(prompt, **options) as run:
            yield from run.events()

    def start(self, prompt: str | None = None, **options: Unpack[MessageOptions]) -> Run:
        """Sends a message and returns the handle of its run, once the previous message is done."""
        return Run(self._wait(self._core.start(prompt, **options)), self._wait)

    def info(self, *, with_calls: bool = False) -> SessionInfo:
        """The session as the server has it. `with_calls` adds the calls of each run to its last answer."""
        return self._wait(self._core.info(with_calls=with_calls))

    def history(self, *, with_calls: bool = False) -> tuple[ChatMessage, ...]:
        """The messages of the runs that succeeded, oldest first; `with_calls` as for `info`."""
        return self._wait(self._core.history(with_calls=with_calls))

    def end(self) -> None:
        """Ends the session on the server, which cancels its unfinished runs."""
        self._wait(self._core.end())

    def close(self) -> None:
        """Releases the session's tools; the session itself stays."""
        self._wait(self._core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class Client(ClientFace):
    """A client of one workspace; see `AsyncClient` for the arguments.

    with Client(api_key="…", workspace="acme") as client:
        print(client.run("What is the weather in Oslo?", tools=[weather]).text)
    """

    @property
    def schedules(self) -> Schedules:
        return Schedules(self._core.schedules, self._wait)

    @property
    def budgets(self) -> Budgets:
        return Budgets(self._core.budgets, self._wait)

    @property
    def threads(self) -> Threads:
        return Threads(self._core.threads, self._wait)

    def run(self, prompt: str | None = None, **options: Unpack[RunOptions]) -> RunResult:
        """Creates a run, answers its calls and waits for its end. See `AsyncRun.result` for what it raises."""
        return self._wait(self._core.run(prompt, **options))

    def stream(self, prompt: str | None = None, **options: Unpack[RunOptions]) -> Generator[ClientEvent]:
        """Creates a run and yields its events. If the run does not succeed, raises after its last event. Stopping
        early cancels the run.
        """
        with self.start(prompt, **options) as run:
            yield from run.events()

    def start(self, prompt: str | None = None, **options: Unpack[RunOptions]) -> Run:
        """Creates a run and returns as soon as the server has answered with its id."""
        return Run(self._wait(self._core.start(prompt, **options)), self._wait)

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
        """Follows an existing run, from the event after `last_seq`. See `AsyncClient.attach`."""
        return Run(
            self._wait(
                self._core.attach(
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
            ),
            self._wait,
        )

    def get_run(self, run_id: str) -> RunSnapshot:
        return self._wait(self._core.get_run(run_id))

    def wait_run(self, run_id: str) -> RunSnapshot:
        """Waits until a run has ended, however it ends, without answering its calls."""
        return self._wait(self._core.wait_run(run_id))

    def cancel_run(self, run_id: str) -> CancelReceipt:
        return self._wait(self._core.cancel_run(run_id))

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
        """Returns runs, newest first. All filters must match; `cursor` is the `next_cursor` of the previous page.
        See `AsyncClient.list_runs`.
        """
        return self._wait(
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
        return self._wait(
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
        """Returns the open questions of the workspace's runs; oldest runs first. See `AsyncClient.awaits`."""
        return self._wait(
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
        """Answers a question of a run without following it; see `AsyncRun.approve`, `deny` and `answer`."""
        return self._wait(
            self._core.answer_await(run_id, await_id, outcome, args=args, value=value, reason=reason, remember=remember)
        )

    def provide(self, run_id: str, await_id: str, results: Sequence[Mapping[str, Any]]) -> None:
        """Provides the results of all client-side calls of a turn, without following the run. See
        `AsyncClient.provide`.
        """
        self._wait(self._core.provide(run_id, await_id, results))

    def calls(self, run_id: str, *, limit: int | None = None, cursor: str | None = None) -> Page[LoggedCall]:
        """Returns the calls of a run in the order in which they were announced, with their keys, times and states."""
        return self._wait(self._core.calls(run_id, limit=limit, cursor=cursor))

    def grants(self, run_id: str) -> tuple[LoggedGrant, ...]:
        """Returns the approvals of a run: the arguments, who approved them and when, and the calls that used them."""
        return self._wait(self._core.grants(run_id))

    def calls_in_doubt(self, *, limit: int | None = None, cursor: str | None = None) -> Page[LoggedCall]:
        """Returns the calls of the workspace that may or may not have happened, those of the newest run first."""
        return self._wait(self._core.calls_in_doubt(limit=limit, cursor=cursor))

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
        """Continues from a turn of a run that has ended, counted from 0, as a new run; returns its id. See
        `AsyncClient.fork`.
        """
        return self._wait(
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

    def list_models(self) -> Models:
        return self._wait(self._core.list_models())

    def create_session(self, **options: Unpack[SessionOptions]) -> Session:
        """Creates a session. As a context manager, it ends the session on exit."""
        return Session(self._wait(self._core.create_session(**options)), self._wait)

    def session(self, session_id: str, *, tools: Sequence[ToolLike] = ()) -> Session:
        """Resumes an existing session. `tools`, if given, are sent again with every message."""
        return Session(self._wait(self._core.session(session_id, tools=tools)), self._wait)

    def get_session(self, session_id: str, *, with_calls: bool = False) -> SessionInfo:
        """Returns a session with its messages. `with_calls` adds the calls of each run to its last answer."""
        return self._wait(self._core.get_session(session_id, with_calls=with_calls))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class OAuthClient(OAuthFace):
    """`AsyncOAuthClient` for synchronous code. Its token sources work with both `Client` and `AsyncClient`."""

    def authorization(self, *, scopes: Sequence[str], redirect_uri: str | None = None) -> AuthorizationRequest:
        """Returns the URL that asks a user for consent, with a fresh state and PKCE verifier."""
        return self._core.authorization(scopes=scopes, redirect_uri=redirect_uri)

    def exchange_code(
        self, code: str, *, request: AuthorizationRequest, state: str, redirect_uri: str | None = None
    ) -> OAuthTokens:
        """Exchanges the code that the user came back with for tokens. See `AsyncOAuthClient.exchange_code`."""
        return self._wait(self._core.exchange_code(code, request=request, state=state, redirect_uri=redirect_uri))

    def client_credentials(self, *, scopes: Sequence[str] = ()) -> OAuthTokens:
        """Returns tokens for the application itself."""
        return self._wait(self._core.client_credentials(scopes=scopes))

    def refresh(self, refresh_token: str, *, scopes: Sequence[str] = ()) -> OAuthTokens:
        """Returns a new access token. If the server sends no new refresh token, the old one is kept."""
        return self._wait(self._core.refresh(refresh_token, scopes=scopes))

    def revoke(self, token: str) -> None:
        self._wait(self._core.revoke(token))

    def introspect(self, token: str) -> Introspection:
        return self._wait(self._core.introspect(token))

    def userinfo(self, access_token: str) -> UserInfo:
        """Returns the owner of a token; pass `workspace.slug` as `Client(workspace=…)`."""
        return self._wait(self._core.userinfo(access_token))

    def refresh_source(
        self, tokens: OAuthTokens | str, *, on_tokens: Callable[[OAuthTokens], object] | None = None
    ) -> CachedTokens:
        """Returns a token source that starts with `tokens`, or with just a refresh token. See
        `AsyncOAuthClient.refresh_source`.
        """
        return self._core.refresh_source(tokens, on_tokens=on_tokens)

    def client_credentials_source(
        self, *, scopes: Sequence[str] = (), on_tokens: Callable[[OAuthTokens], object] | None = None
    ) -> CachedTokens:
        """Returns a token source for the application itself."""
        return self._core.client_credentials_source(scopes=scopes, on_tokens=on_tokens)

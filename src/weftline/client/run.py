"""A followed run: its events, its outcome, and its end when the caller leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from types import TracebackType
from typing import Any, Protocol, Self

from msgspec.structs import replace

from weftline.client.awaits import RunPeople
from weftline.client.dispatch import Dispatcher
from weftline.client.errors import (
    ApiError,
    ClientError,
    DeadlineExceeded,
    NetworkError,
    RunCancelled,
    RunFailed,
    ToolDeliveryError,
)
from weftline.client.events import (
    ClientEvent,
    Frame,
    OfferedCall,
    ToolDeliveryFailed,
    offered,
    parse_frame,
)
from weftline.client.http import RETRIED, EventStream, Http
from weftline.client.results import RunResult, RunSnapshot, Totals
from weftline.client.tools import Toolset
from weftline.client.usage import CancelReceipt, spent_of
from weftline.events import CallFinished, RunEnded, TextDelta, TurnFinished
from weftline.events.decode import subtype_of, text_of
from weftline.net.sse import SseParser
from weftline.work.threads import Threads


class RunClient(Protocol):
    """The client, as a run needs it."""

    http: Http
    workers: Threads
    format_error: Callable[[Exception], str] | None

    async def get_run(self, run_id: str) -> RunSnapshot: ...
    async def cancel_run(self, run_id: str) -> CancelReceipt: ...


logger = logging.getLogger("weftline.client")

SETTLE_S = 0.2
"""How long a stream that replays the past must be silent before unanswered calls count as open.

The run waits while a call is open, so there is such a silence.
"""
CANCEL_WAIT_S = 5.0
"""How long a caller that leaves waits for the run to be cancelled."""
_REOPENED = RETRIED | {500, 408, 425}


class AsyncRun(RunPeople):
    """A handle on one run. It is followed, and its client-side calls are answered, whether or not you read its events.

        async with await client.start("…", tools=[weather]) as run:
            async for event in run:
                ...
            result = await run.result()

    A run that this client created is cancelled on the server when the task that waits for it is cancelled, when its
    context is left or when its deadline has passed. Use `detach` to leave it running.
    """

    def __init__(
        self,
        client: RunClient,
        run_id: str,
        *,
        tools: Toolset,
        owned: bool,
        dispatch: bool = True,
        replay: bool = False,
        last_seq: int = 0,
        stream: EventStream | None = None,
        session_id: str | None = None,
        deadline_s: float | None = None,
        lease_s: float | None = None,
        output_type: Any = None,
        on_event: Callable[[ClientEvent], object] | None = None,
        on_end: Callable[[AsyncRun], None] | None = None,
        totals: Sequence[Totals] = (),
    ) -> None:
        self.id = run_id
        self.session_id = session_id
        self.last_seq = last_seq
        """The newest event seen; a later process can `attach` from here."""
        self._client = client
        self._http = client.http
        self._tools = tools
        self._owned = owned
        self._dispatch = dispatch
        self._settling = replay
        self._stream = stream
        """The stream that the server is already sending, from the first event on."""
        # A call before `last_seq` may still be open, so a client that answers calls reads from the start.
        self._position = 0 if replay and dispatch else last_seq
        self._output_type = output_type
        self._on_event = on_event
        self._on_end = on_end
        self._totals = totals
        self._frames: list[Frame] = []
        self._held: dict[str, OfferedCall] = {}
        self._last: Frame | None = None
        """The frame with the end of the run."""
        self._failure: ClientError | None = None
        self._receipt: CancelReceipt | None = None
        self._expired = False
        self._done = False
        self._news: asyncio.Future[None] | None = None
        self._dispatcher = Dispatcher(
            http=self._http,
            run_id=run_id,
            session_id=session_id,
            tools=tools,
            workers=client.workers,
            failed=self._delivery_failed,
            format_error=client.format_error,
            lease_s=lease_s,
        )
        loop = asyncio.get_running_loop()
        self._cancellations: set[asyncio.Task[None]] = set()
        self._expiry: asyncio.Task[None] | None = None
        self._follower = loop.create_task(self._follow())
        self._timer = None if deadline_s is None else loop.call_later(deadline_s, self._expire)

    def __repr__(self) -> str:
        state = "ended" if self._done else "followed"
        return f"<AsyncRun {self.id} {state} at {self.last_seq}>"

    @property
    def done(self) -> bool:
        """True if the last event has arrived, or the run is no longer followed."""
        return self._done

    async def events(self, *, raise_on_failure: bool = True) -> AsyncGenerator[ClientEvent]:
        """Yields every event from the first, each once; ends with the run.

        Raises:
            RunFailed, RunCancelled: after the last event of a run without success, unless `raise_on_failure` is False.
            NetworkError, ApiError: when the run could not be followed to its end.
        """
        async for frame in self.frames(raise_on_failure=raise_on_failure):
            yield frame.event

    async def frames(self, *, raise_on_failure: bool = True) -> AsyncGenerator[Frame]:
        """Like `events`, but yields each event with its payload."""
        position = 0
        while batch := await self.take(position):
            for frame in batch:
                position += 1
                yield frame
        self.check(raise_on_failure=raise_on_failure)

    def __aiter__(self) -> AsyncIterator[ClientEvent]:
        return self.events()

    async def text(self) -> AsyncGenerator[str]:
        """Yields the pieces of the model's text, as they come."""
        async for event in self.events():
            if isinstance(event, TextDelta):
                yield event.text

    async def take(self, position: int) -> list[Frame]:
        """Returns the frames from `position` on, once there is at least one; empty at the end."""
        while len(self._frames) <= position and not self._done:
            await self._wait()
        return self._frames[position:]

    async def result(self) -> RunResult:
        """Waits for the end.

        Raises:
            RunFailed: the run ended without success.
            RunCancelled: it was cancelled; `DeadlineExceeded` when its deadline did that.
            ParseError: it succeeded, but its text does not match its `output_type`.
            NetworkError, ApiError: it could not be followed to its end.
        """
        while not self._done:
            await self._wait()
        self.check()
        assert self._last is not None
        data = self._last.data
        spent = spent_of(data)
        result = RunResult(
            self.id,
            text_of(data, "text") or "",
            spent.tokens,
            spent.turns,
            spent.model,
            tuple(self._frames),
            attempts=spent.attempts,
            finish_reason=text_of(data, "finishReason"),
            cost_usd=spent.cost_usd,
            usage_estimated=spent.usage_estimated,
            cancel_receipt=self._receipt,
        )
        if self._output_type is None:
            return result
        from weftline.client.options import parse_output

        return replace(result, output=parse_output(result, self._output_type))

    def check(self, *, raise_on_failure: bool = True) -> None:
        """Raises the error of a run that is `done`, if any."""
        if self._failure is not None:
            raise self._failure
        if raise_on_failure:
            self._raise_if_failed()

    async def ended(self) -> None:
        """Waits until the run has ended or is no longer followed, without affecting it."""
        await asyncio.wait([self._follower])

    async def cancel(self) -> CancelReceipt:
        """Cancels the run on the server; a run that has ended is not changed."""
        self._receipt = await self._client.cancel_run(self.id)
        return self._receipt

    async def snapshot(self) -> RunSnapshot:
        return await self._client.get_run(self.id)

    async def detach(self) -> None:
        """Stops following. The run continues; its calls are no longer answered here."""
        if self._cancellations:
            await asyncio.wait(self._cancellations, timeout=CANCEL_WAIT_S)
        if not self._done:
            self._follower.cancel()
            await asyncio.wait([self._follower])
            if not self._done:
                # Cancelled before its first step, the follower had no chance to clean up.
                await self._wind_up(NetworkError(f"run {self.id} is no longer followed"))

    async def close(self) -> None:
        """Cancels the run if this client created it and it has not ended, and waits briefly for its end."""
        if self._done:
            await asyncio.wait([self._follower])
            return
        if self._owned:
            await self._cancel_in_background()
        await self.detach()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _wait(self) -> None:
        """Waits until something has happened. Cancelling a caller that waits here cancels the run."""
        if self._news is None:
            self._news = asyncio.get_running_loop().create_future()
        try:
            await asyncio.shield(self._news)
        except asyncio.CancelledError:
            if self._owned and not self._done:
                await self._cancel_in_background()
            raise

    async def _cancel_in_background(self) -> None:
        task = asyncio.get_running_loop().create_task(self._cancel_and_wait())
        self._cancellations.add(task)
        task.add_done_callback(self._cancellations.discard)
        await asyncio.wait([task], timeout=CANCEL_WAIT_S)

    async def _cancel_and_wait(self) -> None:
        try:
            await self.cancel()
        except ClientError as error:
            logger.warning("run %s could not be cancelled: %s", self.id, error)
            return
        await asyncio.wait([self._follower])

    def _expire(self) -> None:
        self._expired = True
        self._expiry = asyncio.get_running_loop().create_task(self._end_at_deadline())

    async def _end_at_deadline(self) -> None:
        await self._cancel_in_background()
        if not self._done:
            self._failure = DeadlineExceeded(self.id, reason="deadline")
            await self.detach()

    def _raise_if_failed(self) -> None:
        if self._last is None or not isinstance(end := self._last.event, RunEnded):
            raise NetworkError(f"run {self.id} is no longer followed")
        data = self._last.data
        spent = spent_of(data)
        match end.status:
            case "succeeded":
                return
            case "cancelled":
                kind = DeadlineExceeded if self._expired else RunCancelled
                raise kind(
                    self.id,
                    reason="deadline" if self._expired else text_of(data, "reason") or "user",
                    tokens=spent.tokens,
                    turns=spent.turns,
                    model=spent.model,
                    attempts=spent.attempts,
                    cost_usd=spent.cost_usd,
                    usage_estimated=spent.usage_estimated,
                    cancel_receipt=self._receipt,
                )
            case "failed":
                retryable = data.get("retryable")
                subtype = subtype_of(self._last.type, data)
                raise RunFailed(
                    end.error or ("the run failed" if subtype == "error" else subtype),
                    run_id=self.id,
                    subtype=subtype,
                    code=text_of(data, "code"),
                    error_class=text_of(data, "errorClass"),
                    finish_reason=text_of(data, "finishReason"),
                    partial_text=text_of(data, "partialText"),
                    retryable=retryable if isinstance(retryable, bool) else None,
                    tokens=spent.tokens,
                    turns=spent.turns,
                    model=spent.model,
                    attempts=spent.attempts,
                    cost_usd=spent.cost_usd,
                    usage_estimated=spent.usage_estimated,
                )

    async def _follow(self) -> None:
        failure: ClientError | None = None
        try:
            await self._read_to_the_end()
        except (NetworkError, ApiError) as error:
            failure = error
        except asyncio.CancelledError:
            failure = NetworkError(f"run {self.id} is no longer followed")
        except Exception as error:
            logger.exception("following run %s failed", self.id)
            failure = NetworkError(f"following run {self.id} failed: {error!r}")
        await self._wind_up(failure)

    async def _wind_up(self, failure: ClientError | None) -> None:
        self._failure = self._failure or failure
        if self._failure is not None:
            self._failure.run_id = self.id
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
        if self._stream is not None:
            self._stream.close()
        self._notify()
        try:
            await self._dispatcher.close()
            await self._tools.release()
        except Exception:
            logger.exception("the tools of run %s could not be released", self.id)
        if self._last is not None:
            for totals in self._totals:
                totals.add(spent_of(self._last.data))
        if self._on_end is not None:
            self._on_end(self)

    async def _read_to_the_end(self) -> None:
        retry = self._http.retry
        failures = 0
        rewound = False
        while True:
            before = self._position
            try:
                async with self._opened(before) as stream:
                    await self._read(stream)
                if self._last is not None:
                    return
                if self._position == before > 0 and not rewound and (await self.snapshot()).ended:
                    # Nothing comes after the last event, which we have not seen: read it again.
                    self._position, rewound = 0, True
                    continue
                failure: NetworkError | ApiError = NetworkError(f"the stream of {self.id} closed before its end")
            except NetworkError as error:
                failure = error
            except ApiError as error:
                if error.status not in _REOPENED:
                    raise
                failure = error
            failures = 1 if self._position > before else failures + 1
            if failures > retry.attempts or self._http.is_lost(failure, failures):
                raise failure
            wait_s = retry.wait_s(failures, at_least_s=getattr(failure, "retry_after_s", None))
            logger.info("%s; reopening after %d in %.2f s", failure, self._position, wait_s)
            await asyncio.sleep(wait_s)
            # Another client may have answered in the meantime.
            self._settling = True

    @asynccontextmanager
    async def _opened(self, last_seq: int) -> AsyncGenerator[EventStream]:
        if (stream := self._stream) is not None:
            self._stream = None
            with closing(stream):
                yield stream
            return
        async with self._http.stream(f"/agent-runs/{self.id}/stream", last_seq=last_seq) as stream:
            yield stream

    async def _read(self, stream: EventStream) -> None:
        parser = SseParser()
        while self._last is None:
            try:
                async with asyncio.timeout(SETTLE_S if self._settling else None):
                    data = await stream.read()
            except TimeoutError:
                self._settling = False
                for call in list(self._held.values()):
                    self._dispatcher.offer(call)
                self._held.clear()
                continue
            if not data:
                return
            for sent in parser.feed(data):
                frame = parse_frame(sent, run_id=self.id, last_seq=self._position)
                if frame.seq > self._position:
                    self._position = frame.seq
                    self._take_in(frame)
            self._notify()

    def _take_in(self, frame: Frame) -> None:
        event = frame.event
        if self._dispatch:
            self._act_on(frame)
        if isinstance(event, RunEnded):
            self._last = frame
        if event.seq <= self.last_seq:
            return
        self.last_seq = event.seq
        self._frames.append(frame)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                logger.exception("on_event failed at event %d of run %s", event.seq, self.id)

    def _act_on(self, frame: Frame) -> None:
        match frame.event:
            case CallFinished(call_id=call_id):
                self._held.pop(call_id, None)
                self._dispatcher.skip(call_id)
            case TurnFinished():
                # The next turn is complete, so every call of the one before has its answer.
                self._held.clear()
            case _:
                if (call := offered(frame)) is None:
                    return
                if self._settling:
                    self._held[call.tool_use_id] = call
                else:
                    self._dispatcher.offer(call)

    def _delivery_failed(self, error: ToolDeliveryError) -> None:
        event = ToolDeliveryFailed(run_id=self.id, seq=self.last_seq, call_id=error.tool_use_id, error=error)
        self._frames.append(Frame(event=event, type="tool_delivery_failed", data={}))
        self._notify()

    def _notify(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
        self._news = None

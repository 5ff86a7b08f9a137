"""A run that is shown as it goes, and whose questions the person at the terminal is asked."""

from __future__ import annotations

import asyncio
import os
import select
import shlex
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import click
from msgspec import Struct

from weftline import prompts
from weftline.cli.terminal import clean, is_terminal
from weftline.client.errors import ToolError
from weftline.events import AwaitClosed, AwaitOpened, ChildStarted

if TYPE_CHECKING:
    from weftline.cli.screen import Screen
    from weftline.client.events import Frame, OfferedCall

_GONE = frozenset({"await_closed", "await_expired", "run_terminal", "unknown_await"})
"""Codes of answers that came too late."""

_NO: dict[str, Any] = {"outcome": "denied", "reason": ""}


class Asked:
    """A question of a run, for `weftline.agent.terminal.ask`. `reply` is what the person said, as the API takes it."""

    def __init__(self, asked: AwaitOpened) -> None:
        self.about = asked.kind
        self.question = clean(asked.question)
        self.options = asked.options
        self.reply: dict[str, Any] = {}

    def approve(self) -> None:
        self.reply = {"outcome": "approved"}

    def deny(self, reason: str = "") -> None:
        self.reply = {"outcome": "denied", "reason": reason}

    def answer(self, value: Any) -> None:
        self.reply = {"outcome": "answered", "value": value}


def can_ask() -> bool:
    """Whether a person can read a question here and type an answer; standard output may go elsewhere."""
    return all(stream is not None and is_terminal(stream) for stream in (sys.stdin, sys.stderr))


def how_to_answer(run_id: str, await_id: str, kind: str, where: str) -> str:
    """Returns the commands with which somebody answers from elsewhere; `where` is an option that names the place."""
    ref = shlex.quote(f"{run_id}/{await_id}")
    if kind in ("question", "clarification"):
        return f"To answer: weftline answer {ref} ANSWER{where}"
    return f"To answer: weftline approve {ref}{where}\n       or: weftline deny {ref} REASON{where}"


def at_server(url: str, workspace: str | None) -> str:
    """Returns the options that name a server."""
    return f" --url {shlex.quote(url)}" + (f" --workspace {shlex.quote(workspace)}" if workspace else "")


class Place(Protocol):
    """Where a run is executed: a server, or this process."""

    @property
    def others_answer(self) -> bool:
        """Whether a question can also be answered from elsewhere."""
        ...

    def frames(self, run_id: str) -> AsyncGenerator[Frame]: ...

    async def answer(self, asked: AwaitOpened, reply: dict[str, Any]) -> None:
        """Raises `WeftlineError` if the answer is refused."""
        ...

    def elsewhere(self, asked: AwaitOpened) -> str:
        """Returns what to tell a person who cannot answer here."""
        ...


class _QuestionHere(Struct):
    """A question about a call that this process executes: only the person here can answer it."""

    asked: AwaitOpened
    reply: asyncio.Future[dict[str, Any] | None]


class ShownRun:
    """A run and those of its subagents, as one person follows them."""

    def __init__(self, place: Place, screen: Screen) -> None:
        self._place = place
        self._screen = screen
        self._frames: asyncio.Queue[Frame | _QuestionHere | None] = asyncio.Queue()
        self._closed: set[tuple[str, str]] = set()
        self._asking: tuple[tuple[str, str], socket.socket] | None = None
        """The question on the screen, and what ends it when it is closed."""
        self._below: set[asyncio.Task[None]] = set()

    async def show(self, run_id: str) -> int:
        """Shows all events of the run, and asks what it asks; returns the exit code of the last."""
        code: int | None = None
        following = asyncio.create_task(self._follow(run_id))
        try:
            while (frame := await self._frames.get()) is not None:
                if isinstance(frame, _QuestionHere):
                    await self._ask_about_call(frame)
                    continue
                event = frame.event
                if event.run_id == run_id:
                    code = self._screen.show(frame)
                if isinstance(event, AwaitOpened):
                    await self._ask(event)
            await following
        finally:
            for task in (following, *self._below):
                task.cancel()
            await asyncio.gather(following, *self._below, return_exceptions=True)
        return 1 if code is None else code

    async def confirm(self, call: OfferedCall, run_id: str, question: str) -> str:
        """Asks about a call that this process executes; returns what the model reads if it may not begin.

        Cancelling it withdraws the question.
        """
        asked = AwaitOpened(
            run_id=run_id,
            seq=0,
            id=f"here-{call.tool_use_id}",
            kind="confirm",
            question=question,
            name=call.name,
            args=call.args,
            call_id=call.tool_use_id,
        )
        here = _QuestionHere(asked, asyncio.get_running_loop().create_future())
        self._frames.put_nowait(here)
        try:
            reply = await here.reply
        finally:
            self._withdraw((run_id, asked.id))
        if reply is None:
            raise ToolError(prompts.people.nobody_asked(call.name))
        if reply["outcome"] == "approved":
            return ""
        return prompts.people.denied(reply["reason"]) if reply["reason"] else prompts.people.DENIED

    async def _ask_about_call(self, here: _QuestionHere) -> None:
        if here.reply.done():
            return
        self._screen.announce(here.asked, with_question=not can_ask())
        if not can_ask():
            self._screen.note("Nobody can answer it here, so the call is refused. Run the command in a terminal.")
        reply = (await self._typed(here.asked) or _NO) if can_ask() else None
        if not here.reply.done():
            here.reply.set_result(reply)

    def _withdraw(self, key: tuple[str, str]) -> None:
        self._closed.add(key)
        if self._asking is not None and self._asking[0] == key:
            self._asking[1].close()

    async def _follow(self, run_id: str) -> None:
        try:
            async for frame in self._place.frames(run_id):
                self._take(frame)
                self._frames.put_nowait(frame)
        finally:
            self._frames.put_nowait(None)

    async def _follow_below(self, run_id: str) -> None:
        # What subagents do is shown as one call, but they may ask.
        with suppress(Exception):
            async for frame in self._place.frames(run_id):
                self._take(frame)
                if isinstance(frame.event, AwaitOpened):
                    self._frames.put_nowait(frame)

    def _take(self, frame: Frame) -> None:
        match frame.event:
            case ChildStarted(child_id=child):
                task = asyncio.create_task(self._follow_below(child))
                self._below.add(task)
            case AwaitClosed(run_id=run_id, id=id):
                self._withdraw((run_id, id))
            case _:
                pass

    async def _ask(self, asked: AwaitOpened) -> None:
        """Shows the call, and asks about it until the question is closed; where nobody can type, says who can."""
        from weftline.errors import WeftlineError

        key = (asked.run_id, asked.id)
        self._screen.announce(asked, with_question=not can_ask())
        if not can_ask():
            self._screen.note(self._place.elsewhere(asked))
            return
        while key not in self._closed:
            reply = await self._typed(asked)
            if reply is None and key in self._closed:
                return
            if reply is None and self._place.others_answer:
                self._screen.note(f"The question stays open. {self._place.elsewhere(asked)}")
                return
            reply = reply or _NO
            try:
                await self._place.answer(asked, reply)
            except WeftlineError as error:
                if error.code in _GONE:
                    return
                self._screen.note(f"weftline: {clean(error.message)}")
                if error.code != "invalid_answer":
                    self._screen.note(self._place.elsewhere(asked))
                    return
            else:
                return

    async def _typed(self, asked: AwaitOpened) -> dict[str, Any] | None:
        ours, theirs = socket.socketpair()
        self._asking = (asked.run_id, asked.id), ours
        with ours:
            reply = await asyncio.to_thread(_typed_reply, asked, theirs)
        self._asking = None
        return reply


def _typed_reply(asked: AwaitOpened, withdrawn: socket.socket) -> dict[str, Any] | None:
    """Asks the person, in this thread; None after Ctrl-D, or if the other end of `withdrawn` was closed first."""
    from weftline.agent.terminal import ask

    _forget_typed()
    question = Asked(asked)
    with withdrawn:
        try:
            ask(question, read=lambda prompt: _line(prompt, withdrawn))
        except (EOFError, _Withdrawn):
            return None
    return question.reply


class _Withdrawn(Exception):
    pass


def _forget_typed() -> None:
    """Drops what was typed before the question could be read, lest an early Enter approves something."""
    import termios

    with suppress(OSError, termios.error):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _line(prompt: str, withdrawn: socket.socket) -> str:
    # Not `input`, which nothing could end when somebody else has answered.
    click.echo(clean(prompt), nl=False, err=True)
    typed, _, _ = select.select([sys.stdin, withdrawn], [], [])
    if withdrawn in typed:
        click.echo("", err=True)
        raise _Withdrawn
    line = os.read(sys.stdin.fileno(), 65536)
    if not line:
        click.echo("", err=True)
        raise EOFError
    return line.decode(errors="replace")

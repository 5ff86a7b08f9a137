"""Shows a run in progress.

On a terminal, the model's text appears as it comes, and everything else goes to standard error. Otherwise, standard
output has only the final text, so that `answer=$(weftline run …)` works. With `--json`, every event is a line.
"""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

import click

from weftline.cli.terminal import call_text, clean, is_terminal, on_one_line, styled
from weftline.client.events import Frame
from weftline.client.usage import spent_of
from weftline.events import (
    AwaitClosed,
    AwaitOpened,
    CallFinished,
    CallOpened,
    ProviderCalled,
    RunEnded,
    RunPaused,
    TextDelta,
    ThinkingDelta,
    TurnFinished,
    TurnRestarted,
)
from weftline.events.decode import subtype_of, text_of

_WIDTH = 100
_CALL_WIDTH = 48
SUCCEEDED, FAILED, CANCELLED, NOT_ENDED, INTERRUPTED = 0, 3, 4, 5, 130
"""Exit codes of commands that follow a run; 1 and 2 mean the same for every command."""
EXIT_CODES = {"succeeded": SUCCEEDED, "failed": FAILED, "cancelled": CANCELLED}
"""By the status of a run that has ended."""


class Screen:
    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._streams = not as_json and is_terminal()
        self._prints_notes = not as_json and is_terminal(sys.stderr)
        self._mid_line: TextIO | None = None
        """The stream whose last line is incomplete."""
        self._announced: dict[str, str] = {}
        """By the id of a call that a person was asked about: how it was shown."""
        self._calls: dict[str, str] = {}
        """By the id of a call: how it was shown."""
        self._latest = ""
        """The id of the call in the latest line."""

    def show(self, frame: Frame) -> int | None:
        """Shows an event; if it is the last, returns its exit code."""
        event = frame.event
        if self._as_json:
            fields = {"runId": event.run_id, "seq": event.seq, "type": frame.type, "data": frame.data}
            click.echo(json.dumps(fields, ensure_ascii=False))
        else:
            self._render(frame)
        return EXIT_CODES[event.status] if isinstance(event, RunEnded) else None

    def note(self, text: str) -> None:
        """Shows a note to the user, in every output mode."""
        self._end_line()
        click.echo(text, err=True)

    def announce(self, asked: AwaitOpened, *, with_question: bool) -> None:
        """Shows the call that a person is asked about, whole and in every output mode."""
        call = call_text(asked.name, asked.args)
        self._announced[asked.call_id] = call
        if call:
            self.note(styled(f"· {call}", sys.stderr, dim=True))
        if with_question:
            self.note(f"weftline: The run asks a person: {clean(asked.question)}")

    def _render(self, frame: Frame) -> None:
        event = frame.event
        match event:
            case TextDelta():
                self._write(event.text, sys.stdout, visible=self._streams)
            case ThinkingDelta():
                self._write(event.text, sys.stderr, visible=self._prints_notes, dim=True)
            case TurnFinished():
                self._end_line()
            case CallOpened():
                call = self._calls[event.call_id] = call_text(event.name, event.args)
                if self._announced.get(event.call_id) != call:
                    self._print_note(f"· {call}")
                self._latest = event.call_id
            case AwaitClosed():
                by = f" by {event.by}" if event.by else ""
                self._print_note(f"· {event.outcome}{by}" + (f": {event.reason}" if event.reason else ""))
            case CallFinished(how="in_doubt"):
                self._print_note(f"  ? {self._call(event)} was cut off: it may or may not have happened", fg="yellow")
            case CallFinished(ok=False) | ProviderCalled(status="failed"):
                self._print_note(f"  ✗ {self._call(event)}: {_result(frame)}", fg="red")
            case CallFinished() | ProviderCalled():
                self._print_note(f"  → {self._call(event)}: {_result(frame)}")
            case TurnRestarted():
                self._print_note("· the model is asked again; ignore its text of this turn so far")
            case RunPaused():
                self._print_note("· paused" + (f": {event.reason}" if event.reason else ""))
            case RunEnded():
                self._show_end(event, frame)
            case _:
                pass

    def _call(self, event: CallFinished | ProviderCalled) -> str:
        """Returns the call that an event is about, with its arguments unless its own line is just above."""
        if isinstance(event, ProviderCalled):
            return event.name
        call, latest = self._calls.pop(event.call_id, ""), self._latest
        self._latest = ""
        return on_one_line(call, _CALL_WIDTH) if call and event.call_id != latest else event.name

    def _show_end(self, end: RunEnded, frame: Frame) -> None:
        self._end_line()
        match end.status:
            case "succeeded":
                if not self._streams:
                    click.echo(end.text, color=True)  # unchanged, without stripping
                if text_of(frame.data, "finishReason") == "refusal":
                    self.note("weftline: The model, or a filter of its provider, refused to answer.")
            case "cancelled":
                reason = text_of(frame.data, "reason") or end.reason
                click.echo(styled(f"weftline: The run was cancelled ({clean(reason)}).", sys.stderr), err=True)
            case "failed":
                reason = end.error or subtype_of(frame.type, frame.data)
                click.echo(styled(f"weftline: The run failed: {clean(reason)}", sys.stderr, fg="red"), err=True)
        self._print_note(_summary(frame))

    def _write(self, text: str, stream: TextIO, *, visible: bool, **style: Any) -> None:
        if not visible or not (text := clean(text)):
            return
        if self._mid_line is not stream:
            self._end_line()
        click.echo(styled(text, stream, **style), file=stream, nl=False)
        self._mid_line = None if text.endswith("\n") else stream

    def _print_note(self, text: str, **style: Any) -> None:
        if self._prints_notes:
            self._end_line()
            click.echo(styled(on_one_line(text, _WIDTH), sys.stderr, **(style or {"dim": True})), err=True)

    def _end_line(self) -> None:
        if self._mid_line is not None:
            click.echo("", file=self._mid_line)
            self._mid_line = None


def _result(frame: Frame) -> str:
    event = frame.event
    assert isinstance(event, CallFinished | ProviderCalled)
    return text_of(frame.data, "summary") or event.result


def _summary(end: Frame) -> str:
    spent = spent_of(end.data)
    parts = [end.event.run_id, f"{spent.turns} turn{'' if spent.turns == 1 else 's'}"]
    if spent.tokens is not None:
        about = "about " if spent.usage_estimated else ""
        parts.append(f"{about}{spent.tokens.input_tokens + spent.tokens.output_tokens} tokens")
    if spent.cost_usd is not None:
        parts.append(cost(spent.cost_usd, estimated=spent.usage_estimated))
    if spent.model is not None:
        parts.append(spent.model.id)
    return " · ".join(parts)


def cost(usd: float, *, estimated: bool) -> str:
    about = "~" if estimated else ""
    return f"{about}<$0.0001" if 0 < usd < 0.0001 else f"{about}${usd:.4f}"

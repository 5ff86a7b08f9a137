"""Shows a run in progress.

On a terminal the model's text appears as it comes, and everything else goes to standard error. Elsewhere standard
output has nothing but the final text, so that `answer=$(weftline run …)` is just that. With `--json` every event is a
line.
"""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

import click

from weftline.cli.terminal import clean, is_terminal, on_one_line, styled
from weftline.client.events import (
    AssistantDelta,
    AssistantMessage,
    Cancelled,
    Event,
    Failed,
    LocalToolCall,
    Result,
    RunPaused,
    Terminal,
    ThinkingDelta,
    ToolCall,
    ToolResult,
    TurnRestarted,
)

_WIDTH = 100
SUCCEEDED, FAILED, CANCELLED, NOT_ENDED, INTERRUPTED = 0, 3, 4, 5, 130
"""Exit codes of commands that follow a run; 1 and 2 mean the same for every command."""
EXIT_CODES = {"succeeded": SUCCEEDED, "failed": FAILED, "cancelled": CANCELLED}
"""By the status of a run that has ended."""


class Screen:
    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._streams = not as_json and is_terminal()
        self._tells = not as_json and is_terminal(sys.stderr)
        self._mid_line: TextIO | None = None
        """The stream whose last line is incomplete."""

    def show(self, event: Event) -> int | None:
        """Shows an event; returns the exit code it stands for if it is the last."""
        if self._as_json:
            fields = {"runId": event.run_id, "seq": event.seq, "type": event.type, "data": event.data}
            click.echo(json.dumps(fields, ensure_ascii=False))
        else:
            self._render(event)
        return _exit_code(event) if isinstance(event, Terminal) else None

    def note(self, text: str) -> None:
        """Shows a note to the user, in every output mode."""
        self._end_line()
        click.echo(text, err=True)

    def _render(self, event: Event) -> None:
        match event:
            case AssistantDelta():
                self._write(event.text, sys.stdout, visible=self._streams)
            case ThinkingDelta():
                self._write(event.text, sys.stderr, visible=self._tells, dim=True)
            case AssistantMessage():
                self._end_line()
            case ToolCall() | LocalToolCall():
                self._tell(f"· {event.name} {json.dumps(event.args, ensure_ascii=False)}")
            case ToolResult(in_doubt=True):
                self._tell(f"  ? {event.name} was cut off: it may or may not have happened", fg="yellow")
            case ToolResult() if event.ok is False:
                self._tell(f"  ✗ {event.summary or event.result or ''}", fg="red")
            case ToolResult():
                self._tell(f"  → {event.summary or event.result or ''}")
            case TurnRestarted():
                self._tell("· the model is asked again; what it said in this turn does not count")
            case RunPaused():
                self._tell("· paused" + (f": {event.reason}" if event.reason else ""))
            case Terminal():
                self._show_end(event)
            case _:
                pass

    def _show_end(self, event: Terminal) -> None:
        self._end_line()
        match event:
            case Result(ok=True):
                if not self._streams:
                    click.echo(event.text, color=True)  # unchanged: nothing is stripped
                if event.finish_reason == "refusal":
                    self.note("weftline: The model, or a filter of its provider, would not answer.")
                self._tell(_summary(event))
            case Cancelled():
                click.echo(styled(f"weftline: The run was cancelled ({clean(event.reason)}).", sys.stderr), err=True)
                self._tell(_summary(event))
            case Result() | Failed():
                reason = event.error or (event.subtype if isinstance(event, Result) else "")
                click.echo(styled(f"weftline: The run failed: {clean(reason)}", sys.stderr, fg="red"), err=True)
                self._tell(_summary(event))
            case _:
                pass

    def _write(self, text: str, stream: TextIO, *, visible: bool, **style: Any) -> None:
        if not visible or not (text := clean(text)):
            return
        if self._mid_line is not stream:
            self._end_line()
        click.echo(styled(text, stream, **style), file=stream, nl=False)
        self._mid_line = None if text.endswith("\n") else stream

    def _tell(self, text: str, **style: Any) -> None:
        if self._tells:
            self._end_line()
            click.echo(styled(on_one_line(text, _WIDTH), sys.stderr, **(style or {"dim": True})), err=True)

    def _end_line(self) -> None:
        if self._mid_line is not None:
            click.echo("", file=self._mid_line)
            self._mid_line = None


def _exit_code(event: Terminal) -> int:
    if isinstance(event, Cancelled):
        return CANCELLED
    return SUCCEEDED if isinstance(event, Result) and event.ok else FAILED


def _summary(event: Terminal) -> str:
    parts = [event.run_id, f"{event.turns} turn{'' if event.turns == 1 else 's'}"]
    if event.tokens is not None:
        about = "about " if event.usage_estimated else ""
        parts.append(f"{about}{event.tokens.input_tokens + event.tokens.output_tokens} tokens")
    if event.cost_usd is not None:
        parts.append(cost(event.cost_usd, estimated=event.usage_estimated))
    if event.model is not None:
        parts.append(event.model.id)
    return " · ".join(parts)


def cost(usd: float, *, estimated: bool) -> str:
    return f"~${usd:.4f}" if estimated else f"${usd:.4f}"

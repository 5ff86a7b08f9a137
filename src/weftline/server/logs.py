"""The server's log: our own lines at the configured level, and only warnings and errors from libraries.

At INFO a library logs what it was asked to do, including addresses with their tokens. Such addresses, and our own
credentials, are redacted from everything that is logged. A message is one line, whatever it quotes.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO, TypeAlias

from weftline.text.redaction import REDACTED, redact_url
from weftline.trace_context import current_request, current_run

LogStyle: TypeAlias = Literal["text", "json"]

ACCESS: Final = "weftline.access"
"""The logger of the access log, which logs at DEBUG."""

_URL = re.compile(r"""https?://[^\s"'<>]+""", re.IGNORECASE)
_RUN_ID = re.compile(r"(?<=^run )[A-Za-z0-9_-]{1,128}(?=:| has )|\brun_[0-9a-f]+\b")
"""A run id at the beginning of our messages, or a generated id anywhere."""
_CREDENTIAL = re.compile(r"\b(weft_|whsec_|mantyx_(?:at|rt|ac|oas)_)[A-Za-z0-9_-]{8,}")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_MAX_MESSAGE_CHARS = 4000
_MAX_FIELD_CHARS = 500
_MAX_LINE_CHARS, _MAX_LINES = 2000, 400
"""Limits for a traceback.

Lines lose their end and the traceback its middle: without its beginning, the rest of a URL would not be recognized, and
so not redacted.
"""
_LEVELS = {
    # We report these failures to the model and log them ourselves; their tracebacks quote what a peer sent.
    "mcp.client": logging.CRITICAL,
    # Below ERROR it logs a line for each session that it refuses, as often as a client asks for one.
    "mcp.server.streamable_http_manager": logging.ERROR,
}
"""The levels of libraries that should log less than others."""
_SHARED = (
    "weftline.store",
    "weftline.runtime.fleet.driving",
    "weftline.runtime.commits",
    "weftline.runtime.fleet.fleet",
    "weftline.runtime.log",
    "weftline.runtime.recovery",
    "weftline.runtime.tasks",
    "weftline.runtime.fleet.timers",
    "weftline.server.listener",
)
"""These serve all runs, whichever woke them, so their messages name the run themselves."""


def configure_logs(level: str, *, style: LogStyle = "text", stream: TextIO | None = None) -> None:
    """Logs to stderr. `level` is for our own loggers; libraries log from WARNING up."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    for former in root.handlers[:]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("weftline").setLevel(level.upper())
    for name, of_library in _LEVELS.items():
        logging.getLogger(name).setLevel(of_library)


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO weftline.server: message [run_… acme req_…]`, followed by the traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        message = _message(record)
        about = [value for value in _about(record).values() if value not in message]
        place = f" [{' '.join(about)}]" if about else ""
        traceback = _traceback(record)
        below = f"\n{traceback}" if traceback else ""
        return f"{_time(record)} {record.levelname} {record.name}: {message}{place}{below}"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `time`, `level`, `logger`, `message` and, if known, `run`, `workspace`,
    `request`, what the line says as `fields`, and `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **_about(record),
        }
        if "run" not in fields and (run := _RUN_ID.search(fields["message"])):
            fields["run"] = run[0]
        extra: dict[str, Any] = getattr(record, "fields", {})
        for name, value in extra.items():
            fields.setdefault(name, _cut(redacted(value), _MAX_FIELD_CHARS) if isinstance(value, str) else value)
        if traceback := _traceback(record):
            fields["traceback"] = traceback
        return json.dumps(fields)


def _message(record: logging.LogRecord) -> str:
    # Line breaks sent by a client or a peer would let it forge log lines.
    message = _cut(record.getMessage(), _MAX_MESSAGE_CHARS)
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], redacted(message))


def _traceback(record: logging.LogRecord) -> str:
    pieces: list[str] = []
    if record.exc_info:
        pieces.append(logging.Formatter().formatException(record.exc_info))
    if record.stack_info:
        pieces.append(record.stack_info)
    lines = [_cut(line, _MAX_LINE_CHARS) for line in "\n".join(pieces).split("\n")]
    if (more := len(lines) - _MAX_LINES) > 0:
        lines[_MAX_LINES // 2 : -_MAX_LINES // 2] = [f"… {more:,} lines …"]
    return redacted("\n".join(lines))


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"


def _about(record: logging.LogRecord) -> dict[str, str]:
    """Returns the run, workspace and request that the record is about, if known."""
    if record.name.startswith(_SHARED):
        return {}
    run, request = current_run.get(), current_request.get()
    fields = {
        "run": run.run_id if run is not None else "",
        "workspace": (run.workspace_slug if run is not None else "") or (request.workspace if request else ""),
        "request": request.id if request is not None else "",
    }
    return {name: value for name, value in fields.items() if value}


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def redacted(text: str) -> str:
    """Returns the text without our credentials, and with the secrets in its URLs redacted."""
    # A lone surrogate cannot be encoded; an escaped one is better than losing the line.
    text = text if text.isascii() else text.encode(errors="backslashreplace").decode()
    text = _URL.sub(lambda match: redact_url(match[0]), text)
    return _CREDENTIAL.sub(rf"\1{REDACTED}", text)

"""One line of the server's log: in text and in JSON, whoever wrote it and whatever it quotes."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Generator
from typing import NamedTuple

import pytest

from weftline.server.logs import LogStyle, configure_logs
from weftline.server.request_log import MAX_LINES, MAX_WORKSPACES, RefusedRequests
from weftline.trace_context import RequestInfo, current_request, current_run, fields

Configure = Callable[[LogStyle], io.StringIO]


class Work(NamedTuple):
    run_id: str = "run_1f"
    workspace_slug: str = "acme"


@pytest.fixture
def configure() -> Configure:
    stream = io.StringIO()

    def made(style: LogStyle) -> io.StringIO:
        configure_logs("info", style=style, stream=stream)
        return stream

    return made


@pytest.fixture
def at_work() -> Generator[None]:
    tokens = current_run.set(Work()), current_request.set(RequestInfo("req_7"))  # pyright: ignore[reportArgumentType]
    yield
    current_run.reset(tokens[0])
    current_request.reset(tokens[1])


@pytest.mark.usefixtures("at_work")
def test_log_line_names_the_run_and_request(configure: Configure) -> None:
    log = configure("text")
    logging.getLogger("weftline.tools").warning("hot")
    logging.getLogger("weftline.tools").warning("run run_1f is hot")
    logging.getLogger("weftline.store.sqlite.writer").warning("full")
    first, second, third = log.getvalue().splitlines()
    assert first.endswith("Z WARNING weftline.tools: hot [run_1f acme req_7]")
    assert second.endswith("run run_1f is hot [acme req_7]")
    assert third.endswith(": full"), "the store works for everybody"


@pytest.mark.usefixtures("at_work")
def test_line_of_json_is_one_object_with_its_traceback_inside(configure: Configure) -> None:
    log = configure("json")
    try:
        raise ValueError("https://u:hush@x.example/?token=hush")
    except ValueError:
        logging.getLogger("some.library").exception("it said\n%s", "mantyx_at_0123456789")
    (line,) = log.getvalue().splitlines()
    told = json.loads(line)
    assert list(told) == ["time", "level", "logger", "message", "run", "workspace", "request", "traceback"]
    assert told["message"] == "it said\\nmantyx_at_[redacted]" and told["level"] == "error"
    assert told["traceback"].startswith("Traceback") and "hush" not in line


def test_log_fields_appear_separately_in_json(configure: Configure) -> None:
    log = configure("json")
    told = fields(class_="auth", status=None, attempt=2, path="/x?a=https://u:hush@x.example/", run="run_2")
    logging.getLogger("weftline.x").warning("run run_1f: it said no", extra=told)
    logging.getLogger("weftline.store.sqlite.writer").error("run run_1f: cannot write its log")
    logging.getLogger("weftline.store.sqlite.writer").error("run nightly-7: cannot write its log")
    logging.getLogger("weftline.store.sqlite.writer").error("a run cannot be written: it is full")
    first, second, given, nobodys = [json.loads(line) for line in log.getvalue().splitlines()]
    assert (first["class"], first["attempt"], first["run"]) == ("auth", 2, "run_1f")
    assert "status" not in first and "hush" not in first["path"]
    assert second["run"] == "run_1f", "a line that names its run has it as a field, whoever wrote it"
    assert given["run"] == "nightly-7" and "run" not in nobodys


@pytest.mark.parametrize("style", ["text", "json"])
def test_nobody_writes_lines_of_their_own_by_what_is_quoted(configure: Configure, style: LogStyle) -> None:
    log = configure(style)
    logging.getLogger("weftline.x").info("path %s", "/a\r\n2026 INFO forged\x1b[2J\u2028\x85\x00\ud800ü")
    (line,) = log.getvalue().splitlines()
    assert "forged" in line and not any(mark in line for mark in "\r\x1b\u2028\x85\x00\ud800")
    assert line.encode()


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_line_is_bounded_whatever_was_raised(configure: Configure, style: LogStyle) -> None:
    log = configure(style)
    secret = "https://x.example/?token=hush"
    try:
        raise ValueError("x" * 1990 + f" {secret} " + "y" * 1_000_000 + f"\n{secret}" * 10_000)
    except ValueError as error:
        logging.getLogger("weftline.x").exception("%s", str(error))
    text = log.getvalue()
    assert len(text) < 100_000 and "hush" not in text
    assert "more characters)" in text and "Traceback" in text and "lines" in text


def note(refused: RefusedRequests, workspace: str = "", *, status: int = 404, code: str = "not_found") -> None:
    refused.note(status=status, code=code, method="GET", path="/x" * 1000, workspace=workspace)


async def test_a_flood_of_refusals_is_told_in_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="weftline.server.request_log")
    refused = RefusedRequests()
    for _ in range(1000):
        note(refused)
    note(refused, "acme", status=429, code="rate_limited")
    assert len(caplog.messages) == MAX_LINES + 1, "another's flood takes no lines away from acme"
    assert all(len(message) < 600 for message in caplog.messages)
    caplog.clear()
    refused.report()
    assert caplog.messages == ["refused 980 more requests without a valid credential within a minute: 980 not_found"]
    caplog.clear()
    note(refused, status=503, code="unavailable")
    refused.report()
    assert [record.levelname for record in caplog.records] == ["WARNING"], "a new window, and trouble of our own"


async def test_refusals_of_very_many_workspaces_are_bounded_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="weftline.server.request_log")
    refused = RefusedRequests()
    for number in range(3 * MAX_WORKSPACES):
        note(refused, f"team-{number}")
    assert len(caplog.messages) == MAX_WORKSPACES + MAX_LINES
    refused.report()
    assert "of other workspaces" in caplog.messages[-1]

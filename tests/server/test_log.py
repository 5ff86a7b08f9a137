"""What an operator reads: one server, everything that is worth a line, and the lines as JSON."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from commands import weftline
from weftline import __version__
from weftline.client import Client, RunFailed, server_tool
from weftline.events import CallOpened, RunStarted
from weftline.testing import ServerProcess

SCRIPTS: dict[str, Any] = {
    "burns": {"turns": [{"tool_calls": [{"name": "burn", "args": {}}]}, {"text": "{{tool_results.0}}"}]},
    "sorry": {"turns": [{"tool_calls": [{"name": "sorry", "args": {}}]}, {"text": "{{tool_results.0}}"}]},
    "flaky": {"turns": [{"error": {"class": "overloaded", "message": "busy\nvery busy"}}, {"text": "better"}]},
    "broken": {"turns": [{"error": {"class": "auth", "message": "bad key weft_0123456789abcdef"}}]},
    "drip": {"turns": [{"deltas": [str(number) for number in range(40)], "delay_ms": 4}]},
    "asks": {"turns": [{"tool_calls": [{"name": "ask", "args": {}}]}]},
    "stuck": {"turns": [{"deltas": ["begun", "never"], "delay_ms": 600_000}]},
}
TOOLS = '''
import logging

import weftline


@weftline.tool(effect="read")
def burn() -> str:
    """Fails, in a thread."""
    logging.getLogger("shop").warning("it smells of smoke")
    raise RuntimeError("there was a fire")


@weftline.tool(effect="read")
def sorry() -> str:
    """Says that it cannot."""
    raise weftline.ToolFailed("not today")
'''


class Told(NamedTuple):
    """What was done, and what the server's log has about it."""

    server: ServerProcess
    db: Path
    first: list[dict[str, Any]]
    """Of the server that was killed."""
    second: list[dict[str, Any]]
    """Of the one that came after it."""
    burnt: str
    flaky: str
    broken: str
    unanswered: str
    drip: str
    refused: str
    """The request's id."""

    def lines(self, text: str) -> list[dict[str, Any]]:
        return [line for line in self.first if text in line["message"]]


def log_of(server: ServerProcess) -> list[dict[str, Any]]:
    server.close()
    lines = [json.loads(line) for line in server.log]
    server.log.clear()
    return lines


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    server = ServerProcess(
        tmp_path_factory.mktemp("log"),
        scripts=SCRIPTS,
        tools=TOOLS,
        config="[server]\nslow_turn_s = 0.1\n",
        arguments=("--log", "json", "--log-level", "debug", "--drain", "0"),
    )
    with server:
        key = server.create_key("acme")
        with Client(api_key=key, workspace="acme", base_url=server.url) as client:
            burnt = client.run("hi", model_id="scripted:burns", tools=[server_tool("burn")]).run_id
            client.run("hi", model_id="scripted:sorry", tools=[server_tool("sorry")])
            flaky = client.run("hi", model_id="scripted:flaky").run_id
            with pytest.raises(RunFailed) as failed:
                client.run("hi", model_id="scripted:broken")
            with pytest.raises(RunFailed) as unanswered, client.attach(_unanswered(server.url, key)) as run:
                run.result()
            drip = client.run("hi", model_id="scripted:drip").run_id
            # Which finds out by itself whose key it has, and asks for nothing that is refused.
            environment = {"WEFTLINE_API_KEY": key, "WEFTLINE_BASE_URL": server.url, "WEFTLINE_DB": None}
            assert weftline("runs", "list", env=environment).code == 0
            with pytest.raises(HTTPError) as refused:
                urlopen(Request(f"{server.url}/nowhere%0aFAKE?token=hush"))
            with refused.value:
                request = refused.value.headers["X-Request-Id"]
            parked = _unanswered(server.url, key, timeout_ms=600_000)
            with client.attach(parked, dispatch=False) as waits:
                assert any(isinstance(event, CallOpened) for event in waits)
                waits.detach()
            left = client.start("hi", model_id="scripted:stuck")
            assert isinstance(next(iter(left)), RunStarted)
            server.kill()
            left.detach()
        first = log_of(server)
        server.start()
        assert server.terminate() == 0
        second = log_of(server)
    broken, timed_out = failed.value.run_id, unanswered.value.run_id
    return Told(server, server.db, first, second, burnt, flaky, broken, timed_out, drip, request)


def _unanswered(url: str, key: str, *, timeout_ms: int = 1) -> str:
    """Creates a run whose client-side call nobody answers; returns its id."""
    spec = {
        "modelId": "scripted:asks",
        "prompt": "hi",
        "tools": [{"kind": "local", "name": "ask", "description": "Asks.", "parameters": {"type": "object"}}],
        "budgets": {"localToolTimeoutMs": timeout_ms},
    }
    address = f"{url}/api/v1/workspaces/acme/agent-runs"
    request = Request(address, data=json.dumps(spec).encode(), headers={"Authorization": f"Bearer {key}"})
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)["runId"]


def test_the_start_is_one_line_that_says_what_there_is(told: Told) -> None:
    (line,) = told.lines("is listening on")
    for word in (__version__, told.server.url, str(told.db), "scripted:burns", "burn", "calculator"):
        assert word in line["message"]
    assert line["level"] == "info" and set(line) == {"time", "level", "logger", "message"}
    assert line["time"].endswith("Z") and "T" in line["time"]


def test_server_without_a_key_says_how_to_make_one(told: Told) -> None:
    (line,) = told.lines("there is no API key yet")
    _, _, command = line["message"].partition("create one with: ")
    arguments = shlex.split(command)
    made = weftline(*arguments[arguments.index("keys") :])
    assert made.code == 0 and made.out.startswith("weft_")
    assert [line for line in told.second if "API key" in line["message"]] == []


def test_tools_exception_leaves_traceback_with_runs_public_id(told: Told) -> None:
    (line,) = told.lines("the tool burn failed")
    assert line["run"] == told.burnt and told.burnt in line["message"] and line["workspace"] == "acme"
    assert 'raise RuntimeError("there was a fire")' in line["traceback"] and "RuntimeError" in line["traceback"]
    assert line["tool"] == "burn" and line["call"]
    assert told.lines("the tool sorry failed") == []


def test_tool_log_lines_name_their_run(told: Told) -> None:
    (line,) = told.lines("it smells of smoke")
    assert (line["logger"], line["run"], line["workspace"]) == ("shop", told.burnt, "acme")


def test_failed_model_call_is_one_log_line(told: Told) -> None:
    again, given_up = told.lines("the model call failed")
    assert (again["run"], given_up["run"]) == (told.flaky, told.broken)
    for line, words in (
        (again, ("provider scripted", "scripted:flaky", "status none", "overloaded", "attempt 1", "again in 0.")),
        (given_up, ("scripted:broken", "auth", "attempt 1", "not trying again", "weft_[redacted]")),
    ):
        assert all(word in line["message"] for word in words), line
        assert line["level"] == "warning" and "\n" not in line["message"]
    fields = {"provider": "scripted", "model": "scripted:broken", "class": "auth", "turn": 0, "attempt": 1}
    assert given_up.items() >= fields.items() and again["class"] == "overloaded"


def test_failed_run_is_one_line_with_code_and_message(told: Told) -> None:
    failures = [line for line in [*told.first, *told.second] if re.match(r"run \S+ failed: ", line["message"])]
    by_run = {line["run"]: line for line in failures}
    assert set(by_run) == {told.broken, told.unanswered} and len(failures) == 2
    assert by_run[told.broken]["message"].startswith(f"run {told.broken} failed: auth: bad key")
    late = by_run[told.unanswered]
    assert "failed: local_timeout: Timed out waiting" in late["message"]
    assert (late["level"], late["workspace"], late["code"]) == ("warning", "acme", "local_timeout")
    assert (late["provider"], late["model"]) == ("scripted", "scripted:asks")


def test_a_failed_run_is_shown_with_its_code_and_class(told: Told) -> None:
    shown = weftline("runs", "show", told.unanswered, "--db", str(told.db)).out
    fields = dict(line.split(maxsplit=1) for line in shown.splitlines() if line)
    assert (fields["code"], fields["class"]) == ("local_timeout", "local_timeout")
    assert fields["error"].startswith("Timed out waiting")


def test_a_slow_turn_is_one_line(told: Told) -> None:
    # On a busy machine any other turn may be slow, too.
    (line,) = [line for line in told.lines("slow turn") if line["run"] == told.drip]
    assert "scripted:drip" in line["message"] and line["level"] == "info"


def test_refused_request_is_one_line_under_id_that_client_got(told: Told) -> None:
    (line,) = told.lines("refused GET")
    assert line["request"] == told.refused and line["level"] == "info"
    assert line["message"] == "refused GET /nowhere\\nFAKE: 404 not_found"
    assert (line["method"], line["path"], line["status"], line["code"]) == ("GET", "/nowhere\nFAKE", 404, "not_found")


def test_access_log_has_every_answer_without_its_query(told: Told) -> None:
    lines = [line for line in told.first if line["logger"] == "weftline.access"]
    assert {line["level"] for line in lines} == {"debug"}
    created = re.compile(r"POST /api/v1/workspaces/acme/agent-runs 20[02] in \d+\.\d ms")
    assert any(created.fullmatch(line["message"]) for line in lines)
    (refused,) = [line for line in lines if line["request"] == told.refused]
    assert "404" in refused["message"] and "hush" not in str(told.first)


def test_continued_run_is_one_line_after_a_crash(told: Told) -> None:
    (line,) = [line for line in told.second if "did not stop cleanly" in line["message"]]
    assert (
        line["message"].endswith("; recovering 1 run; 1 run waits for a person, a client or a time, as before")
        and line["level"] == "warning"
    )


def test_no_line_of_the_source_tells_an_internal_number() -> None:
    source = Path(__file__).parents[2] / "src" / "weftline"
    texts = {path.name: path.read_text(encoding="utf-8") for path in source.rglob("*.py")}
    numbered = re.compile(r"\b(run|thread|session|workspace) %d")
    assert [name for name, text in texts.items() if numbered.search(text)] == []

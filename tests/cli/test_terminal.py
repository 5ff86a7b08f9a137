"""What people see at a terminal: text as it comes, tables, colour unless they want none, and what Ctrl-C says."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from commands import weftline
from weftline.cli.output import show_list
from weftline.cli.screen import Screen
from weftline.cli.terminal import clean, on_one_line, show_table
from weftline.client.events import frame_of
from weftline.store import open_store
from weftline.testing import ServerProcess
from weftline.text.suggestions import did_you_mean

from .conftest import Terminal


def test_run_appears_live_and_the_first_interrupt_gives_options(
    env: dict[str, str | None], server: ServerProcess
) -> None:
    with Terminal("run", "hi", "--model", "scripted:stuck", env=env) as terminal:
        terminal.until("begun")
        terminal.interrupt()
        said = terminal.until("Press Ctrl-C again to exit.")
        found = re.search(r"weftline runs follow (run_\w+) --url (\S+)", said)
        assert found is not None and found[2] == server.url and f"weftline runs cancel {found[1]}" in said
        terminal.interrupt()
        assert terminal.end() == 130 and "Traceback" not in terminal.text
    # Leaving leaves the run to the server.
    assert weftline("runs", "cancel", found[1], env=env).out == "cancelled\n"


def test_run_in_this_process_is_cancelled_by_second_interrupt(
    env: dict[str, str | None], scripts: str, tmp_path: Path
) -> None:
    asyncio.run(open_store(tmp_path / "store").close())
    db = str(tmp_path / "store")
    arguments = ("run", "hi", "--model", "scripted:stuck", "--scripts", scripts, "--db", db)
    with Terminal(*arguments, env={**env, "WEFTLINE_BASE_URL": None}) as terminal:
        terminal.until("begun")
        terminal.interrupt()
        terminal.until("Press Ctrl-C again to cancel it.")
        terminal.interrupt()
        assert terminal.end() == 130 and "Traceback" not in terminal.text
    (run,) = weftline("runs", "list", "-q", "--db", db).out.split()
    assert '"status": "cancelled"' in weftline("runs", "show", run, "--db", db, "--json").out


def test_a_list_is_a_table_in_colour(env: dict[str, str | None]) -> None:
    assert weftline("run", "hi", "--model", "scripted:hello", env=env).code == 0
    with Terminal("runs", "list", "--status", "succeeded", env={**env, "NO_COLOR": None}) as terminal:
        assert terminal.end() == 0
    head, first, *_ = terminal.text.splitlines()
    for name in ("RUN", "STATUS", "NAME", "MODEL", "CREATED", "TURNS", "COST"):
        assert name in head
    assert first.startswith("run_") and "\x1b[32msucceeded\x1b[0m" in first and "scripted:hello" in first


def test_a_pipe_gets_the_columns_of_the_terminal(env: dict[str, str | None]) -> None:
    assert weftline("run", "a\tb", "--model", "scripted:hello", env=env).code == 0
    head, first, *_ = weftline("runs", "list", "--status", "succeeded", env=env).out.splitlines()
    assert head == "RUN\tSTATUS\tNAME\tMODEL\tCREATED\tTURNS\tCOST"
    run, status, _, model, *_ = cells = first.split("\t")
    assert len(cells) == 7 and (status, model) == ("succeeded", "scripted:hello") and "\x1b" not in first
    assert datetime.fromisoformat(cells[4]).tzinfo is not None
    assert weftline("runs", "list", "--session", "ses_1aabbccddeeff", env=env).out == f"{head}\n"
    assert weftline("runs", "list", "--status", "succeeded", "-q", env=env).out.splitlines()[0] == run


def test_a_pipe_is_not_cut_and_holds_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    item: dict[str, Any] = {"id": "key_1", "name": "long " * 60, "note": "two\nlines\tand a tab\x1b[2J", "spec": {}}
    show_list([item], "columns")
    head, row = capsys.readouterr().out.splitlines()
    assert head == "ID\tNAME\tNOTE" and row == f"key_1\t{('long ' * 60).strip()}\ttwo lines and a tab[2J"
    show_list([], "columns", headings=("ID", "NAME"))
    show_list([], "columns")
    show_list([], "ids")
    assert capsys.readouterr().out == "ID\tNAME\n"


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def yes(stream: object = None) -> bool:
        return True

    for module in ("terminal", "screen"):
        monkeypatch.setattr(f"weftline.cli.{module}.is_terminal", yes)
    monkeypatch.setenv("NO_COLOR", "1")


def test_an_answer_that_is_a_refusal_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    end = {"subtype": "success", "text": "I cannot help.", "finishReason": "refusal"}
    assert Screen(as_json=False).show(frame_of("result", end, run_id="run_1", seq=1)) == 0
    out, err = capsys.readouterr()
    assert out == "I cannot help.\n" and "refused to answer" in err


@pytest.mark.usefixtures("at_terminal")
def test_ids_are_never_cut_however_narrow_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    row = ("run_12345678aabbccddeeff", "succeeded", "a name that is rather long", "anthropic:claude-opus-4-8")
    show_table(("RUN", "STATUS", "NAME", "MODEL"), [row], whole=["RUN"])
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split()[0] == row[0] and "rather long" not in line


@pytest.mark.usefixtures("at_terminal")
def test_run_events_are_reported_beside_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(as_json=False)
    shown: list[tuple[str, dict[str, Any]]] = [
        ("started", {}),
        ("thinking_delta", {"text": "hm"}),
        ("assistant_delta", {"text": "let me \x1b[2Jsee"}),
        ("assistant_message", {"text": "let me see"}),
        ("tool_call", {"toolUseId": "c", "name": "add", "args": {"a": 2}}),
        ("tool_result", {"toolUseId": "c", "name": "add", "ok": True, "summary": "5\nand more"}),
        ("tool_result", {"toolUseId": "d", "name": "add", "ok": False, "summary": "no"}),
        ("tool_result", {"toolUseId": "e", "name": "pay", "ok": False, "summary": "not known", "inDoubt": True}),
        ("turn_restarted", {"turn": 1, "attempt": 2, "reason": "overloaded"}),
        ("run_paused", {"reason": "lunch"}),
        ("something_new", {"x": 1}),
        ("assistant_delta", {"text": "5"}),
        (
            "result",
            {
                "subtype": "success",
                "text": "5",
                "turns": 2,
                "tokens": {"inputTokens": 7, "outputTokens": 3},
                "costUsd": 0.25,
            },
        ),
    ]
    codes = [screen.show(frame_of(kind, data, run_id="run_1", seq=at)) for at, (kind, data) in enumerate(shown)]
    out, err = capsys.readouterr()
    assert codes == [None] * (len(shown) - 1) + [0]
    assert out == "let me [2Jsee\n5\n"
    assert err.splitlines() == [
        "hm",
        '· add {"a": 2}',
        "→ add: 5 and more",
        "✗ add: no",
        "? pay was cut off: it may or may not have happened",
        "· the model is asked again; ignore its text of this turn so far",
        "· paused: lunch",
        "run_1 · 2 turns · 10 tokens · $0.2500",
    ]


@pytest.mark.parametrize(
    ("kind", "data", "code", "says"),
    [
        ("cancelled", {"reason": "user"}, 4, "The run was cancelled (user)."),
        ("error", {"error": "no key"}, 3, "The run failed: no key"),
        ("result", {"subtype": "error_max_tool_turns"}, 3, "The run failed: error_max_tool_turns"),
    ],
)
def test_every_end_has_words_and_an_exit_code(
    kind: str, data: dict[str, str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = frame_of(kind, data, run_id="run_1", seq=1)
    assert Screen(as_json=False).show(frame) == code
    assert capsys.readouterr() == ("", f"weftline: {says}\n")
    assert Screen(as_json=True).show(frame) == code
    assert json.loads(capsys.readouterr().out) == {"runId": "run_1", "seq": 1, "type": kind, "data": data}


@pytest.mark.usefixtures("at_terminal")
def test_a_table_fits_the_terminal_and_steers_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    items: list[dict[str, Any]] = [
        {"id": "key_1", "name": "a long name\x1b[2J that goes on and on", "spec": {}, "agents": ["x", "y"]}
    ]
    show_list(items, "columns")
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["ID", "NAME", "AGENTS"] and row.startswith("key_1  a long") and len(row) <= 30
    assert "\x1b" not in row and row.endswith("x y")


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b]0;title\x07\x1b[2J", "]0;title[2J"),
        ("a\rb\x00c\x9b31m", "abc31m"),
        ("user\u202egnp.exe", "usergnp.exe"),
        ("für Ω 🧵", "für Ω 🧵"),
    ],
)
def test_text_from_outside_steers_no_terminal(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


def test_a_line_is_as_long_as_it_may_be() -> None:
    assert (on_one_line("a\n b", 10), on_one_line("abcdef", 4), on_one_line("abc", 0)) == ("a b", "abc…", "…")


def test_the_nearest_words_are_suggested_and_far_ones_are_not() -> None:
    assert did_you_mean("Helo", ["hello", "other"]) == " Did you mean 'hello'?"
    assert did_you_mean("agent-1", ["agent-2", "agent-3"]) == " Did you mean 'agent-3' or 'agent-2'?"
    assert did_you_mean("zzz", ["hello"]) == "" == did_you_mean("x", [])

"""`weftline run`: in this process and on a server, for people and for scripts."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from uuid import uuid4

import pytest

from commands import Done, weftline
from forked import python
from weftline.store import open_store
from weftline.testing import ServerProcess

from .conftest import started

ALONE: dict[str, str | None] = {
    "WEFTLINE_BASE_URL": None,
    "WEFTLINE_DB": None,
    "WEFTLINE_WORKSPACE_SLUG": None,
    # Without a key no test can reach a paid API by mistake.
    **{name: None for name in os.environ if name.endswith("_API_KEY")},
}


def here(*arguments: str, scripts: str, stdin: str = "") -> Done:
    return weftline("run", *arguments, "--scripts", scripts, env=ALONE, stdin=stdin)


def new_store(folder: Path) -> str:
    asyncio.run(open_store(folder / "store").close())
    return str(folder / "store")


@pytest.fixture(params=["here", "server"])
def place(request: pytest.FixtureRequest, scripts: str, env: dict[str, str | None]) -> dict[str, str | None]:
    """The environment of a command that runs in this process, and of one that uses a server."""
    return {**ALONE, "WEFTLINE_SCRIPTS": scripts} if request.param == "here" else env


def test_a_script_gets_the_final_text_and_nothing_else(place: dict[str, str | None]) -> None:
    done = weftline("run", "hi", "--model", "scripted:hello", env=place)
    assert done == Done(0, "Hello\x1b[31m there\n", "")


def test_tools_of_file_run_here_wherever_run_is(place: dict[str, str | None], tools: str) -> None:
    done = weftline("run", "2 + 3?", "--model", "scripted:add", "--tools", tools, env=place)
    assert done == Done(0, "It is 5.\n", "")


def test_a_run_may_be_given_its_id(place: dict[str, str | None], tmp_path: Path) -> None:
    name = f"cli-{uuid4().hex[:8]}"
    env = {**place, "WEFTLINE_DB": new_store(tmp_path)} if place.get("WEFTLINE_BASE_URL") is None else place
    command = ("run", "hi", "--model", "scripted:hello", "--run-id", name)
    done = weftline(*command, "--json", env=env)
    assert done.code == 0 and json.loads(done.out.splitlines()[0])["type"] == "started", done
    again = weftline(*command, env=env)
    assert again.code == 1 and f"There is already a run {name!r}" in again.err
    shown = weftline("runs", "show", name[:8], "--json", env=env)
    assert json.loads(shown.out)["id"] == name, shown
    wrong = weftline("run", "hi", "--model", "scripted:hello", "--run-id", "a b", env=env)
    assert wrong.code == 1 and "must have 1 to 128 letters, digits, '_' and '-'" in wrong.err


def test_every_event_is_a_line_of_json_on_request(place: dict[str, str | None]) -> None:
    done = weftline("run", "hi", "--model", "scripted:hello", "--json", env=place)
    events = [json.loads(line) for line in done.out.splitlines()]
    assert [event["type"] for event in events if event["type"] != "assistant_delta"] == [
        "started",
        "assistant_message",
        "result",
    ]
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
    assert events[-1]["data"]["text"].startswith("Hello") and done.code == 0 and done.err == ""


def test_files_are_sent_along(place: dict[str, str | None], tmp_path: Path) -> None:
    image, program = tmp_path / "dot.png", tmp_path / "loom.exe"
    image.write_bytes(b"\x89PNG\r\n\x1a\n")
    program.write_bytes(b"MZ\0")
    given = ("run", "What?", "--model", "scripted:look", "--attach", str(image), "--attach", "https://x.test/a.png")
    assert weftline(*given, env=place).out == "image/png 8 bytes, image/png https://x.test/a.png\n"
    missing = weftline("run", "What?", "--model", "scripted:look", "--attach", str(tmp_path / "no.png"), env=place)
    reason = f"weftline: the attachment {tmp_path / 'no.png'} cannot be read: No such file or directory\n"
    assert missing == Done(1, "", reason)
    refused = weftline("run", "What?", "--model", "scripted:look", "--attach", str(program), env=place)
    assert (refused.code, refused.out) == (1, "") and "attachments" in refused.err, refused


def test_the_prompt_may_come_from_standard_input(place: dict[str, str | None]) -> None:
    arguments = ("run", "--model", "scripted:system", "--system", "Be kind.")
    assert weftline(*arguments, env=place, stdin="from a pipe").out == "Be kind.|from a pipe\n"
    assert weftline(*arguments, "-", env=place, stdin="the same\n\n").out == "Be kind.|the same\n\n"
    assert weftline(*arguments, "-", env=place, stdin="a\r\n").out == "Be kind.|a\n"
    empty = weftline(*arguments, env=place, stdin=" \n")
    assert empty.code == 2 and "The prompt is empty." in empty.err


def test_run_that_fails_has_exit_code_of_its_own(place: dict[str, str | None]) -> None:
    done = weftline("run", "hi", "--model", "scripted:refused", env=place)
    assert (done.code, done.out) == (3, "") and "weftline: The run failed: " in done.err and "bad key" in done.err


def test_a_mistyped_model_is_refused_with_the_nearest_ones(place: dict[str, str | None]) -> None:
    done = weftline("run", "hi", "--model", "scripted:helo", env=place)
    assert (done.code, done.out) == (1, "") and "Did you mean 'scripted:hello'" in done.err, done
    assert len(done.err.splitlines()) == 1


def test_without_a_model_the_candidates_are_named(place: dict[str, str | None]) -> None:
    done = weftline("run", "hi", env=place)
    assert (done.code, done.out) == (1, "") and "--model: scripted:hello, scripted:add" in done.err, done


def test_the_folder_of_a_running_server_is_recognised(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weftline-data").symlink_to(server.db)
    monkeypatch.chdir(tmp_path)
    done = weftline("run", "hi", "--model", "scripted:hello", env=ALONE)
    assert done.code == 1 and "--url" in done.err and "--scripts" in done.err, done
    monkeypatch.chdir(tmp_path.parent)
    assert "--url" not in weftline("run", "hi", "--model", "scripted:hello", env=ALONE).err


def test_an_agent_is_named_by_its_slug(
    place: dict[str, str | None], server: ServerProcess, tmp_path: Path, agent_file: str
) -> None:
    local = "WEFTLINE_API_KEY" not in place
    db = new_store(tmp_path) if local else str(server.db)
    made = weftline("agents", "create", "--workspace", "acme", "--file", agent_file, "--db", db)
    assert made.code == 0, made
    arguments = ("run", "hi", "--workspace", "acme", *(("--db", db) if local else ()))
    try:
        assert weftline(*arguments, "--agent", "helper", env=place).out == "Be brief.|hi\n"
        unknown = weftline(*arguments, "--agent", "helpr", env=place)
        assert unknown.code == 1 and "'helpr'" in unknown.err and "Did you mean 'helper'?" in unknown.err, unknown
    finally:
        weftline("agents", "delete", "helper", "--workspace", "acme", "--db", db)


def test_run_can_be_kept_in_store_and_looked_at_later(tmp_path: Path, scripts: str) -> None:
    missing = here("hi", "--model", "scripted:hello", "--db", str(tmp_path / "none"), scripts=scripts)
    assert missing.code == 1 and f"There is no store at {tmp_path / 'none'}" in missing.err
    assert not (tmp_path / "none").exists()
    db = new_store(tmp_path)
    for _ in range(2):
        assert here("hi", "--model", "scripted:hello", "--db", db, scripts=scripts).code == 0
    found = weftline("runs", "list", "-q", "--db", db).out.split()
    assert len(found) == 2
    shown = json.loads(weftline("runs", "show", found[0], "--db", db, "--json").out)
    assert shown["status"] == "succeeded" and shown["finalText"].startswith("Hello")


def test_store_of_an_open_server_names_the_way_to_it(server: ServerProcess, scripts: str) -> None:
    done = here("hi", "--model", "scripted:hello", "--db", str(server.db), scripts=scripts)
    assert (done.code, done.out) == (1, "")
    assert f"in use by process {server.pid}" in done.err and "--url" in done.err


def test_nothing_runs_beside_unfinished_runs_of_a_stopped_server(tmp_path: Path, scripts: str) -> None:
    with ServerProcess(tmp_path, arguments=("--scripts", scripts)) as down:
        env = {**ALONE, "WEFTLINE_API_KEY": down.create_key("acme")}
        started({**env, "WEFTLINE_BASE_URL": down.url}, "stuck")
        down.kill()
        done = here("hi", "--model", "scripted:hello", "--db", str(down.db), scripts=scripts)
    assert done.code == 1 and "1 unfinished run" in done.err and "weftline serve" in done.err, done


@pytest.mark.parametrize(
    ("arguments", "env", "code", "says"),
    [
        (("hi", "--url", "http://127.0.0.1:1", "--db", "x"), {}, 2, "Give --url or --db, not both"),
        (("hi", "--url", "http://127.0.0.1:1"), {"WEFTLINE_API_KEY": None}, 1, "WEFTLINE_API_KEY"),
        (("hi", "--url", "ftp://nowhere"), {}, 2, "must be an http or https address"),
        (("hi", "--url", "localhost:80"), {}, 2, "must be an http or https address"),
        (("hi", "--url", "https://me:key@weft.example"), {}, 2, "no credentials"),
        (
            ("hi", "--url", "http://127.0.0.1:1"),
            {"WEFTLINE_API_KEY": "k"},
            1,
            "No server answers at http://127.0.0.1:1",
        ),
        (("hi\udcff",), {}, 2, "not valid UTF-8"),
        (("hi",), {}, 1, "--model; `weftline models`"),
        (("hi", "--tools", "no.py"), {}, 1, "no.py"),
        (("hi", "--config", "no.toml"), {}, 1, "no.toml"),
        (("hi", "--modle", "x"), {}, 2, "--model"),
    ],
)
def test_unrunnable_file_is_refused_in_one_sentence(
    arguments: tuple[str, ...], env: dict[str, str | None], code: int, says: str
) -> None:
    done = weftline("run", *arguments, env={**ALONE, "MANTYX_API_KEY": None, **env})
    assert done.code == code and says in done.err and "Traceback" not in done.err, done


def test_key_of_wrong_kind_is_told_as_server_tells_it(env: dict[str, str | None]) -> None:
    done = weftline("run", "hi", env={**env, "WEFTLINE_API_KEY": "nonsense"})
    assert done.code == 1 and "Invalid API key" in done.err, done


def test_a_file_that_the_model_cannot_read_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "x.pdf").write_bytes(b"%PDF-1.4")
    env = {**os.environ, "OLLAMA_HOST": "127.0.0.1:9"}  # what is sent is decided before it is
    given = ("run", "Hi.", "--attach", str(tmp_path / "x.pdf"), "--model", "ollama:m")
    with python("-m", "weftline", *given, env=env) as command:
        command.stdin.close()
        assert "x.pdf (application/pdf) is not sent to the model, which cannot read it" in command.stderr.readline()
        command.kill()

"""`weftline runs`: the same runs, asked of a server or read beside it."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from commands import Done, weftline
from weftline.store import open_store
from weftline.testing import ServerProcess

from .conftest import started


@pytest.fixture(scope="module")
def ended(env: dict[str, str | None]) -> str:
    """The id of a run that has ended."""
    done = weftline("run", "hi", "--model", "scripted:hello", "--json", env=env)
    return json.loads(done.out.splitlines()[-1])["runId"]


@pytest.fixture(scope="module")
def failed(env: dict[str, str | None]) -> str:
    done = weftline("run", "hi", "--model", "scripted:refused", "--json", env=env)
    return json.loads(done.out.splitlines()[-1])["runId"]


@pytest.fixture(params=["server", "store"])
def where(request: pytest.FixtureRequest, env: dict[str, str | None], server: ServerProcess) -> Where:
    return Where(env, ()) if request.param == "server" else Where({}, ("--db", str(server.db)))


class Where:
    def __init__(self, env: dict[str, str | None], options: tuple[str, ...]) -> None:
        self._env, self._options = env, options

    def __call__(self, *arguments: str) -> Done:
        return weftline("runs", *arguments, *self._options, env=self._env)


def test_runs_are_listed_as_ids_or_json(where: Where, ended: str) -> None:
    assert where("list").code == 0 and ended in where("list", "-q", "--all").out.split()
    listed = json.loads(where("list", "--json", "--status", "succeeded", "--all").out)
    (one,) = [run for run in listed if run["id"] == ended]
    assert (one["status"], one["turns"], one["model"]["id"]) == ("succeeded", 1, "scripted:hello")
    assert len(where("list", "-q", "--limit", "1").out.split()) == 1
    assert ended not in where("list", "--status", "failed").out


def test_a_run_is_shown_to_people_and_to_programs(where: Where, ended: str) -> None:
    shown = where("show", ended)
    assert shown.code == 0 and "succeeded" in shown.out and "Hello[31m there" in shown.out and "\x1b" not in shown.out
    assert json.loads(where("show", ended, "--json").out)["finalText"] == "Hello\x1b[31m there"


def test_following_an_ended_run_repeats_it_from_any_event(where: Where, ended: str) -> None:
    assert where("follow", ended) == Done(0, "Hello\x1b[31m there\n", "")
    whole = where("follow", ended, "--json").out.splitlines()
    later = [line for line in whole if json.loads(line)["seq"] > 3]
    assert where("follow", ended, "--json", "--after", "3").out.splitlines() == later and len(later) < len(whole)


@pytest.mark.parametrize("after", [0, 1000])
def test_following_from_the_end_exits_with_the_runs_code(where: Where, ended: str, failed: str, after: int) -> None:
    for run, code in ((ended, 0), (failed, 3)):
        last = json.loads(where("follow", run, "--json").out.splitlines()[-1])["seq"]
        assert where("follow", run, "--after", str(last + after)) == Done(code, "", "")


def test_cut_list_says_how_to_see_the_rest(where: Where, env: dict[str, str | None], ended: str) -> None:
    other = json.loads(weftline("run", "hi", "--model", "scripted:hello", "--json", env=env).out.splitlines()[-1])
    part = where("list", "-q", "--limit", "1")
    assert (part.code, len(part.out.split())) == (0, 1)
    (cursor,) = re.findall(r"--cursor (\S+)\.$", part.err.strip())
    assert "--all" in part.err and "--limit" in part.err

    rest = where("list", "-q", "--cursor", cursor, "--limit", "10000")
    whole = where("list", "-q", "--all")
    assert whole.out == part.out + rest.out and (rest.err, whole.err) == ("", "")
    assert {ended, other["runId"]} <= set(whole.out.split())
    assert where("list", "--cursor", "nonsense").code == 1


def test_the_beginning_of_an_id_is_enough(where: Where, ended: str) -> None:
    assert where("show", ended[:-4]).out == where("show", ended).out
    assert where("follow", ended[:-1]) == where("follow", ended)
    assert where("cancel", ended[:-2]) == Done(0, "succeeded\n", "The run had already ended: nothing was cancelled.\n")


def test_ambiguous_beginning_of_an_id_is_refused_with_two_runs(where: Where, env: dict[str, str | None]) -> None:
    # Keys are counted, so of seventeen runs two begin alike.
    for _ in range(17 - len(where("list", "-q", "--all").out.split())):
        weftline("run", "hi", "--model", "scripted:hello", env=env)
    alike = Counter(identity[:5] for identity in where("list", "-q", "--all").out.split())
    start, count = alike.most_common(1)[0]
    assert count > 1
    for command in ("show", "follow", "cancel"):
        for few in (start, "run_"):
            done = where(command, few)
            assert (done.code, done.out) == (1, "") and "several runs" in done.err and done.err.count(few) == 3, done


def test_an_unknown_run_is_named(where: Where) -> None:
    for command in ("show", "follow", "cancel"):
        for identity in ("run_1aabbccddeeff", "run_fffffff", "nonsense"):
            done = where(command, identity)
            assert (done.code, done.out) == (1, "") and len(done.err.splitlines()) == 1, done


def test_a_run_is_cancelled_by_the_server_that_has_it(where: Where, env: dict[str, str | None]) -> None:
    run = started(env, "stuck")
    assert where("cancel", run) == Done(0, "cancelled\n", "")
    assert json.loads(where("cancel", run, "--json").out)["status"] == "cancelled"
    followed = where("follow", run)
    assert (followed.code, followed.out) == (4, "") and "cancelled" in followed.err


def test_of_run_that_goes_on_store_shows_what_it_has(env: dict[str, str | None], server: ServerProcess) -> None:
    run = started(env, "stuck")
    done = weftline("runs", "follow", run, "--db", str(server.db))
    assert done.code == 5 and "has not ended" in done.err and "--url" in done.err
    weftline("runs", "cancel", run, env=env)


def test_cancel_needs_a_server_and_a_store(tmp_path: Path) -> None:
    for command in (("list",), ("show", "run_1"), ("follow", "run_1"), ("cancel", "run_1")):
        done = weftline("runs", *command, "--db", str(tmp_path / "none"))
        assert (done.code, done.out) == (1, "") and f"There is no store at {tmp_path / 'none'}" in done.err
    assert not (tmp_path / "none").exists()
    asyncio.run(open_store(tmp_path / "store").close())
    done = weftline("runs", "cancel", "run_1aabbccddeeff", "--db", str(tmp_path / "store"))
    assert (done.code, done.out) == (1, "") and "'run_1aabbccddeeff'" in done.err


def test_a_missing_store_names_one_that_is_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(open_store(tmp_path / "data").close())
    monkeypatch.chdir(tmp_path)
    done = weftline("awaits", env={"WEFTLINE_DB": None, "WEFTLINE_BASE_URL": None})
    assert done.code == 1 and "There is no store at weftline-data, but there is one at `--db ./data`." in done.err

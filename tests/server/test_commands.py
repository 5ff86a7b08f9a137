# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false
"""Commands that cannot do their work say so in one sentence, without a traceback, and exit with an error."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import commands
from forked import run_python
from weftline.cli import COMMANDS, cli
from weftline.cli.output import DEFAULT_DB
from weftline.store import open_store
from weftline.store.sqlite.connection import connect
from weftline.testing import ServerProcess

from .kit import Api

TIMEOUT_S = 120


async def weftline(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    """Runs a command to its end; returns its exit code, stdout and stderr."""
    done = await asyncio.to_thread(run_python, "-m", "weftline", *arguments, cwd=cwd)
    return done.returncode, done.stdout, done.stderr


async def refused(*arguments: str, cwd: Path, says: tuple[str, ...]) -> None:
    check_refusal(arguments, *await weftline(*arguments, cwd=cwd), says)


def check_refusal(arguments: tuple[str, ...], code: int, out: str, err: str, says: tuple[str, ...]) -> None:
    assert code == 1 and out == "", (arguments, code, out, err)
    (sentence,) = err.strip().splitlines()
    assert sentence.startswith("weftline: "), sentence
    assert all(word in sentence for word in says), sentence
    assert "Traceback" not in err


FILES = {
    "cut.json": "{",
    "unknown.json": '{"greeter": {"turns": [{"text": "hi"}, {"txt": "x"}]}}',
    "shape.json": '{"greeter": {"turns": 5}}',
    "syntax.py": "import weftline\ndef broken(:\n",
    "empty.py": "x = 1\n",
    "missing_module.py": "\n\nimport no_such_module_anywhere\n",
    "cut.toml": "providers =",
    "unknown.toml": "colour = 'red'\n",
    "server.toml": "[server]\nslow_turns = 3\n",
    "typo.toml": "[servr]\n",
    "price.toml": "[[prices]]\nprovider = 'a'\nmodel = 'b'\ninput_per_1m = 1\n",
    "a_file": "not a folder",
}
REFUSALS: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("--scripts", "cut.json"), ("cut.json", "line 1")),
    (("--scripts", "unknown.json"), ("unknown.json", "'greeter'", "turns[1]", "'txt'")),
    (("--scripts", "shape.json"), ("shape.json", "'greeter'", "'turns' must be a list")),
    (("--scripts", "nowhere.json"), ("nowhere.json", "No such file")),
    (("--tools", "syntax.py"), ("syntax.py", "line 2")),
    (("--tools", "empty.py"), ("empty.py", "no tools", "@weftline.tool")),
    (("--tools", "missing_module.py"), ("missing_module.py", "line 3", "no_such_module_anywhere")),
    (("--tools", "nowhere.py"), ("nowhere.py",)),
    (("--config", "cut.toml"), ("cut.toml", "Invalid value")),
    (("--config", "unknown.toml"), ("unknown.toml", "colour")),
    (("--config", "server.toml"), ("server.slow_turns", "Did you mean 'slow_turn_s'?")),
    (("--config", "typo.toml"), ("servr", "Did you mean 'server'?")),
    (("--config", "price.toml"), ("input_per_1m", "Did you mean 'input_per_1m_usd'")),
    (("--db", "a_file"), ("a_file", "directory")),
    (("--db", "a_file/store"), ("a_file",)),
    (("--db", "junk"), ("junk", "not a Weftline store")),
    (("--host", "no-such-host.invalid"), ("Cannot listen on no-such-host.invalid",)),
]


def test_a_server_that_cannot_start_says_why_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "junk").mkdir(mode=0o700)
    (tmp_path / "junk" / "weftline.db").write_text("this is no database " * 50)
    monkeypatch.chdir(tmp_path)
    for arguments, says in REFUSALS:
        done = commands.weftline("serve", "--port", "0", *arguments)
        check_refusal(arguments, done.code, done.out, done.err, says)


async def test_taken_port_is_named_and_the_store_untouched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        await refused("serve", "--port", port, "--db", "s", cwd=tmp_path, says=(f"127.0.0.1:{port}", "in use"))
    assert not (tmp_path / "s").exists()


async def test_a_store_of_a_newer_version_is_refused_untouched(tmp_path: Path) -> None:
    await open_store(tmp_path / "store").close()
    file = tmp_path / "store" / "weftline.db"
    db = connect(file)
    db.execute("PRAGMA user_version = 9999")
    db.close()
    before = file.read_bytes()
    for command in (("serve", "--port", "0"), ("keys", "create", "--workspace", "acme")):
        await refused(*command, "--db", "store", cwd=tmp_path, says=("store", "9999"))
    assert file.read_bytes() == before


@pytest.mark.requirement("run.engine.one_owner")
async def test_second_server_on_live_store_is_refused_and_names_owner(server: ServerProcess, tmp_path: Path) -> None:
    await refused("serve", "--port", "0", "--db", str(server.db), cwd=tmp_path, says=(str(server.pid),))


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("serve", "--port", "99999"),
        ("serve", "--port", "x"),
        ("serve", "--drain", "-1"),
        ("serve", "--colour"),
        ("keys", "create"),
    ],
)
async def test_wrong_usage_is_told_with_the_way_to_help(arguments: tuple[str, ...], tmp_path: Path) -> None:
    code, out, err = await weftline(*arguments, cwd=tmp_path)
    assert code == 2 and out == "" and "Try 'weftline" in err and "Traceback" not in err


async def test_help_names_every_command_and_key_creation_prints_key_alone(tmp_path: Path) -> None:
    code, out, _ = await weftline("--help", cwd=tmp_path)
    assert code == 0 and out.startswith("Usage: weftline ") and "serve" in out and "keys" in out
    await open_store(tmp_path / "weftline-data").close()
    code, out, err = await weftline("keys", "create", "--workspace", "acme", cwd=tmp_path)
    assert code == 0 and err == "" and len(out.split()) == 1
    await refused("keys", "create", "--workspace", "No Good!", cwd=tmp_path, says=("No Good!",))


LOOKING = [
    ("keys", "create", "--workspace", "acme"),
    ("webhooks", "create", "--workspace", "acme", "--url", "https://x.example"),
    ("schedules", "list", "--workspace", "acme"),
    ("users", "create", "--email", "a@example.com", "--workspace", "acme"),
    ("users", "join", "a@example.com", "--workspace", "acme"),
    ("oauth", "apps", "create", "--workspace", "acme", "--name", "x", "--scope", "runs:read"),
    ("models", "--workspace", "acme"),
    ("backup", "elsewhere"),
    ("resume", "--all"),
    ("vacuum",),
    ("keys", "list", "--workspace", "acme"),
    ("keys", "show", "key_1"),
    ("keys", "delete", "key_1"),
    ("workspaces", "list"),
    ("users", "list"),
    ("users", "delete", "a@example.com"),
    ("agents", "list", "--workspace", "acme"),
    ("agents", "delete", "x", "--workspace", "acme"),
    ("tools", "list", "--workspace", "acme"),
    ("providers", "show", "x", "--workspace", "acme"),
    ("webhooks", "list", "--workspace", "acme"),
    ("oauth", "apps", "list", "--workspace", "acme"),
    ("retention", "run", "--older-than", "1d"),
    ("runs", "list", "--unsupported"),
]


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_no_command_but_serve_makes_store_at_wrong_path(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("missing", "empty"):
        done = commands.weftline(*command, "--db", str(tmp_path / name))
        assert (done.code, done.out) == (1, ""), done
        path = tmp_path / name
        assert done.err == f"weftline: There is no store at {path}; `weftline serve --db {path}` creates one.\n"
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]


async def test_serve_makes_the_folder_of_its_store(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    server.db = tmp_path / "new" / "store"
    with server:
        assert (server.db / "weftline.db").exists()


def test_every_command_finds_the_store_by_the_same_variable(tmp_path: Path) -> None:
    for name in ("here", "there"):
        asyncio.run(open_store(tmp_path / name).close())
    env = {"WEFTLINE_DB": str(tmp_path / "here")}
    done = commands.weftline("keys", "create", "--workspace", "acme", env=env)
    assert (done.code, done.err) == (0, "")
    for arguments, slugs in (((), "acme\n"), (("--db", str(tmp_path / "there")), "")):
        done = commands.weftline("workspaces", "list", "-q", *arguments, env=env)
        assert (done.code, done.out) == (0, slugs)
    with ServerProcess(tmp_path, env={"WEFTLINE_DB": str(tmp_path / "nowhere")}) as server:
        server.terminate()
    assert not (tmp_path / "nowhere").exists(), "a flag wins over the variable"


@pytest.mark.parametrize(
    "name", sorted(COMMANDS.keys() - {"chat", "check", "completion", "info", "init", "pack", "salvage"})
)
def test_every_command_that_has_a_store_has_the_same_default(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    found = [option for one in all_commands(command) for option in one.params if option.name == "db"]
    for option in found:
        assert option.envvar == "WEFTLINE_DB"
        # A run that is not to be kept needs no store.
        assert (option.default == DEFAULT_DB) == (name != "run")
    assert found, name


def all_commands(command: click.Command) -> Iterator[click.Command]:
    if isinstance(command, click.Group):
        for one in command.commands.values():
            yield from all_commands(one)
    else:
        yield command


async def test_tools_list_shows_loaded_and_stored_tools(
    server: ServerProcess, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (await api.post("tools", {"name": "weather", "url": "https://weather.example"})).json["id"]
    done = await commands.weftline_beside("tools", "list", "-q", "--db", str(server.db), "--workspace", api.slug)
    assert {"echo", "calculator", made} <= set(done.out.split("\n"))
    done = await commands.weftline_beside("tools", "list", "--db", str(server.db), "--workspace", api.slug)
    lines = {line.split("\t")[0]: line.split("\t") for line in done.out.splitlines()}
    assert lines["echo"] == ["echo", "server", "Says it again."] and lines[made][1:] == ["stored", "weather"]
    done = await commands.weftline_beside("tools", "list", "--db", str(server.db), "--json")
    (echo,) = [tool for tool in json.loads(done.out) if tool["name"] == "echo"]
    assert (echo["kind"], echo["names"], echo["effect"]) == ("server", ["echo", "@tools/echo"], "read")


def test_tools_list_needs_no_server_and_no_store(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import weftline\n\n\n@weftline.tool\ndef buy() -> str:\n    return 'ok'\n")
    at = ("--db", str(tmp_path / "none"))
    plain = commands.weftline("tools", "list", *at)
    assert plain.code == 0 and "calculator" in plain.out and "buy" not in plain.out
    done = commands.weftline("tools", "list", *at, "--tools", str(tmp_path / "shop.py"))
    assert done.code == 0 and "buy" in done.out.split()
    wrong = commands.weftline("tools", "list", *at, "--tools", str(tmp_path / "nope.py"))
    assert (wrong.code, wrong.out) == (1, "") and "nope.py" in wrong.err
    assert not (tmp_path / "none").exists()

"""What all commands have in common: JSON on request, help with typos, completion in the shell."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from commands import weftline
from weftline.cli import COMMANDS as COMMANDS_BY_NAME
from weftline.cli import GROUPS, cli

WITHOUT_OUTPUT = {"serve", "chat", "completion"}


def every_command(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from every_command(found, (*path, name))
        else:
            yield (*path, name), found


COMMANDS = list(every_command(cli))


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_every_command_prints_json_on_request_and_has_help(path: tuple[str, ...], command: click.Command) -> None:
    options = {option for parameter in command.params for option in parameter.opts}
    assert "--json" in options or path[0] in WITHOUT_OUTPUT
    assert command.help


def test_help_begins_with_examples_and_has_every_command_in_one_group() -> None:
    text = weftline("--help").out
    assert text.index("weftline serve app.py") < text.index("Run and serve:") < text.index("Store:")
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(COMMANDS_BY_NAME)
    lines = [line.split()[0] for line in text.partition("Run and serve:")[2].splitlines() if line.startswith("  ")]
    assert sorted(lines) == sorted(COMMANDS_BY_NAME)


LISTS = [path for path, _ in COMMANDS if path[-1] in ("list", "calls", "grants", "models", "deliveries")]


@pytest.mark.parametrize("path", LISTS, ids=" ".join)
def test_every_list_can_be_only_ids(path: tuple[str, ...]) -> None:
    (command,) = [command for name, command in COMMANDS if name == path]
    assert {"-q", "--json"} <= {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("rnu",), "'run'"),
        (("key", "list"), "'keys'"),
        (("runs", "folow", "x"), "'follow'"),
        (("oauth", "aps"), "'apps'"),
        (("serve", "--prot", "1"), "--port"),
    ],
)
def test_a_typo_is_answered_with_what_was_probably_meant(arguments: tuple[str, ...], meant: str) -> None:
    done = weftline(*arguments)
    assert done.code == 2 and "Did you mean" in done.err and meant in done.err, done


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_script_that_completes_commands(shell: str) -> None:
    done = weftline("completion", shell)
    assert done.code == 0 and "_WEFTLINE_COMPLETE" in done.out and "weftline" in done.out


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("weftline ru", {"run", "runs"}),
        ("weftline runs fol", {"follow", "follow-up"}),
        ("weftline run --mo", {"--model"}),
    ],
)
def test_begun_write_is_completed(words: str, offered: set[str]) -> None:
    env = {"_WEFTLINE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = weftline(env=env)
    assert {line.partition(",")[2] for line in done.out.split()} == offered


def test_an_unknown_shell_is_refused() -> None:
    assert weftline("completion", "tcsh").code == 2

"""`weftline chat`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import click

from weftline.cli.output import CODE

if TYPE_CHECKING:
    from weftline.agent._sync import SyncRun
    from weftline.agent.agent import Agent
    from weftline.agent.engine.engine import Engine
    from weftline.events import AwaitOpened
    from weftline.messages import Message

_PROMPT = "> "
_QUIT = ("/quit", "/exit")
_BY = "terminal"


@click.command()
@click.argument("app", type=CODE)
@click.option("--agent", "name", metavar="NAME", help="Which of its agents. [default: the only one]")
def command(app: str, name: str | None) -> None:
    """Talk to an agent from a Python file or a folder of agents, in this process. Nothing is kept.

    APP is a file, a folder of files, `package.module` or `package.module:name`, or a folder of agents: `desk`, or
    `desk:triage` for one of several.

    Ctrl-C cancels the answer that is being written; /quit or Ctrl-D ends the conversation.
    """
    from weftline.agent.loader import load_agents
    from weftline.server.logs import configure_logs
    from weftline.threads.project import is_project

    configure_logs("error")
    folder, _, named = (app, "", "") if is_project(app) else app.rpartition(":")
    if folder and is_project(folder):
        _talk_on_thread(folder, name or named or None)
    else:
        _talk(_chosen(load_agents(app).agents, name), _InMemory())


def _talk_on_thread(folder: str, name: str | None) -> None:
    from weftline.agent.engine.engine import Engine
    from weftline.agent.sync import blocking
    from weftline.threads.checking import load_project

    with Engine(project=load_project(folder)) as engine:
        agent = _chosen(cast("dict[str, Agent[Any, Any]]", engine.agents), name)
        thread = blocking(lambda: engine.create_thread(agent.name or ""), engine=engine)
        _talk(agent, _OnThread(engine, thread.name))


def _chosen(agents: dict[str, Agent[Any, Any]], name: str | None) -> Agent[Any, Any]:
    from weftline.errors import WeftlineError
    from weftline.text.suggestions import did_you_mean

    if name is None and len(agents) == 1:
        return next(iter(agents.values()))
    if name is None:
        raise click.UsageError(f"There are several agents; choose one with --agent: {', '.join(agents)}.")
    if name not in agents:
        raise WeftlineError(f"There is no agent {name!r} in it.{did_you_mean(name, agents)}", code="not_found")
    return agents[name]


class _InMemory:
    """A conversation that the terminal keeps."""

    def __init__(self) -> None:
        self._messages: Sequence[Message] = ()

    @contextmanager
    def asked(self, agent: Agent[Any, Any], line: str) -> Generator[SyncRun[Any]]:
        with agent.stream_sync(line, messages=self._messages) as run:
            yield run
            self._messages = run.result().messages


class _OnThread:
    """A conversation on a thread of an engine."""

    def __init__(self, engine: Engine, thread: str) -> None:
        self._engine = engine
        self._thread = thread

    @contextmanager
    def asked(self, agent: Agent[Any, Any], line: str) -> Generator[SyncRun[Any]]:
        with agent.stream_sync(line, engine=self._engine, thread=self._thread) as run:
            yield run
            run.result()


def _talk(agent: Agent[Any, Any], conversation: _InMemory | _OnThread) -> None:
    from weftline.cli.terminal import clean, styled
    from weftline.errors import WeftlineError

    click.echo(styled(f"{agent.name}: Ctrl-C cancels an answer, /quit exits.", sys.stderr, dim=True), err=True)
    while (line := _line()) is not None:
        if not line:
            continue
        try:
            with conversation.asked(agent, line) as run:
                _show(run)
        except KeyboardInterrupt:
            click.echo(styled("\n(cancelled)", sys.stderr, dim=True), err=True)
        except WeftlineError as error:
            click.echo(styled(f"\n{clean(error.message)}", sys.stderr, fg="red"), err=True)


def _line() -> str | None:
    """Reads what the person types; None at the end of the conversation."""
    with suppress(ImportError):
        import_module("readline")  # for arrow keys and a history
    while True:
        try:
            line = input(_PROMPT).strip()
        except KeyboardInterrupt:
            click.echo()
            continue
        except EOFError:
            click.echo()
            return None
        return None if line in _QUIT else line


def _show(run: SyncRun[Any]) -> None:
    """Shows the answer as it is written."""
    from weftline.cli.terminal import clean, on_one_line, styled
    from weftline.events import AwaitOpened, CallFinished, CallOpened, TextDelta, TurnFinished, TurnRestarted

    width = shutil.get_terminal_size().columns - 1
    asked: dict[str, str] = {}
    for event in run.events(children=True):
        if event.run_id != run.id and not isinstance(event, AwaitOpened):
            continue  # a subagent's work is shown as one call
        match event:
            case AwaitOpened():
                _ask(run.below(event.run_id), event)
            case TextDelta():
                click.echo(clean(event.text), nl=False)
            case TurnRestarted():
                click.echo(styled("\n(once more)", dim=True))
            case TurnFinished(text=text) if text:
                click.echo()
            case CallOpened():
                asked[event.call_id] = json.dumps(event.args, ensure_ascii=False)
            case CallFinished():
                summary = f"[{event.name} {asked.get(event.call_id, '')} -> {event.result}]"
                click.echo(styled(on_one_line(summary, width), dim=event.ok, fg=None if event.ok else "red"))
            case _:
                pass


def _ask(run: SyncRun[object], asked: AwaitOpened) -> None:
    from weftline.agent.terminal import ask
    from weftline.cli.asking import Asked
    from weftline.cli.terminal import call_text, clean, is_terminal, styled
    from weftline.errors import Conflict, WeftlineError

    if call := call_text(asked.name, asked.args):
        click.echo(styled(f"[{call}]", dim=True))
    question = Asked(asked)
    if not is_terminal(sys.stdin):
        # The next line is the next message, not an answer to this.
        raise WeftlineError(
            f"The run asks a person: {question.question}\nNobody can answer it here. Talk to the agent in a terminal,"
            " which asks you.",
            code="nobody_to_ask",
        )
    try:
        ask(question, read=lambda prompt: input(clean(prompt)))
    except EOFError:
        question.deny()
    reply = question.reply
    with suppress(Conflict):  # it was withdrawn in the meantime
        match reply["outcome"]:
            case "approved":
                run.approve(asked.id, by=_BY)
            case "denied":
                run.deny(asked.id, reply["reason"], by=_BY)
            case _:
                run.answer(asked.id, reply["value"], by=_BY)

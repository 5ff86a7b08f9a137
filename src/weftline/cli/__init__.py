"""The command line. The module of a command is imported when it is called."""

from __future__ import annotations

import importlib
import sys

import click

from weftline._version import __version__

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Run and serve": {
        "serve": ("weftline.cli.serve", "Run the server."),
        "run": ("weftline.cli.run", "Run a prompt, here or on a server."),
        "chat": ("weftline.cli.chat", "Talk to an agent from a Python file."),
    },
    "Folders of agents": {
        "init": ("weftline.cli.folders:init", "Write a small folder of agents to begin with."),
        "check": ("weftline.cli.folders:check", "Check a folder of agents: every problem, with file and line."),
        "pack": ("weftline.cli.folders:pack", "Write an agent of a folder as a package that pip installs."),
        "info": ("weftline.cli.folders:info", "Show what a folder of agents has."),
    },
    "Look": {
        "runs": ("weftline.cli.runs", "List, show, follow, steer, pause and cancel runs."),
        "sessions": ("weftline.cli.sessions", "List and show sessions: who said what, in which runs."),
        "threads": ("weftline.cli.threads", "Threads: create, list, show and end them."),
        "calls": ("weftline.cli.calls", "List the calls of runs."),
        "compare": ("weftline.cli.ended_runs:compare", "Show two runs side by side."),
        "models": ("weftline.cli.models", "List the models that runs can use."),
        "doctor": ("weftline.cli.doctor", "Show what needs a person, and which runs a deploy would affect."),
    },
    "People": {
        "awaits": ("weftline.cli.awaits:awaits", "List what runs ask people."),
        "approve": ("weftline.cli.awaits:approve", "Approve what a run asks about."),
        "deny": ("weftline.cli.awaits:deny", "Deny what a run asks about."),
        "answer": ("weftline.cli.awaits:answer", "Answer a run's question."),
        "grants": ("weftline.cli.awaits:grants", "List what people allowed a run to do."),
    },
    "Change and repeat": {
        "fork": ("weftline.cli.ended_runs:fork", "Continue from a turn of a run, as a new run."),
        "replay": ("weftline.cli.replay", "Run a run again from its log, and compare."),
        "export": ("weftline.cli.ended_runs:export", "Write a run to a file."),
        "import": ("weftline.cli.ended_runs:import_", "Add the runs of a file to a store."),
    },
    "Workspaces and keys": {
        "workspaces": ("weftline.cli.workspaces", "Workspaces and their features."),
        "keys": ("weftline.cli.keys", "API keys."),
        "agents": ("weftline.cli.agents", "Stored agents."),
        "tools": ("weftline.cli.tools", "Manage the stored tools of a workspace."),
        "providers": ("weftline.cli.providers", "Model providers of a workspace, with its own keys."),
        "schedules": ("weftline.cli.schedules", "Runs that start at a given time, once or repeatedly."),
        "webhooks": ("weftline.cli.webhooks", "Webhooks that are called when runs end or ask people."),
        "budgets": ("weftline.cli.budgets", "Limits on spending, and what was spent."),
        "users": ("weftline.cli.users", "People who give OAuth apps access."),
        "oauth": ("weftline.cli.oauth", "OAuth apps and grants."),
        "mcp": ("weftline.cli.mcp", "Logins for MCP servers that runs use."),
    },
    "Store": {
        "backup": ("weftline.cli.store:backup", "Copy the store while it is in use."),
        "restore": ("weftline.cli.store:restore", "Turn a backup into a store."),
        "resume": ("weftline.cli.store:resume", "Let the runs of a restored store continue."),
        "salvage": ("weftline.cli.store:salvage", "Copy what can be read of a damaged store."),
        "retention": ("weftline.cli.store:retention", "Remove old logs."),
        "vacuum": ("weftline.cli.store:vacuum", "Return unused space to the disk."),
    },
    "Shell": {
        "completion": ("weftline.cli.completion", "Complete commands and options in your shell."),
    },
}
"""By group: command name -> module and one line of help, so that listing the commands imports none of them.

The command is the module's `command`, unless its name follows.
"""
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), name or "command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, (_, text) in group.items()])


@click.command(cls=_Lazy)
@click.version_option(__version__, prog_name="weftline")
def cli() -> None:
    """Weftline: a durable runtime for LLM agents.

    \b
    weftline run "Why is the sky blue?"
    weftline serve app.py
    weftline runs list --status failed
    """


def main() -> None:
    from weftline.errors import WeftlineError

    try:
        cli.main(prog_name="weftline", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except WeftlineError as error:
        print(f"weftline: {error.message}", file=sys.stderr)
        sys.exit(1)

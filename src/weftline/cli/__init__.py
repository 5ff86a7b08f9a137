"""The command line. Each command is a module, which is imported when it is called."""

from __future__ import annotations

import importlib
import sys

import click

from weftline._version import __version__

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("weftline.cli.serve", "Run the server."),
    "run": ("weftline.cli.run", "Run a prompt, here or on a server."),
    "chat": ("weftline.cli.chat", "Talk to an agent from a Python file."),
    "runs": ("weftline.cli.runs", "List, show, follow, steer, pause and cancel runs."),
    "calls": ("weftline.cli.calls", "List the calls of runs."),
    "grants": ("weftline.cli.grants", "List what people allowed a run to do."),
    "awaits": ("weftline.cli.awaits", "List what runs ask people."),
    "approve": ("weftline.cli.approve", "Approve what a run asks about."),
    "deny": ("weftline.cli.deny", "Deny what a run asks about."),
    "answer": ("weftline.cli.answer", "Answer a run's question."),
    "export": ("weftline.cli.export", "Write a run to a file."),
    "replay": ("weftline.cli.replay", "Run a run again from its log, and compare."),
    "fork": ("weftline.cli.fork", "Continue from a turn of a run, as a new run."),
    "compare": ("weftline.cli.compare", "Show two runs side by side."),
    "import": ("weftline.cli.import_", "Add the runs of a file to a store."),
    "doctor": ("weftline.cli.doctor", "Show what needs a person, and which runs a deploy would affect."),
    "keys": ("weftline.cli.keys", "API keys."),
    "models": ("weftline.cli.models", "List the models that runs can use."),
    "providers": ("weftline.cli.providers", "Model providers of a workspace, with its own keys."),
    "workspaces": ("weftline.cli.workspaces", "Workspaces and their features."),
    "users": ("weftline.cli.users", "People who give OAuth apps access."),
    "agents": ("weftline.cli.agents", "Stored agents."),
    "webhooks": ("weftline.cli.webhooks", "Webhooks that are called when runs end or ask people."),
    "schedules": ("weftline.cli.schedules", "Runs that start at a given time, once or repeatedly."),
    "budgets": ("weftline.cli.budgets", "Limits on spending, and what was spent."),
    "backup": ("weftline.cli.backup", "Copy the store while it is in use."),
    "restore": ("weftline.cli.restore", "Turn a backup into a store."),
    "salvage": ("weftline.cli.salvage", "Copy what can be read of a damaged store."),
    "resume": ("weftline.cli.resume", "Let the runs of a restored store continue."),
    "vacuum": ("weftline.cli.vacuum", "Return unused space to the disk."),
    "retention": ("weftline.cli.retention", "Remove old logs."),
    "oauth": ("weftline.cli.oauth", "OAuth apps and grants."),
    "mcp": ("weftline.cli.mcp", "Logins for MCP servers that runs use."),
    "tools": ("weftline.cli.tools", "Manage the stored tools of a workspace."),
    "completion": ("weftline.cli.completion", "Complete commands and options in your shell."),
}
"""Command name -> module and one line of help, so that listing the commands imports none of them."""


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
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
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(cls=_Lazy)
@click.version_option(__version__, prog_name="weftline")
def cli() -> None:
    """Weftline: a durable runtime for LLM agents."""


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

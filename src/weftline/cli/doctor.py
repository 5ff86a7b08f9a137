"""`weftline doctor`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weftline.cli.output import CODE, DB, JSON, TOOLS, show_json

if TYPE_CHECKING:
    from weftline.agent.loader import LoadedAgents
    from weftline.cases.doctor import Finding


@click.command()
@click.argument("app", required=False, type=CODE)
@TOOLS
@click.option("--config", type=click.Path(path_type=Path), help="Configuration (TOML).")
@click.option("--workspace", envvar="WEFTLINE_WORKSPACE_SLUG", metavar="SLUG", help="Only this workspace.")
@DB
@JSON
def command(
    app: str | None, tools: str | None, config: Path | None, workspace: str | None, db: Path, as_json: bool
) -> None:
    """Show what needs a person, and which unfinished runs this code would affect.

    APP, --tools and --config are what `weftline serve` would be started with. The store may be in use by a server with
    other code. Nothing is changed.

    Exits with 1 if something needs a decision.
    """
    found = asyncio.run(_examine(app, tools, config, workspace, db))
    if as_json:
        from msgspec import to_builtins

        show_json([to_builtins(one) for one in found])
    else:
        _show(found)
    sys.exit(1 if any(one.needs_person for one in found) else 0)


async def _examine(
    app: str | None, tools: str | None, config: Path | None, workspace: str | None, db: Path
) -> list[Finding]:
    from weftline.agent.planning.sources import AgentTools, Setup
    from weftline.cases.doctor import examine
    from weftline.config import Config, load_config
    from weftline.net.dial import Dialer
    from weftline.net.egress import egress_from
    from weftline.runtime.clock import SystemClock
    from weftline.runtime.tool_calls.toolbox import ServerTools
    from weftline.server.options import server_options
    from weftline.store import open_for_reading
    from weftline.tools.loader import server_tools
    from weftline.workspace.context import Workspaces

    settings = load_config(config) if config is not None else Config()
    options = server_options(settings)
    file = None if app is None else _code_of(app, [one.name for one in settings.providers])
    pages = Dialer(egress_from(settings.server, origin=settings.path))
    store = open_for_reading(db)
    try:
        own = server_tools(tools, pages=pages, app=app, app_tools=None if file is None else file.tools)
        present = AgentTools(ServerTools(own))
        present.use_version(options.code_version)
        if file is not None:
            for name, agent in file.agents.items():
                present.register(name, Setup(agent))
        at = Workspaces(store.records, store.vault, SystemClock())
        return [one async for one in examine(store, at, present, only=workspace)]
    finally:
        await store.close()
        await pages.aclose()


def _code_of(app: str, providers: Sequence[str]) -> LoadedAgents:
    from weftline.agent.loader import LoadedAgents, load_agents
    from weftline.threads.project import is_project

    if not is_project(app):
        return load_agents(app)
    from weftline.providers.catalog import Catalog
    from weftline.threads.checking import load_project, usual_names

    project = load_project(app, providers={*usual_names(), *providers})
    return LoadedAgents(project.agents(Catalog()), {})


def _show(found: list[Finding]) -> None:
    from weftline.cli.terminal import is_terminal, show_table

    if not found:
        click.echo("Nothing needs attention, and a deploy would affect no run.", err=not is_terminal())
        return
    show_table(("", "ABOUT", "AGENT", "WHAT"), [_row(one) for one in found], whole=["ABOUT"])


def _row(one: Any) -> tuple[str, str, str, str]:
    about = "/".join([part for part in (one.run_id, one.about) if isinstance(part, str)])
    return "!" if one.needs_person else "-", about, one.agent if isinstance(one.agent, str) else "", one.what

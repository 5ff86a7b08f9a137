"""`weftline serve`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weftline.cli.output import CODE, DB, TOOLS

if TYPE_CHECKING:
    from weftline.server.logs import LogStyle


@click.command()
@click.argument("app", required=False, type=CODE)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0 picks a free port.")
@DB
@click.option("--scripts", envvar="WEFTLINE_SCRIPTS", type=click.Path(path_type=Path), help="Scripted models (JSON).")
@TOOLS
@click.option("--config", type=click.Path(path_type=Path), help="Configuration (TOML): model providers and more.")
@click.option(
    "--drain",
    "drain_s",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="How long work in progress may take to finish after SIGTERM.",
)
@click.option("--reload", is_flag=True, help="Read a folder of agents again when its files change; for development.")
@click.option(
    "--rate-limit",
    type=click.IntRange(0),
    metavar="N",
    help="Requests per minute and credential, 0 for no limit. [default: the configuration's, or 600000]",
)
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="How much is logged; debug has a line for every request.",
)
@click.option(
    "--log",
    "log_style",
    default="text",
    show_default=True,
    type=click.Choice(["text", "json"]),
    help="Lines for people, or one JSON object per line.",
)
def command(
    app: str | None,
    host: str,
    port: int,
    db: Path,
    scripts: Path | None,
    tools: str | None,
    config: Path | None,
    drain_s: float,
    reload: bool,
    rate_limit: int | None,
    log_level: str,
    log_style: LogStyle,
) -> None:
    """Run the server. A missing store is created.

    APP is a Python file, a folder of files, `package.module` or `package.module:name`: its agents are served by name,
    each with its tools, hooks and deps, to every workspace.

    Prints one line `ready http://HOST:PORT` on stdout when it accepts requests; logs go to stderr. SIGTERM and SIGINT
    stop it cleanly: nothing new begins, streams are closed between events, and the next process continues.
    """
    from weftline.server.logs import configure_logs
    from weftline.server.serve import Settings, run

    configure_logs(log_level, style=log_style)
    settings = Settings(
        db,
        host,
        port,
        scripts=scripts,
        tools=tools,
        app=app,
        reload=reload,
        config=config,
        drain_s=drain_s,
        rate_limit_per_minute=rate_limit,
    )
    sys.exit(run(settings))

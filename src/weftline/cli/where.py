"""Where a command finds runs: at a server that `--url` names, or in a store of this machine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from weftline.errors import WeftlineError

if TYPE_CHECKING:
    from weftline.client import AsyncClient
    from weftline.client.errors import ClientError

F = TypeVar("F", bound=Callable[..., Any])

_ANY_WORKSPACE = "-"
"""No workspace has this slug: the refusal names the one that the key belongs to."""

URL = click.option(
    "--url", envvar="WEFTLINE_BASE_URL", metavar="ADDRESS", help="A server; its API key is in WEFTLINE_API_KEY."
)
WORKSPACE = click.option(
    "--workspace", envvar="WEFTLINE_WORKSPACE_SLUG", metavar="SLUG", help="With --url: that of the key, by default."
)


def chosen_url(url: str | None) -> str | None:
    """The server to ask; None for the store. What was typed goes before what the environment says."""
    context = click.get_current_context()
    typed = ParameterSource.COMMANDLINE
    if url is None or context.get_parameter_source("db") is not typed:
        return url
    if context.get_parameter_source("url") is typed:
        raise click.UsageError("--url and --db exclude each other.")
    return None


@asynccontextmanager
async def connected(url: str, workspace: str | None) -> AsyncGenerator[AsyncClient]:
    """A client of the server. What it raises is told as any refusal."""
    from weftline.client import AsyncClient, ClientError, InvalidSpec
    from weftline.client.credentials import setting

    if not setting("API_KEY"):
        raise WeftlineError(
            f"Set WEFTLINE_API_KEY to an API key of {url}; `weftline keys create` makes one there.", code="unauthorized"
        )
    try:
        async with AsyncClient(base_url=url, workspace=workspace or await _workspace_of_key(url)) as client:
            yield client
    except (ClientError, InvalidSpec) as error:
        raise told(error) from None


async def _workspace_of_key(url: str) -> str:
    from weftline.client import AsyncClient, NotFound

    async with AsyncClient(base_url=url, workspace=_ANY_WORKSPACE) as client:
        try:
            await client.list_models()
        except NotFound as error:
            if error.correct_slug:
                return error.correct_slug
    raise WeftlineError(f"{url} does not tell which workspace the key belongs to; give --workspace.")


def told(error: ClientError | ValueError) -> WeftlineError:
    """The error of the client as one of a command."""
    from weftline.cli.suggestions import did_you_mean
    from weftline.client import ApiError

    message = str(error)
    candidates = error.candidates if isinstance(error, ApiError) else ()
    return WeftlineError(f"{message}{did_you_mean(message, candidates)}" if candidates else message)


def store_of(db: Path | None) -> Path:
    return db or Path("weftline-data")

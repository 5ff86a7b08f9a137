"""Where a command finds runs: at the server in `--url`, or in a store on this machine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from msgspec import DecodeError, Struct
from msgspec.json import decode

from weftline.errors import WeftlineError

if TYPE_CHECKING:
    from weftline.client import AsyncClient
    from weftline.client.errors import ClientError

_ANY_WORKSPACE = "-"
"""No workspace has this slug; an older server's error names the one that the key belongs to."""

_PROBE_S = 15.0


def _checked(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if not value:
        return None
    from weftline.net.address import InvalidAddress, parse

    try:
        address = parse(value)
    except InvalidAddress:
        raise click.BadParameter("must be an http or https address, such as http://127.0.0.1:8080") from None
    if address.credentials:
        raise click.BadParameter("must have no credentials in it; the API key is in WEFTLINE_API_KEY")
    return value.rstrip("/")


URL = click.option(
    "--url",
    envvar="WEFTLINE_BASE_URL",
    metavar="ADDRESS",
    callback=_checked,
    help="A server; its API key is in WEFTLINE_API_KEY.",
)
WORKSPACE = click.option(
    "--workspace", envvar="WEFTLINE_WORKSPACE_SLUG", metavar="SLUG", help="With --url: the key's workspace by default."
)


def chosen_url(url: str | None) -> str | None:
    """Returns the server to ask; None for the store. Options win over the environment."""
    context = click.get_current_context()
    typed = ParameterSource.COMMANDLINE
    if url is None or context.get_parameter_source("db") is not typed:
        return url
    if context.get_parameter_source("url") is typed:
        raise click.UsageError("Give --url or --db, not both.")
    return None


@asynccontextmanager
async def connected(url: str, workspace: str | None) -> AsyncGenerator[AsyncClient]:
    """Yields a client of the server. Its errors become errors of the command."""
    from weftline.client import AsyncClient, ClientError
    from weftline.client.credentials import setting

    if not setting("API_KEY"):
        raise WeftlineError(
            f"Set WEFTLINE_API_KEY to an API key of {url}; `weftline keys create` creates one there.",
            code="unauthorized",
        )
    try:
        async with AsyncClient(base_url=url, workspace=await _found(url, workspace)) as client:
            yield client
    except ClientError as error:
        raise as_command_error(error) from None


async def _found(url: str, workspace: str | None) -> str:
    """Returns the workspace to use. Asks once, so that a person at a terminal sees at once if no server answers."""
    from weftline.client import AsyncClient, NetworkError, NotFound, Retry

    if workspace is None and (slug := await _of_key(url)) is not None:
        return slug
    async with AsyncClient(
        base_url=url, workspace=workspace or _ANY_WORKSPACE, retry=Retry(attempts=0), timeout_s=_PROBE_S
    ) as client:
        try:
            await client.list_models()
        except NotFound as error:
            if workspace is None and error.correct_slug:
                return error.correct_slug
            raise
        except NetworkError as error:
            raise WeftlineError(f"No server answers at {url}: {error}", code="unavailable") from None
    if workspace is None:
        raise WeftlineError(f"{url} does not say which workspace the key belongs to; give --workspace.")
    return workspace


async def _of_key(url: str) -> str | None:
    """Returns the workspace of the key; None if the server does not tell, perhaps because it is older."""
    from weftline.client import NetworkError
    from weftline.client.credentials import setting
    from weftline.client.http import exchange

    headers = {"Authorization": f"Bearer {setting('API_KEY')}"}
    try:
        reply = await exchange("GET", f"{url}/api/v1/workspaces", headers=headers, timeout_s=_PROBE_S)
    except NetworkError as error:
        raise WeftlineError(f"No server answers at {url}: {error}", code="unavailable") from None
    if reply.status != 200:
        return None
    try:
        (only,) = decode(reply.body, type=_Workspaces).workspaces
    except (DecodeError, ValueError):
        return None
    return only.slug


class _Workspace(Struct):
    slug: str


class _Workspaces(Struct):
    workspaces: list[_Workspace]


def as_command_error(error: ClientError) -> WeftlineError:
    """Returns a client's error as an error of the command."""
    from weftline.client import ApiError

    if isinstance(error, ApiError):
        return WeftlineError(error.message, answered=error.status)
    return WeftlineError(str(error))

"""Logging in at an MCP server, with a person at a browser: discovery, registration, PKCE and the exchange of the code.

The steps are the official client's. The result is a `Login`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp import Client
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.utils import union_scopes
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from weftline._version import __version__
from weftline.net.address import parse
from weftline.tools.mcp.login import Login

if TYPE_CHECKING:
    from mcp.client.client import ConnectMode

_TIMEOUT_S = 30.0


class LoginFailed(Exception):
    """The login failed. The message says why."""


class Person(Protocol):
    """The person who grants access to the server, in a browser."""

    @property
    def redirect_uri(self) -> str:
        """Where the browser is redirected to."""
        ...

    async def ask(self, url: str) -> None:
        """Opens the page at this address."""
        ...

    async def answer(self) -> str:
        """Returns the full URL that the browser was redirected to."""
        ...


async def log_in(
    url: str,
    person: Person,
    *,
    client_id: str | None = None,
    client_secret: str | None = None,
    client_metadata_url: str | None = None,
    scope: str | None = None,
    mode: ConnectMode = "auto",
    then: Callable[[Client], Awaitable[None]] | None = None,
) -> Login:
    """Connects to the server and asks the person for access. Raises `LoginFailed`.

    Args:
        client_id: The id of an app that is already registered with the server's authorization server.
        client_metadata_url: The URL of a document that describes us, for servers that read such documents instead
            of registering clients.
        scope: Scopes to ask for besides those that the server names, separated by spaces.
        then: Called with the connection once it is open.
    """
    memory = _Memory()
    if client_id is not None:
        memory.client = OAuthClientInformationFull(
            client_id=client_id,
            client_secret=client_secret,
            redirect_uris=[AnyUrl(person.redirect_uri)],
            token_endpoint_auth_method="client_secret_basic" if client_secret else "none",
        )

    async def came_back() -> AuthorizationCodeResult:
        return _result(await person.answer())

    provider = _Provider(
        url,
        _Metadata(
            client_name="Weftline",
            redirect_uris=[AnyUrl(person.redirect_uri)],
            grant_types=["authorization_code", "refresh_token"],
            software_id="weftline",
            software_version=__version__,
        ),
        memory,
        redirect_handler=person.ask,
        callback_handler=came_back,
        client_metadata_url=client_metadata_url,
    )
    provider.context.client_metadata.scope = scope
    try:
        await _connect(url, provider, mode, then)
    except Exception as error:
        if memory.tokens is None:
            raise LoginFailed(_describe(error)) from None
        # The official client gives its first request ten seconds, and the whole login may take longer.
        try:
            await _connect(url, provider, mode, then)
        except Exception as again:
            raise LoginFailed(_describe(again)) from None
    if memory.tokens is None:
        # Some servers ask only when a tool is called.
        provider.insists = True
        with suppress(Exception):
            await _connect(url, provider, mode, then)
    return _login(url, provider)


async def _connect(
    url: str,
    provider: OAuthClientProvider,
    mode: ConnectMode,
    then: Callable[[Client], Awaitable[None]] | None,
) -> None:
    async with (
        httpx2.AsyncClient(auth=provider, timeout=_TIMEOUT_S) as http,
        Client(streamable_http_client(parse(url).bare_url, http_client=http), mode=mode, cache=None) as client,
    ):
        if then is None:
            await client.list_tools()
        else:
            await then(client)


class _Provider(OAuthClientProvider):
    """The official client's steps, also for a server that has not asked for a login, if `insists` is set."""

    insists = False

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        flow = super().async_auth_flow(request)
        following = await anext(flow)
        while True:
            response = yield following
            if self.insists and response.is_success:
                self.insists = False
                response = httpx2.Response(401, request=request)
            try:
                following = await flow.asend(response)
            except StopAsyncIteration:
                return


class _Metadata(OAuthClientMetadata):
    """Describes us to a server. The official client replaces the scope by what the server names; here that is added."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, union_scopes(self.scope, value) if name == "scope" else value)


class _Memory:
    """Stores what the official client needs for the duration of the login."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def _result(address: str) -> AuthorizationCodeResult:
    query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
    if "error" in query:
        raise LoginFailed(f"The server refused: {query['error'][:100]}.")
    return AuthorizationCodeResult(code=query.get("code", ""), state=query.get("state"), iss=query.get("iss"))


def _login(url: str, provider: OAuthClientProvider) -> Login:
    context = provider.context
    tokens, client = context.current_tokens, context.client_info
    if tokens is None or client is None:
        raise LoginFailed("The server did not ask for a login.")
    metadata = context.oauth_metadata
    expires = context.token_expiry_time
    return Login(
        url=url,
        issuer=str(metadata.issuer) if metadata is not None else "",
        token_endpoint=provider._get_token_endpoint(),  # pyright: ignore[reportPrivateUsage]
        client_id=client.client_id,
        client_secret=client.client_secret,
        client_auth=client.token_endpoint_auth_method or "none",
        resource=context.get_resource_url() if context.should_include_resource_param() else None,
        scope=tokens.scope,
        access_token=tokens.access_token,
        refresh_token=tokens.refresh_token,
        expires_at=None if expires is None else int(expires * 1_000_000),
    )


def _describe(error: BaseException) -> str:
    """Returns the message of the first failure inside an exception group."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if isinstance(error, LoginFailed | OAuthFlowError | OAuthRegistrationError | OAuthTokenError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

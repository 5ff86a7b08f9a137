"""Common parts of the OAuth endpoints: cookies, the limit on sign-ins, and the server's own address."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from secrets import token_urlsafe
from urllib.parse import urlsplit

from msgspec import DecodeError, Struct
from msgspec.json import decode, encode

from weftline.errors import Forbidden, RateLimited, Unauthorized
from weftline.net.dial import Dialer
from weftline.net.errors import BodyTooLarge, RequestFailed
from weftline.server.connections import Network, client_of
from weftline.server.http import Request
from weftline.server.names import OwnNames
from weftline.server.rate_limit import Allowance
from weftline.store.records.users import User
from weftline.workspace import users
from weftline.workspace.client_documents import MAX_DOCUMENT_BYTES, ClientDocuments, DocumentUnusable, ReadDocument
from weftline.workspace.consent import InvalidConsent
from weftline.workspace.context import Workspaces
from weftline.workspace.passwords import PasswordChecker
from weftline.workspace.scopes import slug_of

logger = logging.getLogger(__name__)

_TIMEOUT_S = 5.0


async def read_document(dialer: Dialer, url: str) -> bytes:
    """Returns the content of the address itself, without following redirects. Raises `DocumentUnusable`."""
    try:
        async with dialer.request("GET", url, headers={"Accept": "application/json"}, timeout_s=_TIMEOUT_S) as response:
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if response.status != 200:
                raise DocumentUnusable(f"names a document that could not be fetched: the answer was {response.status}")
            if kind != "application/json" and not kind.endswith("+json"):
                raise DocumentUnusable("names something that is not a JSON document")
            return await response.read(limit=MAX_DOCUMENT_BYTES)
    except BodyTooLarge:
        raise DocumentUnusable(f"names a document of more than {MAX_DOCUMENT_BYTES} bytes") from None
    except RequestFailed as error:
        # The client learns nothing about this server's network.
        logger.info("the document of an OAuth client could not be fetched from %s: %s", url[:500], error)
        raise DocumentUnusable("names a document that could not be fetched") from None


PROTECTED_RESOURCE = "/.well-known/oauth-protected-resource"
COOKIE = "weftline_session"
DEVICE_COOKIE = "weftline_device"
DEVICE_S = 180 * 86400
_DEVICE = "device"
_GUESSES, _GUESSES_OF_SENDER = 10, 30
"""Password attempts of one sender, at once and then per minute: for one user, and for all users."""
_REGISTRATIONS = 20
"""How many clients one sender may register, at once and then per minute."""
_MAX_ADDRESS = 256


class SignedIn(Struct, frozen=True):
    """The secret of a new session, and the cookie that marks this browser as one the user has signed in with."""

    session: str
    device: str


class _Device(Struct, frozen=True):
    """The content of a browser's cookie."""

    id: str
    email: bytes
    expires_at: int


class OAuthServer:
    """The OAuth server. `registration` lets clients register, or use metadata documents if these can be read."""

    def __init__(
        self,
        workspaces: Workspaces,
        names: OwnNames,
        *,
        public_url: str = "",
        proxies: Sequence[Network] = (),
        registration: bool = True,
        read_document: ReadDocument | None = None,
    ) -> None:
        self.workspaces = workspaces
        self.names = names
        self.registration = registration
        self.documents = ClientDocuments(workspaces, read_document) if registration and read_document else None
        self._public_url = public_url
        self._proxies = proxies
        self._guesses = Allowance(burst=_GUESSES, per_minute=_GUESSES)
        self._guesses_of_sender = Allowance(burst=_GUESSES_OF_SENDER, per_minute=_GUESSES_OF_SENDER)
        self._registrations = Allowance(burst=_REGISTRATIONS, per_minute=_REGISTRATIONS)
        self._passwords = PasswordChecker()

    @property
    def url(self) -> str:
        return self.names.url

    def require_own_page(self, request: Request) -> None:
        """Raises `Forbidden` for a form or script of another site, by the headers that browsers send."""
        if request.header(b"sec-fetch-site") in ("cross-site", "same-site"):
            raise Forbidden("This request comes from another site's page.")
        origin = request.header(b"origin")
        if origin is None:
            return
        place, host = urlsplit(origin).netloc, request.header(b"host") or ""
        # A foreign site's name may point to this server, so its page could claim to be ours.
        if place != (urlsplit(self._public_url).netloc or None) and not (place == host and self.names.may_be_own(host)):
            raise Forbidden("This request comes from another site's page.")

    def resource_metadata(self, request: Request) -> str:
        """Returns the URL of the metadata of the requested MCP server; empty if there can be no such server."""
        if slug_of(request.path) is None:
            return ""
        return f"{self.names.base(request)}{PROTECTED_RESOURCE}{request.path}"

    def resource(self, given: str) -> str | None:
        """Returns the path of a resource in a request, empty for the whole server; None if it is not ours."""
        path = self.names.path_of(given) if given else ""
        return path if not path or slug_of(path) is not None else None

    def admit_registration(self, request: Request) -> None:
        """Raises `Forbidden` if clients may not register themselves, `RateLimited` if this sender does so too often."""
        if not self.registration:
            raise Forbidden(
                "Clients cannot register themselves at this server.",
                hint="Use `weftline oauth apps create`, or set oauth_registration in the [server] table.",
            )
        self._count_registration(request)

    async def learn_client(self, request: Request, client_id: str) -> None:
        """Reads the document that describes a client, unless it was read not long ago.

        Raises `InvalidConsent` if it cannot be used, `RateLimited` if this sender has too many.
        """
        if self.documents is None or await self.documents.known(client_id):
            return
        self._count_registration(request)
        try:
            await self.documents.learn(client_id)
        except DocumentUnusable as error:
            raise InvalidConsent(client_id=str(error)) from None

    def _count_registration(self, request: Request) -> None:
        sender, now = self.client(request), self.workspaces.clock.now_us()
        if wait_s := self._registrations.wait_s(sender, now_us=now):
            raise RateLimited("Too many registrations. Please wait a moment.", retry_after_s=math.ceil(wait_s))
        self._registrations.draw(sender, now_us=now)

    async def user(self, request: Request) -> User | None:
        """Returns the signed-in user."""
        session = session_of(request)
        return await users.signed_in(self.workspaces, session=session) if session else None

    async def require_user(self, request: Request) -> User:
        user = await self.user(request)
        if user is None:
            raise Unauthorized("Sign in first.", hint="Sign in at /api/oauth/sign-in.", error="Unauthorized")
        return user

    async def sign_in(self, request: Request, email: str, password: str) -> SignedIn | None:
        """Signs a user in, or returns None if the address or the password is wrong.

        Raises `RateLimited` after too many wrong guesses, `Unavailable` if too many sign in at once, and
        `ConnectionResetError` if the client has gone. Attempts count against the sender, not the user, so that nobody
        can lock a user out by guessing. A browser in which the user has signed in before is counted separately,
        wherever it is.
        """
        email = users.normalized(email)[:_MAX_ADDRESS]
        now = self.workspaces.clock.now_us()
        sender = self._known_device(request, email) or self.client(request)
        guesses = ((self._guesses, f"{sender} {email}"), (self._guesses_of_sender, sender))
        if wait_s := max(allowance.wait_s(who, now_us=now) for allowance, who in guesses):
            raise RateLimited("Too many wrong passwords. Please wait a moment.", retry_after_s=math.ceil(wait_s))
        secret = await request.unless_gone(
            users.sign_in(self.workspaces, self._passwords, email=email, password=password, sender=sender)
        )
        if secret is not None:
            return SignedIn(secret, self._new_device(email))
        for allowance, who in guesses:
            allowance.draw(who, now_us=now)
        return None

    def client(self, request: Request) -> str:
        """Returns the address that a request comes from."""
        peer = request.scope.get("client")
        return client_of(peer[0] if peer else "", request.header_lines(b"x-forwarded-for"), self._proxies)

    def _new_device(self, email: str) -> str:
        expires_at = self.workspaces.clock.now_us() + DEVICE_S * 1_000_000
        device = _Device(token_urlsafe(12), self.workspaces.hasher.hash(email), expires_at)
        return self.workspaces.hasher.sign(_DEVICE, encode(device))

    def _known_device(self, request: Request, email: str) -> str | None:
        """Returns the browser's device id, if this user has signed in with it before."""
        payload = self.workspaces.hasher.signed(_DEVICE, read_cookie(request, DEVICE_COOKIE) or "")
        if payload is None:
            return None
        try:
            device = decode(payload, type=_Device)
        except DecodeError:
            return None
        known = device.email == self.workspaces.hasher.hash(email)
        return f"device {device.id}" if known and device.expires_at > self.workspaces.clock.now_us() else None

    async def sign_out(self, request: Request) -> None:
        session = session_of(request)
        if session:
            await users.sign_out(self.workspaces, session=session)

    def cookie(self, name: str, value: str, *, max_age_s: int) -> tuple[bytes, bytes]:
        secure = "; Secure" if self._public_url.startswith("https:") else ""
        # Without a path, the cookie applies to the folder of the page as the browser sees it, as a proxy may have moved
        # it.
        text = f"{name}={value}; Max-Age={max_age_s}; HttpOnly; SameSite=Lax{secure}"
        return b"set-cookie", text.encode()


def session_of(request: Request) -> str:
    """Returns the secret of the browser's session; empty if it has none."""
    return read_cookie(request, COOKIE) or ""


def read_cookie(request: Request, name: str) -> str | None:
    for pair in (request.header(b"cookie") or "").split(";"):
        key, _, value = pair.strip().partition("=")
        if key == name and value:
            return value
    return None

"""What the OAuth endpoints share: cookies, the limit on sign-ins, and the server's own address."""

from __future__ import annotations

from urllib.parse import urlsplit

from weftline.errors import Forbidden, RateLimited, Unauthorized
from weftline.server.http import Request
from weftline.server.rate_limit import RateLimit
from weftline.store.records.users import User
from weftline.workspace import users
from weftline.workspace.context import Workspaces
from weftline.workspace.passwords import PasswordChecker

COOKIE = "weftline_session"
_SIGN_INS_PER_MINUTE = 10
_MAX_ADDRESS = 256


class OAuthServer:
    """`url` is the server's own address as it is known outside. It is never what a request's Host header says."""

    def __init__(self, workspaces: Workspaces, *, url: str, public_url: str = "") -> None:
        self.workspaces = workspaces
        self.url = public_url or url
        self._public_url = public_url
        self._sign_ins = RateLimit(_SIGN_INS_PER_MINUTE)
        self._passwords = PasswordChecker()

    def require_own_page(self, request: Request) -> None:
        """Raises `Forbidden` for a form or script of another site: browsers say where a request comes from."""
        origin = request.header(b"origin")
        if origin is not None and urlsplit(origin).netloc not in (
            request.header(b"host"),
            urlsplit(self._public_url).netloc or None,
        ):
            raise Forbidden("This request comes from another site's page.")

    async def user(self, request: Request) -> User | None:
        """Who is signed in."""
        session = session_of(request)
        return await users.signed_in(self.workspaces, session=session) if session else None

    async def require_user(self, request: Request) -> User:
        user = await self.user(request)
        if user is None:
            raise Unauthorized("Sign in first.", hint="Sign in at /api/oauth/sign-in.", error="Unauthorized")
        return user

    async def sign_in(self, email: str, password: str) -> str | None:
        """The secret of a new session, or None if the address or the password is wrong. Raises `RateLimited`."""
        address = users.normalized(email)[:_MAX_ADDRESS]
        if wait_s := self._sign_ins.take(address, now_us=self.workspaces.clock.now_us()):
            raise RateLimited("Too many attempts to sign in with this address.", retry_after_s=wait_s)
        return await users.sign_in(self.workspaces, self._passwords, email=address, password=password)

    async def sign_out(self, request: Request) -> None:
        session = session_of(request)
        if session:
            await users.sign_out(self.workspaces, session=session)

    def cookie(self, name: str, value: str, *, max_age_s: int) -> tuple[bytes, bytes]:
        secure = "; Secure" if self._public_url.startswith("https:") else ""
        text = f"{name}={value}; Path=/api/oauth; Max-Age={max_age_s}; HttpOnly; SameSite=Lax{secure}"
        return b"set-cookie", text.encode()


def session_of(request: Request) -> str:
    """The secret of the browser's session; empty if it has none."""
    return read_cookie(request, COOKIE) or ""


def read_cookie(request: Request, name: str) -> str | None:
    for pair in (request.header(b"cookie") or "").split(";"):
        key, _, value = pair.strip().partition("=")
        if key == name and value:
            return value
    return None

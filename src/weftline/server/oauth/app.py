"""What the OAuth endpoints share: the store's key, the sign-in guard, and where the server is found."""

from __future__ import annotations

import asyncio
import secrets
from urllib.parse import urlsplit

from weftline.errors import Forbidden, RateLimited, Unauthorized
from weftline.runtime.embedded import Engine
from weftline.server.http import Request
from weftline.server.oauth.passwords import check_password, hash_password
from weftline.server.rate_limit import RateLimit
from weftline.store.sqlite import users
from weftline.store.sqlite.hashing import Hasher, load_hasher

COOKIE = "weftline_session"
SESSION_S = 12 * 3600
_SIGN_INS_PER_MINUTE = 10
_HASHES_AT_ONCE = 2
"""Each check of a password takes 64 MB and a core for its while."""


class OAuthServer:
    def __init__(self, engine: Engine, *, public_url: str = "") -> None:
        self.engine = engine
        self._public_url = public_url
        self._hasher: Hasher | None = None
        self._sign_ins = RateLimit(_SIGN_INS_PER_MINUTE)
        self._hashing = asyncio.Semaphore(_HASHES_AT_ONCE)
        self._nobody: str | None = None

    def hasher(self) -> Hasher:
        if self._hasher is None:
            self._hasher = load_hasher(self.engine.store.directory.path)
        return self._hasher

    def now(self) -> int:
        return self.engine.clock.now_us()

    def url(self, request: Request) -> str:
        """The server's own address, as the outside knows it."""
        return self._public_url or f"http://{request.header(b'host') or 'localhost'}"

    def require_own_page(self, request: Request) -> None:
        """Raises `Forbidden` for a form or script of another site: browsers say where a request comes from."""
        origin = request.header(b"origin")
        if origin is not None and urlsplit(origin).netloc not in (
            request.header(b"host"),
            urlsplit(self._public_url).netloc or None,
        ):
            raise Forbidden("This request comes from another site's page.")

    def user(self, request: Request) -> users.User | None:
        """Who is signed in."""
        secret = session_secret(request)
        return users.signed_in(self.engine.read.db, self.hasher(), secret, now=self.now()) if secret else None

    def require_user(self, request: Request) -> users.User:
        user = self.user(request)
        if user is None:
            raise Unauthorized("Sign in first.", hint="Sign in at /api/oauth/sign-in.", error="Unauthorized")
        return user

    async def sign_in(self, email: str, password: str) -> str | None:
        """Checks a password and begins a session; returns its secret, or None when the two do not fit.

        An address that nobody has takes as long as a wrong password.
        """
        address = email.strip().lower()[:256]
        if wait_s := self._sign_ins.take(address, now_us=self.now()):
            raise RateLimited("Too many attempts to sign in with this address.", retry_after_s=wait_s)
        user = users.find_user(self.engine.read.db, address)
        async with self._hashing:
            if self._nobody is None:
                self._nobody = await asyncio.to_thread(hash_password, secrets.token_hex(16))
            stored = user.password if user is not None else self._nobody
            fits = await asyncio.to_thread(check_password, stored, password)
        if user is None or not fits:
            return None
        session = self.hasher().mint(users.SESSION)
        now = self.now()
        key, expires_at = user.key, now + SESSION_S * 1_000_000
        await self.engine.store.job(
            lambda db: users.sign_in(db, user=key, session=session, now=now, expires_at=expires_at)
        )
        return session.secret

    async def sign_out(self, request: Request) -> None:
        secret = session_secret(request)
        if secret:
            hasher = self.hasher()
            await self.engine.store.job(lambda db: users.sign_out(db, hasher, secret))

    def cookie(self, name: str, value: str, *, max_age_s: int) -> tuple[bytes, bytes]:
        secure = "; Secure" if self._public_url.startswith("https:") else ""
        text = f"{name}={value}; Path=/api/oauth; Max-Age={max_age_s}; HttpOnly; SameSite=Lax{secure}"
        return b"set-cookie", text.encode()


def session_secret(request: Request) -> str | None:
    return read_cookie(request, COOKIE)


def read_cookie(request: Request, name: str) -> str | None:
    for pair in (request.header(b"cookie") or "").split(";"):
        key, _, value = pair.strip().partition("=")
        if key == name and value:
            return value
    return None

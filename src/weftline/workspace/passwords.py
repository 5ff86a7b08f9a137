"""Passwords: argon2id. A hash takes 64 MB and a fifth of a second, so it is never computed on the event loop."""

from __future__ import annotations

import asyncio
import secrets

_AT_ONCE = 2


def hash_password(password: str) -> str:
    from argon2 import PasswordHasher

    return PasswordHasher().hash(password)


def check_password(stored: str, password: str) -> bool:
    from argon2 import PasswordHasher
    from argon2.exceptions import Argon2Error, InvalidHashError

    try:
        return PasswordHasher().verify(stored, password)
    except (Argon2Error, InvalidHashError):
        return False


class PasswordChecker:
    """Checks passwords in threads, a few at a time."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._nobody: str | None = None

    async def check(self, stored: str | None, password: str) -> bool:
        """Whether the password fits its hash. `stored` is None for an unknown user, and False takes just as long."""
        async with self._slots:
            if self._nobody is None:
                self._nobody = await asyncio.to_thread(hash_password, secrets.token_hex(16))
            fits = await asyncio.to_thread(check_password, stored or self._nobody, password)
        return fits and stored is not None

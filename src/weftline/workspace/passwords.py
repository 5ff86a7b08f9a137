"""Passwords: argon2id. A hash takes 64 MB and a fifth of a second, so it is never computed on the event loop.

Nor is it computed without limit: few callers may wait, they take turns, and those who disconnect are dropped.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from functools import partial

from weftline.errors import RateLimited, Unavailable
from weftline.work.turns import FairSemaphore

_AT_ONCE = 2 if (os.cpu_count() or 1) > 2 else 1
_MAX_WAITING, _MAX_WAITING_EACH = 32, 4


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
    """Checks passwords in threads, `at_once` at a time; up to `max_waiting` wait, `max_waiting_each` of one sender."""

    def __init__(
        self, *, at_once: int = _AT_ONCE, max_waiting: int = _MAX_WAITING, max_waiting_each: int = _MAX_WAITING_EACH
    ) -> None:
        self._turns = FairSemaphore(at_once)
        self._max_waiting = max_waiting
        self._max_waiting_each = max_waiting_each
        self._nobody: str | None = None

    @property
    def waiting(self) -> int:
        return self._turns.waiting()

    async def check(self, stored: str | None, password: str, *, sender: str = "") -> bool:
        """Returns True if the password matches its hash. `stored` is None for an unknown user, and False takes just as
        long.

        A check that is cancelled while it waits never starts. Raises `RateLimited` or `Unavailable` if too many others
        are waiting, from the same sender or in all.
        """
        self._limit_waiting(sender)
        await self._turns.acquire(sender)
        # The slot is free when the thread is done, not when the caller stops waiting.
        work = asyncio.ensure_future(asyncio.to_thread(self._compare, stored, password))
        work.add_done_callback(partial(self._leave, sender))
        return await asyncio.shield(work)

    def _compare(self, stored: str | None, password: str) -> bool:
        if self._nobody is None:
            self._nobody = hash_password(secrets.token_hex(16))
        return check_password(stored or self._nobody, password) and stored is not None

    def _limit_waiting(self, sender: str) -> None:
        """Raises if too many wait. A sender with more of them than the newcomer loses one of theirs instead."""
        if not self._turns.is_full(sender):
            return
        mine = self._turns.waiting(sender)
        if mine >= self._max_waiting_each:
            raise RateLimited("Too many sign-in attempts at once.", retry_after_s=2)
        full = Unavailable("Too many people are signing in at the moment.", retry_after_s=2)
        if self.waiting >= self._max_waiting and not self._turns.turn_away(full, more_than=mine + 1):
            raise full

    def _leave(self, sender: str, work: asyncio.Future[bool]) -> None:
        if not work.cancelled():
            work.exception()  # the caller may have disconnected
        self._turns.release(sender)

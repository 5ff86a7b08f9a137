"""Passwords: argon2id. A hash takes 64 MB and a fifth of a second, so it is never computed on the event loop.

Nor is it computed without limit: few callers may wait, they take turns, and those who disconnect are dropped.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import deque

from weftline.errors import RateLimited, Unavailable

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
        self._free = at_once
        self._max_waiting = max_waiting
        self._max_waiting_each = max_waiting_each
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiting checks by sender; the sender whose turn it is comes first."""
        self._nobody: str | None = None

    @property
    def waiting(self) -> int:
        return sum(len(queue) for queue in self._waiting.values())

    async def check(self, stored: str | None, password: str, *, sender: str = "") -> bool:
        """Returns True if the password matches its hash. `stored` is None for an unknown user, and False takes just as
        long.

        A check that is cancelled while it waits never starts. Raises `RateLimited` or `Unavailable` if too many others
        are waiting, from the same sender or in all.
        """
        await self._enter(sender)
        # The slot is free when the thread is done, not when the caller stops waiting.
        work = asyncio.ensure_future(asyncio.to_thread(self._compare, stored, password))
        work.add_done_callback(self._leave)
        return await asyncio.shield(work)

    def _compare(self, stored: str | None, password: str) -> bool:
        if self._nobody is None:
            self._nobody = hash_password(secrets.token_hex(16))
        return check_password(stored or self._nobody, password) and stored is not None

    async def _enter(self, sender: str) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            return
        mine = self._waiting.get(sender, ())
        if len(mine) >= self._max_waiting_each:
            raise RateLimited("Too many sign-in attempts at once.", retry_after_s=2)
        if self.waiting >= self._max_waiting:
            self._drop_one(more_than=len(mine) + 1)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(sender, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._admit_next()  # was admitted and has already disconnected
            else:
                self._forget(sender, turn)
            raise

    def _leave(self, work: asyncio.Future[bool]) -> None:
        if not work.cancelled():
            work.exception()  # the caller may have disconnected
        self._admit_next()

    def _admit_next(self) -> None:
        """Passes a slot on to the next sender in turn."""
        while self._waiting:
            sender = next(iter(self._waiting))
            queue = self._waiting.pop(sender)
            turn = queue.popleft()
            if queue:
                self._waiting[sender] = queue  # to the end of the round
            if not turn.done():  # a client that has just disconnected stays in the queue until its task has run
                turn.set_result(None)
                return
        self._free += 1

    def _drop_one(self, *, more_than: int) -> None:
        """Makes room by dropping a check of the sender with the most waiting, if that is more than the newcomer has."""
        sender, queue = max(self._waiting.items(), key=lambda item: len(item[1]))
        full = Unavailable("Too many people are signing in at the moment.", retry_after_s=2)
        if len(queue) <= more_than:
            raise full
        turn = queue[-1]
        self._forget(sender, turn)
        if not turn.done():
            turn.set_exception(full)

    def _forget(self, sender: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(sender)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[sender]

"""Hashes of passwords that take no time."""

from __future__ import annotations

from functools import partial

import argon2


def hash_quickly() -> None:
    """As they are, a hash takes 64 MB and a fifth of a second of a processor, and tests need hundreds."""
    setattr(argon2, "PasswordHasher", partial(argon2.PasswordHasher, time_cost=1, memory_cost=64))  # noqa: B010

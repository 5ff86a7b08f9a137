"""Passwords: argon2id, about a fifth of a second each, so never on the event loop."""

from __future__ import annotations


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

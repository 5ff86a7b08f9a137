"""Public ids: a prefix, the integer key, and a random part that is checked, so that no id can be guessed.

Clients may choose another id when they create a run. It is stored in place of the random part, after a mark.
"""

from __future__ import annotations

import os
import re
import secrets
from hashlib import blake2b

from weftline.kernel.entries import Parent
from weftline.store.rows import GIVEN

_SALT = 12
_SALTS_AT_ONCE = 64
_KEY_AND_SALT = re.compile(rf"(0|[1-9a-f][0-9a-f]{{0,14}})([0-9a-f]{{{_SALT}}})")
"""The only spelling of a key that counts is our own."""

_salts: list[str] = []
"""Random bytes, read in large portions because each read is a system call."""
os.register_at_fork(after_in_child=_salts.clear)  # a forked process has the same ones


def new_salt() -> str:
    if not _salts:
        _salts.extend(secrets.token_bytes(_SALTS_AT_ONCE * _SALT // 2).hex(" ", _SALT // 2).split())
    return _salts.pop()


def given(run_id: str) -> str:
    """Returns the salt that is stored for a run whose id the client chose."""
    return GIVEN + run_id


def run_id(key: int, salt: str) -> str:
    return salt[1:] if salt.startswith(GIVEN) else f"run_{key:x}{salt}"


def unique_id(key: int, salt: str) -> str:
    """An id that no other run of the store has, in any workspace; a generated id is unique itself."""
    return f"run_{key:x}{salt}"


def session_id(key: int, salt: str) -> str:
    return f"ses_{key:x}{salt}"


def parse(identity: str, *, prefix: str) -> tuple[int, str] | None:
    """The key and the salt of an id, or None if it is not one of ours."""
    found = _KEY_AND_SALT.fullmatch(identity, len(prefix)) if identity.startswith(prefix) else None
    return None if found is None else (int(found[1], 16), found[2])


def key_of(run: str) -> int:
    """The key in the id of a child run, which is always generated; 0, which no run has, if it is not such an id."""
    parsed = parse(run, prefix="run_")
    return 0 if parsed is None else parsed[0]


def key_if_not_in_id(run: str, key: int) -> int:
    """The key, if it has to be stored beside the id; 0 if the id contains it."""
    return 0 if key_of(run) == key else key


def parent_key(parent: Parent) -> int:
    """The key of the run whose call a child executes."""
    return parent.key or key_of(parent.run)


def root_key(parent: Parent) -> int:
    """The key of the top-level run."""
    return parent.root_key or (key_of(parent.root) if parent.root else parent_key(parent))


def idempotency_key(store: str, run: str, turn: int, index: int, digest: str) -> str:
    """The same for every execution of one call, and different for any other call, run or restored store."""
    return blake2b(f"{store}/{run}/{turn}.{index}/{digest}".encode(), digest_size=16).hexdigest()

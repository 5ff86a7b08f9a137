"""A run as its agent's own code sees it while it is driven: its progress, its calls, and the state that tools share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from typing import Any

from msgspec import UNSET, Raw, UnsetType

from weftline.kernel import policies
from weftline.runtime.agent_code.code import PastCall
from weftline.runtime.conversation import SharedState
from weftline.runtime.live import WATCHING, LiveRun
from weftline.text.canonical import NotCanonical, canonical_value


class RunMemory(MutableMapping[str, Any]):
    """Reads the run's state and collects the changes separately, to be stored with the call's result.

    A value is changed by assigning it; changes inside a value are not noticed.
    """

    def __init__(self, known: dict[str, Any]) -> None:
        self._known = known
        self._changed: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        value = self._changed[key] if key in self._changed else self._known[key]
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        self._changed[key] = value

    def __delitem__(self, key: str) -> None:
        self[key]  # an unknown key is a KeyError
        self._changed[key] = None

    def __iter__(self) -> Iterator[str]:
        kept = [key for key in self._known if key not in self._changed]
        return iter(kept + [key for key, value in self._changed.items() if value is not None])

    def __len__(self) -> int:
        return len(list(iter(self)))

    @property
    def changed(self) -> dict[str, Any]:
        """The changes of the call; None marks a removed key."""
        return self._changed

    def changes(self) -> Raw | UnsetType:
        """`changed`, encoded for the log. Raises `NotCanonical` for values that are not JSON."""
        return Raw(canonical_value(self._changed)) if self._changed else UNSET


MAX_KEY_CHARS = 256
MAX_VALUE_BYTES = 64 * 1024
MAX_KEYS = 256


class HookState(MutableMapping[str, Any]):
    """The state of a run's tools and hooks, as hooks use it: JSON values by key.

    Changes are stored with the entry that results from what the hook was called about: the end of a model call, the
    decision of a gate, a result, or an entry of their own. A crash before that loses the change together with its
    cause.
    """

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared

    def __getitem__(self, key: str) -> Any:
        return self._shared.values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        _check(key, value)
        memory = self._shared.values
        if key not in memory and len(memory) >= MAX_KEYS:
            raise ValueError(f"a run remembers at most {MAX_KEYS} keys")
        memory[key] = value
        self._shared.unsaved[key] = value

    def __delitem__(self, key: str) -> None:
        del self._shared.values[key]
        self._shared.unsaved[key] = None

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._shared.values))

    def __len__(self) -> int:
        return len(self._shared.values)


def _check(key: object, value: object) -> None:
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_CHARS:
        raise ValueError(f"a key must be a string of 1 to {MAX_KEY_CHARS} characters, not {key!r:.80}")
    if value is None:
        raise ValueError(f"the value of {key!r} is None: delete the key to forget it")
    try:
        size = len(canonical_value(value))
    except NotCanonical as error:
        raise ValueError(f"the value of {key!r} is not JSON: {error}") from None
    if size > MAX_VALUE_BYTES:
        raise ValueError(f"the value of {key!r} has {size:,} bytes as JSON; at most {MAX_VALUE_BYTES:,} are allowed")


class RunInside:
    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self.state = HookState(run.work.conversation.shared)

    @property
    def turn(self) -> int:
        """The current turn, counted from 0."""
        state = self._run.state
        return state.turn - 1 if state.step in ("batch", "answered") else state.turn

    @property
    def attempt(self) -> int:
        """The number of model calls that the run has begun."""
        return self._run.state.totals.attempts

    @property
    def time_left_s(self) -> float | None:
        left_us = policies.time_left_us(self._run.state)
        return None if left_us is None else left_us / 1_000_000

    async def watched(self, *, timeout_s: float) -> None:
        watching = self._run.driving.tasks.get(WATCHING)
        if watching is not None:
            await asyncio.wait([watching], timeout=timeout_s)

    @property
    def calls(self) -> list[PastCall]:
        """The calls that have a result, in the order in which they got it. The list grows."""
        return self._run.work.conversation.calls.results

"""Reminders of a run: texts that are sent with some of its requests, and are not part of any message.

When a reminder is due follows from when it was added and from its own rules, so that no counter has to be stored: any
process that continues the run, even after a crash, gets the same answer for every turn.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct, ValidationError, convert, to_builtins

Tier: TypeAlias = Literal["safety", "guidance"]
_TIERS: tuple[Tier, ...] = ("safety", "guidance")
MAX_REMINDERS = 64
"""For one run."""
MAX_CHANGES = 100
"""For one reminder: how often it may be added, changed or removed."""
MAX_TEXT_CHARS = 16_000
_KEY = "reminder:"
"""The prefix of the state key of a reminder, followed by its id."""


class Reminder(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Text that a model is reminded of.

    It is sent with at most `max_per_run` requests of the run, None for any number; the tier `safety` is not limited.
    There are at least `min_turns_between` turns without it between two with it. Those of the tier `safety` come first,
    then by id. With the attachment `run_start` it is at the head of the instructions, with `user_turn` next to the last
    user message.
    """

    id: str
    text: str
    tier: Tier = "guidance"
    attachment: Literal["run_start", "user_turn"] = "user_turn"
    max_per_run: int | None = None
    min_turns_between: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not 1 <= len(self.id) <= 128:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"the id of a reminder must have 1 to 128 characters, not {self.id!r:.40}")
        if not isinstance(self.text, str) or not 1 <= len(self.text) <= MAX_TEXT_CHARS:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"the text of a reminder must have 1 to {MAX_TEXT_CHARS:,} characters")
        if self.tier not in _TIERS:
            raise ValueError(f"the tier of a reminder is safety or guidance, not {self.tier!r}")
        if self.attachment not in ("run_start", "user_turn"):
            raise ValueError(f"the attachment of a reminder must be run_start or user_turn, not {self.attachment!r}")
        if self.max_per_run is not None and (type(self.max_per_run) is not int or self.max_per_run < 1):
            raise ValueError(f"max_per_run is a number above 0, or None, not {self.max_per_run!r}")
        if type(self.min_turns_between) is not int or self.min_turns_between < 0:
            raise ValueError(f"min_turns_between is a number, 0 or more, not {self.min_turns_between!r}")


class _Change(Struct, frozen=True):
    """The reminder from this turn on; None if it was removed."""

    since: int
    reminder: Reminder | None


def add(memory: MutableMapping[str, Any], reminder: Reminder, *, since: int) -> None:
    """Adds a reminder, or changes the one with its id, which keeps its counters.

    Raises `ValueError` if there are too many.
    """
    if not isinstance(reminder, Reminder):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"a reminder must be a Reminder, not {type(reminder).__name__}")
    key = _KEY + reminder.id
    if key not in memory and len([one for one in memory if one.startswith(_KEY)]) >= MAX_REMINDERS:
        raise ValueError(f"a run has at most {MAX_REMINDERS} reminders")
    _change(memory, key, _Change(since, reminder))


def remove(memory: MutableMapping[str, Any], id: str, *, since: int) -> None:
    """Ends a reminder. Does nothing if there is none."""
    _change(memory, _KEY + id, _Change(since, None))


def _change(memory: MutableMapping[str, Any], key: str, change: _Change) -> None:
    changes = [*memory.get(key, ()), to_builtins(change)]
    if len(changes) > MAX_CHANGES:
        raise ValueError(f"a reminder is changed at most {MAX_CHANGES} times in a run")
    memory[key] = changes


def due(given: Sequence[Reminder], memory: Mapping[str, Any], *, turn: int) -> list[Reminder]:
    """Returns the reminders for the request of a turn; `given` are those that the run began with."""
    changes = {one.id: [_Change(0, one)] for one in given}
    for key, stored in memory.items():
        if key.startswith(_KEY):
            changes.setdefault(key.removeprefix(_KEY), []).extend(_stored(stored))
    found = [one for each in changes.values() if (one := _at(each, turn)) is not None]
    return sorted(found, key=lambda one: (_TIERS.index(one.tier), one.id))


def _stored(value: object) -> list[_Change]:
    """Decodes stored changes; empty for anything that a tool wrote there itself."""
    try:
        return convert(value, list[_Change])
    except (ValidationError, ValueError):
        return []


def _at(changes: Sequence[_Change], turn: int) -> Reminder | None:
    """Returns the reminder, if it is due in this turn."""
    count, last = 0, None
    for now in range(min([change.since for change in changes], default=turn + 1), turn + 1):
        reminder = next((change.reminder for change in reversed(changes) if change.since <= now), None)
        if reminder is None:
            continue
        capped = reminder.tier != "safety" and reminder.max_per_run is not None and count >= reminder.max_per_run
        if capped or (last is not None and now - last <= reminder.min_turns_between):
            continue
        count, last = count + 1, now
        if now == turn:
            return reminder
    return None

"""Which skills are active in a run.

    available ──activate (model, explicit, resume)──▶ active ──deactivate (run_end, explicit, reset)──▶ available

The state is JSON under one key of the run's tool state (`ToolContext.state`), so it is stored with the call that
changed it and survives a crash. Activations do not carry over to the next run.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping, Sequence
from html import unescape
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from weftline.errors import Conflict
from weftline.messages import Message, ToolResults
from weftline.prompts.skills import CONTENT_START

KEY = "skills"
USE = "skills_use"
READ = "skills_read"
RUN_SCRIPT = "skills_run_script"
SKILL_TOOLS = frozenset({USE, READ, RUN_SCRIPT})

Via: TypeAlias = Literal["model", "explicit", "resume"]
Reason: TypeAlias = Literal["run_end", "explicit", "reset"]

_CONTENT = re.compile(re.escape(CONTENT_START) + r' name="([^"\n]*)">\n')


class Active(Struct, frozen=True):
    """An active skill, and who activated it."""

    name: str
    via: Via


class TooManyActive(Conflict):
    """The maximum number of skills is active."""

    default_code = "too_many_active_skills"


class SkillActivations:
    """The active skills of one run, in the order of their activation, kept in `state`."""

    def __init__(self, state: MutableMapping[str, Any], *, max_active: int | None = None) -> None:
        self._state = state
        self._max_active = max_active

    @property
    def active(self) -> tuple[Active, ...]:
        try:
            return msgspec.convert(self._state.get(KEY, {}).get("active", ()), tuple[Active, ...])
        except (msgspec.ValidationError, AttributeError):
            # Something else wrote there. Then nothing is active, and the model can activate skills again.
            return ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.active)

    @property
    def has_begun(self) -> bool:
        """True if the run already has its state: it began in this process or an earlier one."""
        return KEY in self._state

    def begin(self) -> None:
        self._store(self.active)

    def check_room(self, name: str) -> None:
        """Raises `TooManyActive` if `name` cannot become active now."""
        active = self.names
        if self._max_active is not None and name not in active and len(active) >= self._max_active:
            raise TooManyActive(
                f"The skill {name!r} cannot be activated: at most {self._max_active} may be active at once."
                f" Active now: {', '.join(active) or 'none'}.",
                active=list(active),
                max_active=self._max_active,
            )

    def activate(self, name: str, *, via: Via) -> bool:
        """Activates a skill; returns False if it was active already.

        Raises:
            TooManyActive: if the maximum is reached; the others stay active.
        """
        active = self.active
        if any(one.name == name for one in active):
            return False
        self.check_room(name)
        self._store((*active, Active(name, via)))
        return True

    def deactivate(self, name: str) -> bool:
        """Ends an activation; returns False if there was none."""
        active = self.active
        left = tuple(one for one in active if one.name != name)
        if len(left) == len(active):
            return False
        self._store(left)
        return True

    def clear(self) -> tuple[Active, ...]:
        """Ends all activations, and returns them."""
        active = self.active
        if active:
            self._store(())
        return active

    def _store(self, active: tuple[Active, ...]) -> None:
        # A new value each time, so that the state notices that this key was written.
        self._state[KEY] = {"active": msgspec.to_builtins(list(active))}


class Content(NamedTuple):
    """A stored result that holds the content of a skill."""

    call_id: str
    name: str


def stored_contents(messages: Sequence[Message]) -> tuple[Content, ...]:
    """Returns the results in `messages` that are contents of skills, in order.

    They show which skills a conversation has activated, and which results compaction must leave whole.
    """
    results = [one for message in messages if isinstance(message, ToolResults) for one in message.results]
    return tuple(
        Content(result.id, unescape(content[1]))
        for result in results
        if result.name == USE and not result.is_error and (content := _CONTENT.match(result.text))
    )


def to_resume(messages: Sequence[Message], *, max_active: int | None = None) -> tuple[str, ...]:
    """Returns the skills that stored messages show as activated: the latest, if there are too many."""
    latest_last = dict.fromkeys(content.name for content in reversed(stored_contents(messages)))
    names = tuple(latest_last)[:max_active]
    return names[::-1]

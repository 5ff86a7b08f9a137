"""A run as its agent's own code sees it while it is driven: its progress, its calls, and the state that tools share.

Meanwhile the log gets notes: the progress that tools report, and what hooks and providers record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, cast

from msgspec import UNSET, Raw, Struct, UnsetType

from weftline.kernel import bodies, policies
from weftline.kernel.accept import accepts
from weftline.kernel.bodies import ProgressNote, ToolNote
from weftline.kernel.notes import RUN_NOTE, TOOL_NOTE, TOOL_PROGRESS, RunNote
from weftline.kernel.seats import RunStopped, SeatForced
from weftline.kernel.state import State
from weftline.messages import Message
from weftline.runtime.agent_code.code import PastCall
from weftline.runtime.conversation import SharedState
from weftline.runtime.live import WATCHING, Draft, LiveRun
from weftline.runtime.services import Sink
from weftline.text.canonical import NotCanonical, canonical_value
from weftline.text.characters import storable
from weftline.tools.base import ToolProgress


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
    def __init__(self, run: LiveRun, take: Callable[[LiveRun, Draft], None]) -> None:
        self._run = run
        self._take = take
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
    def now(self) -> State:
        """What is known about the run at this moment."""
        return self._run.state

    @property
    def messages(self) -> Sequence[Message]:
        """What has been said so far, with the history of its thread."""
        return self._run.work.conversation.messages

    @property
    def past(self) -> int:
        """How many of these messages are from before the run."""
        conversation = self._run.work.conversation
        return len(conversation.messages) - conversation.own_count

    @property
    def aborted(self) -> asyncio.Event:
        """Set when the run is cancelled."""
        driving = self._run.driving
        if driving.aborted is None:
            driving.aborted = asyncio.Event()
            if self._run.state.control.cancel:
                driving.aborted.set()
        return driving.aborted

    def ask(self, head: SeatForced | RunStopped) -> bool:
        """Appends what code wants of the run. Returns False if the run does not accept it."""
        if self._run.gone or not accepts(self._run.state, head):
            return False
        self._take(self._run, Draft(head))
        return True

    @property
    def calls(self) -> list[PastCall]:
        """The calls that have a result, in the order in which they got it. The list grows."""
        return self._run.work.conversation.calls.results


MAX_NOTES = 200
"""The most notes of one call."""
EVERY_S = 0.2
MAX_MESSAGE_CHARS = 500
MAX_NOTE_BYTES = 64 * 1024


class ProgressNotes(Struct, eq=False):
    """Records the progress of one call. Reports that come faster than a person could read are dropped, and so are those
    after the call or its run has ended.
    """

    _sink: Sink
    _call: str
    _name: str
    """That of the tool."""
    _left: int = MAX_NOTES
    _next_at: float = 0.0

    def take(self, progress: ToolProgress) -> None:
        now = asyncio.get_running_loop().time()
        if not self._left or now < self._next_at or self._sink.full():
            return
        self._left -= 1
        self._next_at = now + EVERY_S
        message = storable(progress.message[:MAX_MESSAGE_CHARS])
        note = ProgressNote(self._call, self._name, progress.progress, progress.total, message)
        self._sink.emit(TOOL_PROGRESS, bodies.encode(note))

    def emit(self, kind: str, data: object) -> None:
        """Records a note of the tool's own. Raises `ValueError` for data that is not JSON, or too large."""
        if not self._left or self._sink.full():
            return
        encoded = canonical_value(data)
        if len(encoded) > MAX_NOTE_BYTES:
            raise ValueError(f"a note must have at most {MAX_NOTE_BYTES:,} bytes, not {len(encoded):,}")
        self._left -= 1
        self._sink.emit(TOOL_NOTE, bodies.encode(ToolNote(self._call, self._name, storable(kind), Raw(encoded))))

    def close(self) -> None:
        self._left = 0


"""The most notes of one turn."""
MAX_NOTE_CHARS = 8_000
MAX_LABELS = 16
MAX_LABEL_CHARS = 256


def run_note(text: object, labels: object, *, turn: int) -> bytes:
    """Raises `ValueError` if it is not a text with labels of strings, or is too large."""
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_NOTE_CHARS:
        raise ValueError(f"a note must be a string of 1 to {MAX_NOTE_CHARS:,} characters")
    given = list(cast("Mapping[object, object]", labels or {}).items()) if isinstance(labels, Mapping | None) else [()]
    pairs = [
        [storable(part) for part in pair if isinstance(part, str) and len(part) <= MAX_LABEL_CHARS] for pair in given
    ]
    if len(pairs) > MAX_LABELS or any(len(pair) != 2 for pair in pairs):  # invalid parts are missing from their pairs
        raise ValueError(
            f"the labels of a note are up to {MAX_LABELS} strings of {MAX_LABEL_CHARS} characters, by name"
        )
    return bodies.encode(RunNote(storable(text), {pair[0]: pair[1] for pair in pairs}, turn))


class ProviderNotes(Struct, eq=False):
    """Accepts a provider's notes about its attempt. Too many notes are dropped."""

    _sink: Sink
    _turn: int
    _left: int = MAX_NOTES

    def __call__(self, text: str, labels: Mapping[str, str] | None = None) -> None:
        encoded = run_note(text, labels, turn=self._turn)
        if self._left and self._sink.wanted() and not self._sink.full():
            self._left -= 1
            self._sink.emit(RUN_NOTE, encoded)

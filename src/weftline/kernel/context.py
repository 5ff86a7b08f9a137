"""The log's vocabulary for what models read of a conversation: its thread's history, and compaction, a summary in
place of the older messages.

A summary is written once: `compaction.started` permits one model call, which ends as `context.compacted` or as
`compaction.failed`. No part of the conversation is lost; see `weftline.kernel.compaction` for the rules.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from weftline.kernel.policy import Held
from weftline.messages import Usage

Cause: TypeAlias = Literal["size", "context_window"]
"""Why a summary is written: the request would be larger than the run allows, or the model rejected it as too long."""


class _Head(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Like `entries.Head`."""


class CompactionRule(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """When a run compacts its requests, and how. Stored in full, like `Limits`."""

    keep_turns: int = 4
    """How many of the latest turns are left unchanged."""
    at_tokens: int | None = None
    """The estimated size above which a request is compacted. With neither limit, that waits until a model rejects one.
    """
    model: str = ""
    """The model that writes summaries; "" for the run's own."""
    at_turns: int | None = None
    """The number of turns at which a request is compacted, whatever its size."""


class HistoryPinned(_Head, frozen=True, tag="history.pinned"):
    """The thread's messages up to this position are what the run starts from, whatever happens to the thread later."""

    upto: int
    """How many messages these are."""
    through: int | None = None
    """The position of the thread's last message; None if an earlier version wrote this, which added messages only when
    a run had ended.
    """
    revision: int = 0
    """How often the thread's messages had been edited."""


class MessagesEdited(_Head, frozen=True, tag="messages.edited"):
    """Messages of the run's thread were added, changed or removed while it reads them. Body: `EditedBody`.

    The next request is made of what they are now. `revision` is the thread's, `removed` how many messages the run no
    longer begins with.
    """

    revision: int
    removed: int = 0


class ContextMeasured(_Head, frozen=True, tag="context.measured"):
    """The size of the next request, and of the part of it that a summary would replace, in estimated tokens.

    `spare` is 0 if the request is small enough.
    """

    turn: int
    cause: Cause = "size"
    tokens: int = 0
    spare: int = 0
    turns: int = 0
    """How many turns it would have, not counting those already replaced by a summary."""


class CompactionStarted(_Head, frozen=True, tag="compaction.started"):
    """Permission to ask a model for a summary. `number` counts from 1; `estimate` is the input it may bill."""

    number: int
    turn: int
    cause: Cause
    model: str = ""
    estimate: int = 0
    held: Held | None = None
    """As in `attempt.started`."""


class CompactionFailed(_Head, frozen=True, tag="compaction.failed"):
    """The summary failed, and the run continues without it. Body: `FailedBody`.

    `reason` is `error` (the provider failed), `useless` (the answer is not a summary, or not shorter than what it
    replaces), `abandoned` (cut off by a crash) or `cancelled`.
    """

    number: int
    reason: Literal["error", "useless", "abandoned", "cancelled"] = "error"
    cls: str = ""
    retryable: bool = False
    retry_at: int | None = None
    usage: Usage = Usage()
    estimated: bool = False
    cost_nusd: int | None = None
    active_us: int = 0


class ContextCompacted(_Head, frozen=True, tag="context.compacted"):
    """Requests have a summary in place of the messages before the position `upto`. Body: `SummaryBody`.

    The position also counts the messages of the run's thread. `number` is 0 for a summary left by an earlier run of the
    thread. `before` and `after` are estimates in tokens; `size` is `after` in bytes, without tools.
    """

    number: int
    upto: int
    before: int
    after: int
    size: int = 0
    usage: Usage = Usage()
    estimated: bool = False
    cost_nusd: int | None = None
    active_us: int = 0
    left: int = 0
    """For a summary taken over from an earlier run: what `after` was when it was written. The thread has grown since.
    """


class ContextRestored(_Head, frozen=True, tag="context.restored"):
    """Someone has asked for the whole conversation in requests again."""

    requested_by: str = ""

"""The part of the log's vocabulary that is about shorter requests: a summary in place of the older messages.

A summary is made once: `compaction.started` permits one model call, which ends as `context.compacted` or as
`compaction.failed`. Nothing of the conversation is lost by it; see `weftline.kernel.compaction` for the rules.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from weftline.kernel.budget import Held
from weftline.messages import Usage

Cause: TypeAlias = Literal["size", "context_window"]
"""Why a summary is made: the request would be larger than the run wants, or the model has refused it as too long."""


class _Head(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """As `entries.Head`."""


class CompactionRule(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """When a run makes its requests shorter, and how. Stored in full, as `Limits` are."""

    keep_turns: int = 4
    """How many of the latest turns stay as they are."""
    at_tokens: int | None = None
    """The estimate above which a request is made shorter. With neither limit, that waits until a model refuses one."""
    model: str = ""
    """The model that writes summaries; "" for the run's own."""
    at_turns: int | None = None
    """The number of turns at which a request is made shorter whatever its size."""


class ContextMeasured(_Head, frozen=True, tag="context.measured"):
    """How large the next request would be, and how much of it a summary would replace, in estimated tokens.

    `spare` is 0 for a request that is small enough.
    """

    turn: int
    cause: Cause = "size"
    tokens: int = 0
    spare: int = 0
    turns: int = 0
    """How many turns it would have, without those that a summary stands for already."""


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
    """No summary came of it, and the run goes on without. Body: `FailedBody`.

    `reason` is `error` (the provider failed), `useless` (the answer is no summary, or not shorter than what it stands
    for), `abandoned` (cut off by a crash) or `cancelled`.
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

    The position counts the messages of the run's thread too. `number` is 0 for the summary that an earlier run of the
    thread left. `before` and `after` are estimates in tokens, `size` is the same as `after` in bytes, without tools.
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
    """What `after` was when it was made, if it is taken over: the thread has grown since."""


class ContextRestored(_Head, frozen=True, tag="context.restored"):
    """Someone wants the whole conversation in requests again."""

    requested_by: str = ""

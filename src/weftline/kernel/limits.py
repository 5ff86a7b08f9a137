"""The rules and the thresholds of a run, which the first entry of its log has."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from weftline.kernel.context import CompactionRule
from weftline.kernel.control import LeaseRule, OnDeploy
from weftline.kernel.policy import BudgetRule, PolicyRule
from weftline.kernel.seats import SeatRule

RULES = 2
"""The version of the rules that new runs follow; a run keeps the rules it was created with.

1: A child run beyond `max_children` is refused. 2: It waits until one of the others has ended.
"""
KNOWN_RULES = frozenset({1, 2})
"""The versions of the rules that `decide` can follow. A run with any other was created by newer code and is left alone.
"""


class Limits(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The thresholds of one run, fixed when it is created.

    Stored in full, defaults included: a default that changes later must not affect an existing run.
    """

    max_tool_turns: int = 100
    on_max_tool_turns: Literal["error", "finalize"] = "error"
    loop_soft: int = 3
    """Number of identical turns in a row at which a batch is skipped; 0 switches loop detection off."""
    loop_hard: int = 6
    tool_budgets: dict[str, int] = {}
    local_timeout_us: int = 300_000_000
    on_local_timeout: Literal["end", "report"] = "end"
    max_retries: int = 3
    fallbacks: int = 0
    """How many further models may be tried when one has used up its retries."""
    in_doubt_followup: Literal["block", "allow"] = "block"
    interrupts_allowed: bool = True
    max_concurrent_calls: int = 64
    """How many server-side calls of a concurrent batch may run at once."""
    max_turns: int | None = None
    """After this many model turns, one more follows: the final turn, without tools."""
    max_cost_nusd: int | None = None
    """The final turn follows once the model calls have cost this much, in billionths of a US dollar."""
    output_retries: int = 1
    """How often the model is asked again for an answer that was rejected."""
    check_output: bool = False
    """Whether the agent's code must accept an answer before the run ends with it."""
    max_children: int = 3
    """How many child runs may be open at once."""
    max_depth: int = 3
    """How deep child runs may nest below the top-level run."""
    tool_output_budget_bytes: int | None = None
    """If the results of a turn have more bytes than this, the model is told so."""
    await_timeout_us: int | None = None
    """How long a person has to answer, unless the call sets its own time; None means forever."""
    on_await_expired: Literal["deny", "end"] = "deny"
    grant_ttl_us: int = 900_000_000
    """How long after an approval its call may begin."""
    await_gate: bool = False
    """Whether the agent's code is asked before people are."""
    nobody_to_ask: bool = False
    """Whether the run ends when only a person could let it continue, because nobody is there to ask."""
    four_eyes: bool = False
    """Whether the person who requested the run is barred from approving its calls."""
    in_doubt: Literal["report", "ask"] = "report"
    """Whether the model is told about a call that may or may not have happened, or a person is asked."""
    compaction: CompactionRule | None = None
    """When older messages are replaced by a summary; None for never."""
    policy: PolicyRule | None = None
    budget: BudgetRule | None = None
    """What the run may spend, including everything below it."""
    on_deploy: OnDeploy = "adopt"
    """What happens to the run when a deploy has changed its code."""
    leases: LeaseRule | None = None
    """What happens to a client-side call whose client is gone."""
    seats: tuple[SeatRule, ...] = ()
    """Who may speak in the run, beginning with the first; empty for a run with one speaker."""
    max_side_turns: int | None = None
    """How many side turns the seats may have together; the last one has no tools."""

"""A run starts from the summary that the previous run of its thread left, if it uses compaction itself.

The thread's messages stay complete. A summary exists only in the logs of runs: each run takes it over from the previous
one as a fact of its own, so that nobody has to look further back.
"""

from __future__ import annotations

import logging

from msgspec import Struct

from weftline.kernel import bodies
from weftline.kernel.bodies import SummaryBody
from weftline.kernel.context import ContextCompacted, ContextRestored
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import KIND, HistoryPinned, RunCreated, decode_fact
from weftline.plan import decode_content
from weftline.runtime import ids
from weftline.runtime.live import Draft, LiveRun, WorkingSet
from weftline.runtime.model_calls.cutting import input_bytes, with_summary
from weftline.runtime.model_calls.spending import BYTES_PER_TOKEN
from weftline.runtime.supported import unsupported
from weftline.runtime.tool_calls.toolbox import EMPTY
from weftline.store.base import LogStore
from weftline.store.rows import Item, RunFilter, RunRow

logger = logging.getLogger(__name__)

_KINDS = tuple([KIND[kind] for kind in (RunCreated, HistoryPinned, ContextCompacted, ContextRestored)])
_BEGUN = 2
"""A run that has begun has at least two of these facts: its creation and its pinned history."""
_LOOK_BACK = 8
"""How many runs that never began, for example because they were cancelled in the queue, may lie between two that
did.
"""


class Inherited(Struct, frozen=True):
    """A summary of the thread's messages before `upto`."""

    upto: int
    body: SummaryBody
    left: int
    """How large requests with it were when it was written, in tokens."""


async def inherited_by(run: LiveRun, store: LogStore) -> Inherited | None:
    """The summary that the thread's previous run left to this one."""
    if run.thread is None or run.state.limits.compaction is None:
        return None
    for row in await store.runs(RunFilter(thread=run.thread, before=run.key, limit=_LOOK_BACK)):
        if unsupported(row):
            return None
        facts = await store.facts(row.key, kinds=_KINDS)
        if len(facts) < _BEGUN:
            continue
        try:
            return _latest(row, facts)
        except UNREADABLE:
            logger.exception("run %s: what it left to its thread cannot be read", ids.run_id(row.key, row.salt))
            return None
    return None


def _latest(row: RunRow, facts: list[Item]) -> Inherited | None:
    pinned = 0
    keeps_all = False
    found: Inherited | None = None
    for fact in facts:
        match decode_fact.decode(fact.head):
            case RunCreated():
                keeps_all = decode_content(bodies.decode_created(fact.body).plan).thread_keeps_all
            case HistoryPinned(upto=upto):
                pinned = upto
            case ContextCompacted() as head if head.upto <= pinned or row.status == "succeeded":
                # What an unsuccessful run did is not part of its thread.
                body = bodies.decode_summary(fact.body)
                whole = keeps_all and row.status == "succeeded"  # then its positions are those of the thread
                upto = head.upto if whole else min(head.upto, pinned)
                kept = tuple([at for at in body.kept if at < upto])
                left = head.left or head.after
                found = Inherited(upto, SummaryBody(body.text, kept, body.model), left) if len(kept) < upto else None
            case ContextRestored():
                found = None
            case _:
                pass
    return found


def as_fact(inherited: Inherited, work: WorkingSet) -> Draft:
    """The fact that takes over a summary. It needed no model call, and costs nothing."""
    conversation, tools = work.conversation, work.toolbox or EMPTY
    visible = with_summary(conversation.messages, inherited.upto, inherited.body)
    size = input_bytes(work.plan, messages=visible, system=conversation.system)
    head = ContextCompacted(
        0,
        inherited.upto,
        before=conversation.estimate(tools),
        after=-(-(size + tools.size) // BYTES_PER_TOKEN),
        size=size,
        cost_nusd=0,
        left=inherited.left,
    )
    return Draft(head, bodies.encode(inherited.body))

"""Facts that change more than the state: the run's row, or what is stored beside the log.

`Log.append` itself handles the most frequent ones.
"""

from __future__ import annotations

from weftline.kernel.context import CompactionFailed, ContextCompacted
from weftline.kernel.entries import AttemptFailed, AwaitClosed, AwaitOpened, Fact, RunCreated
from weftline.kernel.state import State
from weftline.runtime import ids
from weftline.runtime.live import LiveRun
from weftline.store.rows import NewAwait, Progress, Write

NOTED: frozenset[type[Fact]] = frozenset(
    {RunCreated, AttemptFailed, ContextCompacted, CompactionFailed, AwaitOpened, AwaitClosed}
)


def note(run: LiveRun, write: Write, head: Fact, body: bytes, *, at: int, state: State) -> None:
    """Adds what one of the `NOTED` facts changes. `state` has all facts of the append folded."""
    match head:
        case RunCreated():
            run.log.row.latest = at
            if run.new is not None:
                run.new.created_at = at
        case AttemptFailed():
            run.log.outcome_seq = run.log.next_seq
            if head.reason == "error":
                write.progress = Progress.ENDED
        case ContextCompacted():
            run.log.outcome_seq, write.progress = run.log.next_seq, Progress.ENDED
        case CompactionFailed():
            run.log.outcome_seq = run.log.next_seq
        case AwaitOpened():
            write.awaits += (_new_await(run, head, body, at, state=state),)
        case AwaitClosed():
            write.answered += (head.id,)
        case _:
            pass


def _new_await(run: LiveRun, head: AwaitOpened, body: bytes, at: int, *, state: State) -> NewAwait:
    parent = run.state.parent
    root = run.key if parent is None else ids.root_key(parent)
    deadline_at = None if head.timeout_us is None else at + head.timeout_us
    tool = state.batch.calls[head.index].name if 0 <= head.index < len(state.batch.calls) else ""
    return NewAwait(head.id, run.workspace, root, head.kind, at, deadline_at, body, tool)

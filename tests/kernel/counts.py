"""The counts and cursors of a state, held to what a walk over all of its calls finds."""

from __future__ import annotations

from weftline.kernel.state import Batch, State


def hold(s: State) -> None:
    batch = s.batch
    stages = [call.stage for call in batch.calls]
    assert batch.asked == stages.count("asked")
    assert batch.unclosed == len(stages) - stages.count("closed")
    assert batch.running == tuple(index for index, stage in enumerate(stages) if stage == "started")
    assert not [index for index in waiting(batch) if index < batch.next]
    assert batch.held == sum(call.held for call in batch.calls)
    expiries = [call.grant.expires_at for call in batch.calls if call.grant is not None]
    assert batch.grants == len(expiries)
    assert batch.grants_due <= min(expiries, default=0)
    ready = [call for call in batch.calls if call.stage in ("asked", "opened") and not call.awaiting]
    assert batch.ready == sum(not call.offered for call in ready)
    assert batch.to_offer == sum(call.client is not None and call.stage == "asked" for call in batch.calls)
    nested = [(i, call) for i, call in enumerate(batch.calls) if call.parent is not None and call.stage != "closed"]
    assert all(index >= batch.first_nested for index, _ in nested)
    orphans = [call for _, call in nested if batch.calls[call.parent or 0].stage == "closed"]
    assert batch.orphaned or not orphans
    gated = [i for i, call in enumerate(batch.calls) if call.gated]
    assert batch.gated == len(gated)
    assert batch.first_gated <= min(gated, default=len(batch.calls))
    undecided = [i for i, call in enumerate(batch.calls) if call.stage == "asked" and not (call.gated or call.held)]
    assert batch.to_admit == len(undecided)
    assert batch.undecided <= min(undecided, default=len(batch.calls))
    awaits = [question for question in s.questions.open.values() if question.kind != "call"]
    assert (s.questions.awaits, s.questions.passed) == (len(awaits), sum(question.passed for question in awaits))
    deadlines = [question.deadline_at for question in s.questions.open.values() if question.deadline_at is not None]
    assert s.questions.due_at is None or s.questions.open
    leases = [question.lease for question in s.questions.open.values() if question.lease is not None]
    deadlines += [lease.until for lease in leases if not lease.lost]
    assert not deadlines or (s.questions.due_at is not None and s.questions.due_at <= min(deadlines))


def exactly(s: State) -> None:
    """Besides, of a log that is not damaged: the cursor stands at the first waiting call, and questions are right."""
    hold(s)
    batch = s.batch
    assert batch.next == min(waiting(batch), default=len(batch.calls))
    about = {id: batch.calls[question.index] for id, question in s.questions.open.items() if question.kind != "call"}
    assert all(call.awaiting == id for id, call in about.items())
    assert {call.awaiting for call in batch.calls if call.awaiting} == about.keys()
    offers = {id: question for id, question in s.questions.open.items() if question.kind == "call"}
    asked = {id: batch.calls[question.index] for id, question in offers.items()}
    assert all(call.id == id and call.client and call.stage == "opened" for id, call in asked.items())
    # A blocked call is never asked of anybody; it is closed in the append that announced it.
    with_clients = [call.id for call in batch.calls if call.client and call.stage == "opened"]
    assert set(asked) <= set(with_clients)


def waiting(batch: Batch) -> list[int]:
    return [i for i, call in enumerate(batch.calls) if call.client is None and call.stage in ("asked", "opened")]

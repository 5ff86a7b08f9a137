"""Clients that claim calls: a claimed call belongs to one client, and if that client is gone the run's rule applies."""

from __future__ import annotations

import asyncio

from weftline.errors import Conflict
from weftline.kernel.control import CallClaimed, CallUnclaimed, LeaseRule
from weftline.kernel.entries import CallClosed, CallStarted, Limits
from weftline.runtime.engine import Leased
from weftline.testing.engine.bench import Bench, Check, facts, refusal, refused_with
from weftline.tools.base import ToolOutput

_SHORT_US = 50_000
_LONG_US = 300_000_000
_ONCE = "ask_once"


async def one_of_many_claims_wins(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    claims = [bench.engine.claim(run.key, call, by=f"client {number}") for number in range(5)]
    outcomes = await asyncio.gather(*claims, return_exceptions=True)
    won = [one for one in outcomes if isinstance(one, Leased)]
    held = [one for one in outcomes if isinstance(one, Conflict)]
    assert (len(won), {one.code for one in held}, len(held)) == (1, {"lease_held"}, 4)
    assert {one.details["lease_ends_at"] for one in held} == {won[0].until}
    assert (won[0].lease_us, won[0].attempt) == (30_000_000, 1)
    assert await bench.engine.answer(run.key, call, ToolOutput.of("42"), token=won[0].token)
    assert "42" in await bench.answer_text(run)
    (claimed,) = facts(await bench.lines(run), CallClaimed)
    assert won[0].token not in str(claimed), "the log has the token"


async def a_claim_whose_response_was_lost_can_be_repeated(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    first = await bench.engine.claim(run.key, call, claim_id="mine", by="ann")
    again = await bench.engine.claim(run.key, call, claim_id="mine", by="ann")
    assert first.token == again.token
    assert await refusal(bench.engine.claim(run.key, call, claim_id="mine", by="ben")) == "lease_held"
    assert await refusal(bench.engine.claim(run.key, call, claim_id="other", by="ann")) == "lease_held"
    await bench.engine.cancel(run.key)


async def a_call_that_is_claimed_is_answered_by_its_client_alone(bench: Bench) -> None:
    run = await bench.run("ask_three")
    free, claimed, other = await bench.offers(run, 3)
    lease = await bench.engine.claim(run.key, claimed)
    assert await bench.engine.answer(run.key, free, ToolOutput.of("as ever"))
    assert await refusal(bench.engine.answer(run.key, claimed, ToolOutput.of("mine"))) == "lease_held"
    assert await refusal(bench.engine.answer(run.key, claimed, ToolOutput.of("mine"), token="no")) == "lease_lost"
    assert await refusal(bench.engine.answer(run.key, other, ToolOutput.of("mine"), token=lease.token)) == "lease_lost"
    assert await bench.engine.answer(run.key, claimed, ToolOutput.of("held"), token=lease.token)
    assert await bench.engine.answer(run.key, other, ToolOutput.of("as ever"))
    await bench.ended(run)
    assert await refusal(bench.engine.heartbeat(run.key, claimed, lease.token)) == "run_terminal"


async def a_release_offers_the_call_at_once(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    lease = await bench.engine.claim(run.key, call, by="ann")
    await bench.engine.release(run.key, call, lease.token)
    (offer,) = await bench.until(run, CallUnclaimed)
    assert (offer.cause, offer.attempt, offer.client) == ("released", 2, "local")
    for use in (bench.engine.heartbeat, bench.engine.release):
        assert await refusal(use(run.key, call, lease.token)) == "lease_lost"
    second = await bench.engine.claim(run.key, call, by="ben")
    assert second.attempt == 2
    assert await refusal(bench.engine.answer(run.key, call, ToolOutput.of("late"), token=lease.token)) == "lease_lost"
    await bench.engine.answer(run.key, call, ToolOutput.of("42"), token=second.token)
    assert "42" in await bench.answer_text(run)


async def a_heartbeat_keeps_the_call_and_not_its_deadline(bench: Bench) -> None:
    run = await bench.run("ask", limits=Limits(local_timeout_us=200_000, on_local_timeout="report"))
    (call,) = await bench.offers(run)
    lease = await bench.engine.claim(run.key, call)
    kept = await bench.engine.heartbeat(run.key, call, lease.token)
    assert kept.until >= lease.until and kept.token == lease.token
    (closed,) = await bench.until(run, CallClosed)
    assert closed.how == "timeout", "its own time was up before the lease"
    assert await refusal(bench.engine.heartbeat(run.key, call, lease.token)) in ("lease_lost", "run_terminal")


async def a_heartbeat_extends_the_lease_from_now_on(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    lease = await bench.engine.claim(run.key, call, lease_us=_LONG_US)
    before = bench.engine.clock.now_us()
    kept = await bench.engine.heartbeat(run.key, call, lease.token)
    assert before <= kept.until - _LONG_US <= bench.engine.clock.now_us()
    assert (kept.token, kept.lease_us, kept.attempt) == (lease.token, _LONG_US, 1)
    held = await refused_with(bench.engine.claim(run.key, call, by="other"))
    assert (held.code, held.details["lease_ends_at"]) == ("lease_held", kept.until)
    await bench.engine.cancel(run.key)


async def a_lease_that_runs_out_is_offered_again(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    gone = await bench.engine.claim(run.key, call, lease_us=_SHORT_US, by="gone")
    (offer,) = await bench.until(run, CallUnclaimed)
    assert (offer.cause, offer.attempt) == ("lost", 2)
    taken = await bench.engine.claim(run.key, call, by="other")
    for use in (bench.engine.heartbeat, bench.engine.release):
        assert await refusal(use(run.key, call, gone.token)) == "lease_lost"
    assert await refusal(bench.engine.answer(run.key, call, ToolOutput.of("41"), token=gone.token)) == "lease_lost"
    await bench.engine.answer(run.key, call, ToolOutput.of("42"), token=taken.token)
    assert "42" in await bench.answer_text(run)
    assert len(facts(await bench.lines(run), CallClosed)) == 1


async def a_token_that_has_run_out_is_good_until_another_client_has_the_call(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    slow = await bench.engine.claim(run.key, call, lease_us=_SHORT_US)
    await bench.until(run, CallUnclaimed)
    assert await bench.engine.answer(run.key, call, ToolOutput.of("42"), token=slow.token)
    assert "42" in await bench.answer_text(run)


async def a_plain_client_answers_what_was_offered_again(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    await bench.engine.claim(run.key, call, lease_us=_SHORT_US)
    await bench.until(run, CallUnclaimed)
    assert await bench.engine.answer(run.key, call, ToolOutput.of("42"))
    assert "42" in await bench.answer_text(run)


async def a_lost_lease_is_reported_to_the_model_if_the_run_is_set_so(bench: Bench) -> None:
    run = await bench.run("ask", limits=Limits(leases=LeaseRule("error")))
    (call,) = await bench.offers(run)
    lease = await bench.engine.claim(run.key, call, lease_us=_SHORT_US)
    assert (await bench.ended(run)).status == "succeeded"
    (closed,) = facts(await bench.lines(run), CallClosed)
    assert (closed.how, closed.is_error) == ("timeout", True)
    late = bench.engine.answer(run.key, call, ToolOutput.of("42"), token=lease.token)
    assert await refusal(late) in ("lease_lost", "run_terminal")


async def a_tool_of_the_server_takes_the_place_of_a_client_that_is_gone(bench: Bench) -> None:
    run = await bench.run("ask", limits=Limits(leases=LeaseRule("fallback", {"ask": "note"})))
    (call,) = await bench.offers(run)
    lease = await bench.engine.claim(run.key, call, lease_us=_SHORT_US)
    assert (await bench.ended(run)).status == "succeeded"
    lines = await bench.lines(run)
    (given,), (closed,) = facts(lines, CallUnclaimed), facts(lines, CallClosed)
    assert (given.fallback, closed.how, closed.id) == ("note", "returned", call)
    assert len(facts(lines, CallStarted)) == 1
    (executed,) = bench.world.executions
    row = await bench.row(run)
    (logged,) = await bench.engine.stored.calls(row)
    assert (executed.tool, executed.key) == ("note", logged.key)
    late = bench.engine.answer(run.key, call, ToolOutput.of("42"), token=lease.token)
    assert await refusal(late) in ("lease_lost", "run_terminal")


async def a_call_that_may_happen_once_is_not_offered_twice(bench: Bench) -> None:
    run = await bench.run(_ONCE)
    (call,) = await bench.offers(run)
    await bench.engine.claim(run.key, call, lease_us=_SHORT_US)
    assert (await bench.ended(run)).status == "succeeded"
    lines = await bench.lines(run)
    assert [one.how for one in facts(lines, CallClosed)] == ["in_doubt"]
    assert not facts(lines, CallUnclaimed)


async def a_lease_survives_a_restart(bench: Bench) -> None:
    run = await bench.run("ask_three")
    kept, left, _ = await bench.offers(run, 3)
    lease = await bench.engine.claim(run.key, kept, by="ann")
    gone = await bench.engine.claim(run.key, left, by="ben")
    await bench.subject.restart()
    assert await refusal(bench.engine.claim(run.key, kept, by="other")) == "lease_held"
    assert await refusal(bench.engine.answer(run.key, left, ToolOutput.of("mine"))) == "lease_held"
    assert (await bench.engine.heartbeat(run.key, kept, lease.token)).token == lease.token
    assert await bench.engine.answer(run.key, kept, ToolOutput.of("42"), token=lease.token)
    assert await bench.engine.answer(run.key, left, ToolOutput.of("43"), token=gone.token)
    await bench.engine.cancel(run.key)


async def a_cancel_ends_every_lease(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    lease = await bench.engine.claim(run.key, call)
    receipt = await bench.engine.cancel(run.key)
    assert [one.id for one in receipt.in_doubt] == [call], "the client may be at work on it"
    assert await refusal(bench.engine.answer(run.key, call, ToolOutput.of("42"), token=lease.token)) == "run_terminal"
    assert await refusal(bench.engine.heartbeat(run.key, call, lease.token)) == "run_terminal"
    assert await refusal(bench.engine.claim(run.key, call)) == "run_terminal"


async def what_cannot_be_claimed_is_refused(bench: Bench) -> None:
    run = await bench.run("ask")
    (call,) = await bench.offers(run)
    assert await refusal(bench.engine.claim(run.key, "nothing")) == "unknown_call"
    assert await refusal(bench.engine.claim(run.key, call, lease_us=0)) == "invalid_request"
    assert await refusal(bench.engine.claim(run.key, call, lease_us=601_000_000)) == "invalid_request"
    assert await refusal(bench.engine.heartbeat(run.key, call, "none")) == "lease_lost"
    await bench.engine.answer(run.key, call, ToolOutput.of("42"))
    await bench.ended(run)


CHECKS: tuple[Check, ...] = (
    one_of_many_claims_wins,
    a_claim_whose_response_was_lost_can_be_repeated,
    a_call_that_is_claimed_is_answered_by_its_client_alone,
    a_release_offers_the_call_at_once,
    a_heartbeat_keeps_the_call_and_not_its_deadline,
    a_heartbeat_extends_the_lease_from_now_on,
    a_lease_that_runs_out_is_offered_again,
    a_token_that_has_run_out_is_good_until_another_client_has_the_call,
    a_plain_client_answers_what_was_offered_again,
    a_lost_lease_is_reported_to_the_model_if_the_run_is_set_so,
    a_tool_of_the_server_takes_the_place_of_a_client_that_is_gone,
    a_call_that_may_happen_once_is_not_offered_twice,
    a_lease_survives_a_restart,
    a_cancel_ends_every_lease,
    what_cannot_be_claimed_is_refused,
)

"""The invariants that can be read off a log alone, each written without the kernel's own code for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from campaigns.simulation.leases import check_leases
from campaigns.simulation.policies import check_policy
from msgspec import Struct, field

from weftline.kernel.context import (
    CompactionFailed,
    CompactionStarted,
    ContextCompacted,
    ContextMeasured,
    ContextRestored,
)
from weftline.kernel.control import CallClaimed, CallUnclaimed
from weftline.kernel.entries import (
    AskedCall,
    AttemptFailed,
    AttemptStarted,
    AwaitClosed,
    AwaitOpened,
    BudgetExceeded,
    CallAsked,
    CallClosed,
    CallGated,
    CallOpened,
    CallStarted,
    CancelRequested,
    ChildEnded,
    Fact,
    FinalForced,
    Limits,
    Over,
    ResultsOverBudget,
    RunAdopted,
    RunCreated,
    RunEnded,
    TimerFired,
    TurnCompleted,
)
from weftline.kernel.policy import CapReached
from weftline.kernel.seats import SeatClosing, SeatTaken
from weftline.messages import Usage

from .order import every_call_is_answered_before_the_run_goes_on, nothing_starts_in_a_pause_or_past_a_deadline
from .world import Entry

Log: TypeAlias = Sequence[Entry]


class Opened(Struct):
    at: int
    head: CallOpened


class Started(Struct):
    epoch: int
    position: int
    head: CallStarted


class Closed(Struct):
    epoch: int
    position: int
    head: CallClosed


class CallStory(Struct):
    """All that a log says of one call."""

    asked: AskedCall
    asks: bool = False
    """Whether it needs a person."""
    approvals: list[tuple[Entry, AwaitClosed]] = field(default_factory=list[tuple[Entry, AwaitClosed]])
    fallback: str = ""
    """The tool that carries it out in its client's place."""
    lost: bool = False
    """Its client had claimed it and is gone."""
    doubts_lifted: int = 0
    """How often a person said that it did not happen."""
    opened: list[Opened] = field(default_factory=list[Opened])
    started: list[Started] = field(default_factory=list[Started])
    closed: list[Closed] = field(default_factory=list[Closed])


def stories(log: Log) -> dict[tuple[int, int], CallStory]:
    found: dict[tuple[int, int], CallStory] = {}
    kinds: dict[str, str] = {}
    epoch = 0
    for position, entry in enumerate(log):
        match entry.head:
            case RunAdopted() as head:
                epoch = head.epoch
            case TurnCompleted() as head:
                for index, asked in enumerate(head.calls):
                    found[head.turn, index] = CallStory(asked, asked.asks is not None)
            case CallAsked() as head:
                assert (head.turn, head.index) not in found
                parent = found[head.turn, head.parent]
                assert parent.started
                assert not parent.closed
                assert parent.asked.host
                found[head.turn, head.index] = CallStory(head.call, head.call.asks is not None)
            case CallGated() as head:
                found[head.turn, head.index].asks = head.asks is not None
            case AwaitOpened() as head:
                kinds[head.id] = head.kind
            case AwaitClosed(outcome="approved") as head:
                found[head.turn, head.index].approvals.append((entry, head))
                found[head.turn, head.index].doubts_lifted += kinds[head.id] == "doubt"
            case CallClaimed() as head:
                found[head.turn, head.index].lost = True
            case CallUnclaimed() as head:
                found[head.turn, head.index].fallback = head.fallback
            case CallOpened() as head:
                found[head.turn, head.index].opened.append(Opened(entry.at, head))
            case CallStarted() as head:
                found[head.turn, head.index].started.append(Started(epoch, position, head))
            case CallClosed() as head:
                found[head.turn, head.index].closed.append(Closed(epoch, position, head))
            case _:
                pass
    return found


def limits_of(log: Log) -> Limits:
    first = log[0].head
    assert isinstance(first, RunCreated)
    return first.limits


def heads(log: Log) -> list[Fact]:
    return [entry.head for entry in log]


def one_terminal_and_nothing_after_it(log: Log) -> None:
    """K6"""
    ends = [position for position, head in enumerate(heads(log)) if isinstance(head, RunEnded)]
    assert ends in ([], [len(log) - 1])


def calls_open_before_they_start_and_close_once(log: Log) -> None:
    """K8"""
    for key, story in stories(log).items():
        assert len(story.opened) <= 1, key
        assert len(story.closed) <= 1, key
        assert not story.started or (story.opened and not story.opened[0].head.blocked), key
        assert not (story.started and story.asked.client) or story.fallback, key
        if not story.closed:
            continue
        how = story.closed[0].head.how
        if how == "in_doubt":
            lost = story.started and story.started[-1].epoch < story.closed[0].epoch
            if story.asked.client and story.lost and not story.fallback:
                continue  # `check_leases` looks at it
            assert story.started, key
            cut = any(isinstance(head, CapReached) for head in heads(log)[: story.closed[0].position])
            assert lost or cut or _only_closings_until_the_end(log, story.closed[0].position), key
        elif how in ("returned", "failed"):
            assert story.started or story.asked.client or story.asked.child, key
        elif how in ("unknown", "invalid", "budget", "loop", "skipped", "repeat_of_doubt", "denied"):
            assert not story.started, key


def _only_closings_until_the_end(log: Log, position: int) -> bool:
    rest = heads(log)[position + 1 :]
    closings = CallOpened | CallClosed | AwaitClosed | AttemptFailed | CompactionFailed | RunEnded
    return bool(rest) and all(isinstance(head, closings) for head in rest)


def nothing_starts_after_a_cancel(log: Log) -> None:
    """K9"""
    cancelled = False
    for head in heads(log):
        match head:
            case CancelRequested():
                cancelled = True
            case AttemptStarted() | CallStarted() | AwaitOpened() | CompactionStarted():
                assert not cancelled
            case CallOpened():
                assert not cancelled or head.blocked
            case RunEnded():
                assert cancelled == (head.status == "cancelled")
                assert not (cancelled and head.code)
            case _:
                pass


def the_final_turn_is_forced_once(log: Log) -> None:
    """K11"""
    forced, closing = "", False
    completed = 0
    for head in heads(log):
        match head:
            case FinalForced():
                assert not forced
                forced = head.reason
            case SeatClosing():
                closing = True
            case SeatTaken():
                closing = False
            case AttemptStarted():
                assert head.final == (bool(forced) or closing)
            case CallStarted():
                assert not forced
                assert not closing
            case TurnCompleted():
                completed += bool(forced)
                assert completed <= 1
            case RunEnded():
                if forced and head.status != "cancelled":
                    assert head.reason == forced
            case _:
                pass


def budgets_hold(log: Log) -> None:
    """K12"""
    max_calls = limits_of(log).tool_budgets
    counted: Counter[str] = Counter()
    told: dict[str, int] = {}
    answered: Counter[str] = Counter()
    kept: list[tuple[int, int]] = []
    held: dict[tuple[int, int], str] = {}
    names = {key: story.asked.name for key, story in stories(log).items()}
    for head in heads(log):
        match head:
            case AwaitOpened() if head.kind != "doubt":
                held[head.turn, head.index] = names[head.turn, head.index]
            case CallOpened() if not head.blocked:
                held.pop((head.turn, head.index), None)
                counted[head.name] += 1
            case CallOpened():
                held.pop((head.turn, head.index), None)
            case CallClosed() if head.how in ("unknown", "invalid"):
                counted[head.name] += 1
            case CallClosed() if head.how == "skipped":
                counted[head.name] -= 1
            case CallClosed() if head.how == "answered":
                answered[head.name] += 1  # counts, but a gate's answer goes before a spent budget
            case CallClosed() if head.how == "budget":
                spoken_for = list(held.values()).count(head.name)
                assert counted[head.name] + answered[head.name] + spoken_for >= max_calls[head.name]
            case CallGated(over=Over() as over):
                kept.append((over.max_calls, over.call_index))
            case BudgetExceeded() if (head.max_calls, head.call_index) in kept:
                kept.remove((head.max_calls, head.call_index))  # a budget of the agent's code, told once
            case BudgetExceeded():
                assert head.call_index > max(head.max_calls, told.get(head.tool, 0))
                assert head.max_calls == max_calls[head.tool]
                told[head.tool] = head.call_index
            case _:
                pass
        assert all(counted[tool] <= most for tool, most in max_calls.items())


def large_results_are_talked_about_once(log: Log) -> None:
    """Before the model is asked again, and never in a run that is being brought to its end."""
    budget = limits_of(log).tool_output_budget_bytes
    size, told, forced = 0, False, False
    for head in heads(log):
        match head:
            case CallClosed() if not head.parent:
                size += head.size
            case ResultsOverBudget():
                assert budget is not None
                assert head.bytes == size > budget == head.budget
                assert not told
                told = True
            case FinalForced():
                forced = True
            case AttemptStarted() if head.attempt == 1:
                assert forced or told == (budget is not None and size > budget)
                size, told = 0, False
            case _:
                pass


def attempts_rise_and_only_the_open_one_ends(log: Log) -> None:
    """K13"""
    turn, attempt, is_open = 0, 0, False
    for head in heads(log):
        match head:
            case AttemptStarted():
                assert not is_open
                assert (head.turn, head.attempt) == (turn, attempt + 1)
                attempt, is_open = head.attempt, True
            case AttemptFailed() | TurnCompleted():
                assert is_open
                assert (head.turn, head.attempt) == (turn, attempt)
                is_open = False
                if isinstance(head, TurnCompleted):
                    turn, attempt = turn + 1, 0
            case RunEnded():
                assert not is_open
            case _:
                pass


def no_call_starts_twice_but_by_right(log: Log) -> None:
    """K14"""
    adoptions = [(position, head) for position, head in enumerate(heads(log)) if isinstance(head, RunAdopted)]
    for key, story in stories(log).items():
        attempts = [one.head.attempt for one in story.started]
        assert attempts == list(range(1, len(attempts) + 1)), key
        assert len({one.epoch for one in story.started}) == len(attempts), key
        assert len(story.started) <= 1 + story.doubts_lifted or story.asked.effect != "once", key
        for position, adopted in adoptions:
            begun = any(one.position < position for one in story.started)
            ended = any(one.position < position for one in story.closed)
            strict = (
                adopted.effects.get(story.fallback or story.asked.name, "once") == "once" and not story.doubts_lifted
            )
            if begun and not ended and strict:
                assert all(one.position < position for one in story.started), key


def doubt_blocks_the_same_call(log: Log) -> None:
    """K23"""
    if limits_of(log).in_doubt_followup == "allow":
        return
    digests = {key: story.opened[0].head.digest for key, story in stories(log).items() if story.opened}
    doubts: set[tuple[str, str]] = set()
    for head in heads(log):
        match head:
            case CallClosed() if head.how == "in_doubt":
                doubts.add((head.name, digests[head.turn, head.index]))
            case CallOpened() if not head.blocked:
                assert (head.name, head.digest) not in doubts
            case _:
                pass


def usage_and_active_time_are_sums(log: Log) -> None:
    """K24"""
    usage, active_us = Usage(), 0
    for head in heads(log):
        match head:
            case AttemptFailed() | TurnCompleted() | CompactionFailed() | ContextCompacted():
                usage += head.usage
                active_us += head.active_us
            case CallClosed():
                active_us += head.active_us
            case ChildEnded():
                usage += head.usage
            case RunEnded():
                assert (head.usage, head.active_us) == (usage, active_us)
            case _:
                pass


def no_run_ends_over_an_open_child(log: Log) -> None:
    """K25"""
    limits = limits_of(log)
    children: set[tuple[int, int]] = set()
    for head in heads(log):
        match head:
            case CallStarted() if head.child:
                children.add((head.turn, head.index))
                assert len(children) <= limits.max_children
                assert limits.max_depth
            case ChildEnded():
                children.remove((head.turn, head.index))
            case CallClosed():
                assert (head.turn, head.index) not in children
            case AttemptStarted() | RunEnded():
                assert not children
            case _:
                pass


def no_await_is_forgotten_or_closed_twice(log: Log) -> None:
    """K26"""
    seen: set[str] = set()
    open_now: dict[tuple[int, int], str] = {}
    for head in heads(log):
        match head:
            case AwaitOpened():
                assert head.id not in seen
                assert (head.turn, head.index) not in open_now
                seen.add(head.id)
                open_now[head.turn, head.index] = head.id
            case AwaitClosed():
                assert open_now.pop((head.turn, head.index)) == head.id
            case CallOpened() | CallStarted() | CallClosed():
                assert (head.turn, head.index) not in open_now
            case AttemptStarted() | RunEnded():
                assert not open_now
            case _:
                pass


def summaries_end_once_and_never_the_run(log: Log) -> None:
    """K28: one at a time, only with nothing else under way, none twice, and not again and again for the same size."""
    rule = limits_of(log).compaction
    number, is_open, attempt_open, not_below, cause = 0, False, False, 0, "size"
    undone, tokens, turns = False, 0, 0
    for head in heads(log):
        match head:
            case ContextMeasured():
                tokens, turns = head.tokens, head.turns
            case CompactionStarted():
                assert rule is not None
                assert not is_open
                assert not attempt_open
                assert head.number == number + 1
                number, is_open, cause = head.number, True, head.cause
                if cause == "size":
                    assert not undone
                    large = rule.at_tokens is not None and tokens > max(rule.at_tokens, not_below)
                    assert large or (rule.at_turns is not None and turns >= rule.at_turns)
            case ContextCompacted() | CompactionFailed():
                assert is_open
                assert head.number == number
                is_open = False
                step = (rule.at_tokens or 0) // 4 if rule is not None else 0
                if isinstance(head, ContextCompacted):
                    not_below = head.after + step
                elif cause == "size" and head.reason in ("error", "useless"):
                    not_below = tokens + step
            case ContextRestored():
                undone = True
            case AttemptStarted():
                assert not is_open
                attempt_open = True
            case AttemptFailed() | TurnCompleted():
                attempt_open = False
            case RunEnded():
                assert not is_open
            case _:
                pass


def no_call_begins_without_the_grant_it_needs(log: Log) -> None:
    """K27: bound to the digest of what begins, given by somebody, and not too old."""
    ttl_us = limits_of(log).grant_ttl_us
    told = stories(log)
    now = 0
    for position, entry in enumerate(log):
        match entry.head:
            case TimerFired() as head:
                now = max(now, head.now)
            case CallStarted(attempt=1) | CallOpened(blocked=False) as head:
                story = told[head.turn, head.index]
                if not story.asks or (isinstance(head, CallOpened) and head.client is None):
                    continue
                granted = [given for given in story.approvals if log.index(given[0]) < position]
                assert granted, (head.turn, head.index)
                given, approval = granted[-1]
                assert approval.by
                assert approval.digest == story.opened[0].head.digest
                assert (isinstance(head, CallStarted) and head.child) or now < given.at + ttl_us
            case _:
                pass


def an_overflow_is_answered_by_one_summary_in_a_turn(log: Log) -> None:
    """K29: a request that stays too long ends the run, or goes to the next model, instead of being cut for ever."""
    made: Counter[int] = Counter()
    for head in heads(log):
        match head:
            case CompactionStarted() if head.cause == "context_window":
                assert not made[head.turn]
            case AttemptStarted() if head.cause == "context_window":
                made[head.turn] += 1
                assert made[head.turn] <= 1 + limits_of(log).fallbacks
            case _:
                pass


LAWS = (
    no_await_is_forgotten_or_closed_twice,
    no_call_begins_without_the_grant_it_needs,
    one_terminal_and_nothing_after_it,
    every_call_is_answered_before_the_run_goes_on,
    calls_open_before_they_start_and_close_once,
    nothing_starts_after_a_cancel,
    nothing_starts_in_a_pause_or_past_a_deadline,
    the_final_turn_is_forced_once,
    budgets_hold,
    attempts_rise_and_only_the_open_one_ends,
    no_call_starts_twice_but_by_right,
    doubt_blocks_the_same_call,
    usage_and_active_time_are_sums,
    no_run_ends_over_an_open_child,
    summaries_end_once_and_never_the_run,
    an_overflow_is_answered_by_one_summary_in_a_turn,
    check_policy,
    check_leases,
)


def hold(log: Log) -> None:
    for law in LAWS:
        law(log)

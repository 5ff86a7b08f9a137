"""Policies: how far a run may go, and how its active time is measured.

    a cap is reached ──▶ cap.reached ──▶ every call has its result ──▶ final.forced ──▶ one turn without tools

The calls of a turn are judged together, before the first of them is announced. The filters and the policy engine remove
some, the limit per turn removes those beyond it, and the rest must fit into the cap on calls, or none of it runs. The
clock adds up the time between facts, except while the run waits for people, clients or a resume. When the time budget
is used up, whatever is running is cut off; calls of bookkeeping tools, the results of child runs that have ended, the
check of an answer and the final turn have until the end of the grace period.
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from weftline import prompts
from weftline.kernel import compaction
from weftline.kernel.endings import await_closed, blocked, closed, end, result_of_answer, settled
from weftline.kernel.entries import CallClosed, Fact, How
from weftline.kernel.policy import (
    GRACE_US,
    Cap,
    CapReached,
    MissingFields,
    PolicyDecided,
    PolicyRule,
    RunUnattended,
    tighter,
)
from weftline.kernel.state import ActiveTime, Call, ConsultPolicy, Decision, New, State

_COUNTED = frozenset[How]({"unknown", "invalid", "answered", "denied"})
"""Calls that count although they were never announced as able to begin."""
_FAILED = frozenset[How]({"failed", "timeout", "in_doubt"})
_REFUSED = frozenset[How | None]({"excluded", "cap", "blocked", "budget", "loop", "repeat_of_doubt", "not_run"})
"""Calls that do not count towards the limit per turn."""
_REPEATABLE = ("read", "idempotent")


# Decisions


def out_of_time(s: State) -> Decision | None:
    """Cuts off whatever is running when the time is up; None if there is time left, or nothing is running."""
    rule = s.limits.policy
    if rule is None or not _is_over(s):
        return None
    if s.guards.final:
        if s.attempt.open:
            return Decision((New(settled(s, "abandoned")),))
        return _no_answer(s) if s.step == "model" or (s.step == "batch" and not s.batch.unclosed) else None
    append: list[New] = []
    if s.compaction.open:
        append.append(New(compaction.settled(s, "abandoned")))
    elif s.attempt.open:
        append.append(New(settled(s, "abandoned")))
    elif s.step == "batch" and s.batch.unclosed:
        append += _cut_off(s, rule)
    else:
        return None  # the next model call will be the final one
    if s.policy.reached != "time_budget":
        append.insert(0, New(CapReached("time_budget", rule.time_budget_us or 0, s.policy.time.us)))
    return Decision(tuple(append)) if append else None


def late_check(s: State) -> Decision | None:
    """Decides what follows if the time is up while the agent's code checks an answer: it has until the end of the grace
    period. None if there is time left.
    """
    rule = s.limits.policy
    if rule is None or not _is_over(s):
        return None
    if s.guards.final or s.policy.reached == "time_budget":
        code = s.guards.final or "time_budget"
        text = f"The run was brought to its end ({code}), and its answer was not checked in time."
        return end(s, "failed", code=code, reason=code, text=text)
    return Decision((New(CapReached("time_budget", rule.time_budget_us or 0, s.policy.time.us)),))


def before_batch(s: State) -> Decision | None:
    """Judges the calls of a turn before any of them is announced; None if they may be admitted as they are."""
    rule, batch, use = s.limits.policy, s.batch, s.policy
    if rule is None or use.reached or not batch.asked or batch.asked < len(batch.calls):
        return None
    turn = s.turn - 1
    if rule.engine and use.decided != turn:
        return Decision(start=() if s.control.paused else (ConsultPolicy(turn),))
    if rule.engine and use.disabled:
        refused = [blocked(s, index, "cap", prompts.policy.TOOLS_DISABLED) for index in range(len(batch.calls))]
        return Decision((New(CapReached("policy")), *_flat(refused)))
    append: list[New] = []
    left: list[int] = []
    for index, call in enumerate(batch.calls):
        if rule.engine and use.failed:
            append += blocked(s, index, "blocked", prompts.policy.policy_failed(call.name))
        elif call.verdict == "excluded" or (rule.engine and use.allowed is not None and call.name not in use.allowed):
            append += blocked(s, index, "excluded", why_excluded(s, call.name))
        elif not call.bookkeeping:
            left.append(index)
    per_turn = rule.per_turn_max_tool_calls
    if per_turn is not None:
        for index in left[per_turn:]:
            append += blocked(s, index, "cap", prompts.policy.over_turn_limit(per_turn))
        left = left[:per_turn]
    limit = call_cap(s)
    if limit is not None and use.calls + _needed(s, left) > limit:
        refused = [blocked(s, index, "cap", prompts.policy.over_call_cap(limit)) for index in left]
        return Decision((New(CapReached("tool_cap", limit, use.calls)), *append, *_flat(refused)))
    return Decision(tuple(append)) if append else None


def lacks_something(s: State) -> MissingFields | None:
    """Decides what follows from a turn in which a result reports that something is missing; None if nothing does."""
    rule = s.limits.policy
    if rule is None or s.batch.lacking is None or s.guards.final or s.policy.reached or s.guards.given_up:
        return None
    asks = rule.on_missing_fields == "await_clarification"
    return None if asks and not s.limits.interrupts_allowed else rule.on_missing_fields


def before_nested(s: State, call: Call, *, admitted: int) -> tuple[How, str] | CapReached | None:
    """Returns the reason why a nested call may not begin: how it is closed and the text for that, or the cap that it
    would exceed.

    `admitted` is how many nested calls are announced in the same append. The calls of the turn have been judged before;
    what the policy engine decided about them applies to this one too.
    """
    rule, use = s.limits.policy, s.policy
    if rule is None:
        return None
    if rule.engine and use.allowed is not None and call.name not in use.allowed:
        return "excluded", why_excluded(s, call.name)
    if call.bookkeeping:
        return None
    if use.reached:
        return "cap", prompts.policy.TOOLS_DISABLED
    per_turn = rule.per_turn_max_tool_calls
    held = sum([one.held and not one.bookkeeping for one in s.batch.calls]) if s.batch.held else 0
    if per_turn is not None and _begun(s) + held + admitted >= per_turn:
        return "cap", prompts.policy.over_turn_limit(per_turn)
    limit = call_cap(s)
    if limit is not None and use.calls + held + admitted >= limit:
        return CapReached("tool_cap", limit, use.calls)
    return None


def _begun(s: State) -> int:
    """Returns the number of the turn's calls that count as its calls."""
    calls = s.batch.calls
    return sum([one.stage != "asked" and one.how not in _REFUSED and not one.bookkeeping for one in calls])


def why_excluded(s: State, tool: str) -> str:
    return prompts.policy.withheld(tool) if tool in s.guards.withheld else prompts.policy.excluded(tool)


def reached(s: State) -> Cap | None:
    """The cap that makes the next model call the final one."""
    rule = s.limits.policy
    if rule is None:
        return None
    match s.policy.reached:
        case "time_budget" | "tool_cap" | "failure_cap" | "policy" as cap:
            return cap
        case _:
            pass
    if is_late(s):
        return "time_budget"
    most = failure_cap(s)
    return "failure_cap" if most is not None and s.policy.failures >= most else None


def is_late(s: State) -> bool:
    """Returns True if the time budget is used up."""
    rule = s.limits.policy
    return rule is not None and rule.time_budget_us is not None and s.policy.time.us >= rule.time_budget_us


def deadline_at(s: State) -> int | None:
    """When the time is up if the run stays active; None if its clock is stopped, or it has no time limit.

    Also None if the time is up already, because everything that follows from that has been done.
    """
    time, limit = s.policy.time, _limit_us(s)
    if time.since is None or limit is None or time.us >= limit:
        return None
    return time.since + limit - time.us


def time_left_us(s: State) -> int | None:
    """Returns the rest of the time budget at the latest fact, at least 1; None if there is no budget."""
    budget = None if s.limits.policy is None else s.limits.policy.time_budget_us
    return None if budget is None else max(budget - s.policy.time.us, 1)


def is_due(s: State, at: int) -> bool:
    """Returns True if the time is up at `at`, unknown to the state: the timer is late, or no process was running."""
    rule, time = s.limits.policy, s.policy.time
    if rule is None or time.since is None:
        return False
    budget = rule.time_budget_us
    limits = (_limit_us(s),) if budget is None else (budget, budget + _grace_us(rule))
    now_us = time.us + at - time.since
    return any(limit is not None and time.us < limit <= now_us for limit in limits)


def call_cap(s: State) -> int | None:
    return tighter(s.limits.policy and s.limits.policy.max_tool_calls, s.policy.max_calls)


def failure_cap(s: State) -> int | None:
    return tighter(s.limits.policy and s.limits.policy.max_consecutive_failed_tool_calls, s.policy.max_failures)


def _limit_us(s: State) -> int | None:
    """Returns the active time that the run may use in its current phase."""
    rule = s.limits.policy
    if rule is None:
        return None
    budget, grace = rule.time_budget_us, rule.finalizer_grace_us
    if s.guards.final and budget is None:
        bound = rule.plan_timeout_us if grace is None else grace
        return None if bound is None else (s.policy.time.final_us or 0) + bound
    if budget is None:
        return None
    in_grace = bool(s.guards.final) or s.policy.reached == "time_budget"
    return budget + _grace_us(rule) if in_grace else budget


def _grace_us(rule: PolicyRule) -> int:
    return GRACE_US if rule.finalizer_grace_us is None else rule.finalizer_grace_us


def _is_over(s: State) -> bool:
    limit = _limit_us(s)
    return limit is not None and s.policy.time.us >= limit


def _no_answer(s: State) -> Decision:
    final = s.guards.final
    text = f"The run was brought to its end ({final}), and the model gave no final answer in time."
    return end(s, "failed", code=final, reason=final, text=text)


def _cut_off(s: State, rule: PolicyRule) -> list[New]:
    """Answers the calls that have no result. The runtime cancels child runs, and their calls are closed then."""
    append: list[New] = []
    in_grace = s.policy.reached != "time_budget"
    for index, call in enumerate(s.batch.calls):
        if call.stage == "closed" or call.waits_for_child or (call.child_ended and in_grace):
            continue
        if call.bookkeeping and in_grace and (call.stage != "asked" or not rule.engine):
            continue  # it has until the end of the grace period, unless the policy engine might still refuse it
        if call.awaiting:
            append.append(await_closed(s, index, "withdrawn"))
        if results := result_of_answer(s, index):
            append += results
        elif call.stage == "asked":
            append += blocked(s, index, "not_run", prompts.policy.NO_TIME_TO_BEGIN)
        elif (call.stage == "opened" and call.client is None) or call.asked_back:
            append.append(closed(s, index, "not_run", prompts.policy.NO_TIME_TO_BEGIN))
        else:
            in_doubt = call.client is None and call.effect not in _REPEATABLE
            text = prompts.policy.out_of_time(call.name, in_doubt=in_doubt)
            append.append(closed(s, index, "in_doubt" if in_doubt else "timeout", text))
    return append


def _needed(s: State, left: list[int]) -> int:
    """Returns how many of these calls will count. Calls that a tool budget refuses do not, unless gates or people may
    still change which those are.
    """
    calls = s.batch.calls
    if any(call.gated or call.asks is not None for call in calls):
        return len(left)
    used = Counter({tool: use.used for tool, use in s.guards.budgets.items()})
    needed = 0
    for index in left:
        tool = calls[index].name
        limit = s.limits.tool_budgets.get(tool)
        if limit is None or used[tool] < limit:
            needed += 1
            used[tool] += 1
    return needed


def _flat(pairs: list[tuple[New, New]]) -> list[New]:
    return [new for pair in pairs for new in pair]


# Folds


def keep_time(before: State, after: State, head: Fact, at: int) -> State:
    """Reads the clock: the time since the previous fact counts if the run was active."""
    time = after.policy.time
    since = time.since
    us = time.us
    if since is not None:
        # What an earlier process did after its last fact is unknown, but the wait before a retry continues without it.
        until = at if type(head) is not RunUnattended else min(at, before.attempt.retry_at or 0)
        us += max(until - since, 0)
    now = at if since is None else max(at, since)
    final_us = us if after.guards.final and time.final_us is None else time.final_us
    read = ActiveTime(us, now if _is_at_work(after) else None, final_us)
    return after if read == time else replace(after, policy=replace(after.policy, time=read))


def _is_at_work(s: State) -> bool:
    """Returns True if the run's clock is running. It starts with the first model call."""
    if s.ended or not s.totals.attempts:
        return False
    if s.attempt.open or s.compaction.open:
        return True
    if any(_is_running(s, s.batch.calls[index]) and not s.is_waiting(index) for index in s.batch.running):
        return True
    if s.control.paused or s.questions.open:
        return False
    return not any(_has_idle_child(s.batch.calls[index]) for index in s.batch.running)


def _is_running(s: State, call: Call) -> bool:
    """Returns True if the call is executing. A call interrupted by a crash does not begin again before a resume."""
    return not call.awaiting and not _has_idle_child(call) and not (call.lost and s.control.paused)


def _has_idle_child(call: Call) -> bool:
    return call.child_waits and call.waits_for_child


def is_clock_stopped(s: State) -> bool:
    """Returns True if the clock of a run that has begun is stopped, because it waits for somebody outside."""
    return bool(s.totals.attempts) and not s.ended and not s.control.cancel and not _is_at_work(s)


def cap_reached(s: State, head: CapReached, at: int) -> State:
    # The time may run out while calls are running in a run that has reached another cap: then they are cut off.
    reason = head.reason if head.reason == "time_budget" else s.policy.reached or head.reason
    use = replace(s.policy, reached=reason)
    return replace(s, version=s.version + 1, policy=use)


def decided(s: State, head: PolicyDecided, at: int) -> State | None:
    """The state after the fact, or None if the fact contradicts the state."""
    use = s.policy
    if head.turn != s.turn - 1 or use.decided >= head.turn:
        return None
    most_calls = None if head.calls_left is None else use.calls + max(head.calls_left, 0)
    most_failures = None if head.failures_left is None else use.failures + max(head.failures_left, 0)
    use = replace(
        use,
        decided=head.turn,
        allowed=head.allowed,
        disabled=head.disable_tools,
        failed=head.failed,
        max_calls=tighter(use.max_calls, most_calls),
        max_failures=tighter(use.max_failures, most_failures),
    )
    return replace(s, version=s.version + 1, policy=use)


def opened(s: State, call: Call) -> State:
    """Counts a call that may begin, in a run with a policy."""
    return s if call.bookkeeping else _count(s, 1)


def call_closed(s: State, call: Call, head: CallClosed) -> State:
    """Counts the result of a call towards the caps. In `s`, the call is already closed."""
    rule = s.limits.policy
    if rule is None or call.bookkeeping:
        return s if rule is None else _after_batch(s, rule)
    if head.how in _COUNTED and call.stage != "started":
        s = _count(s, 1)
    elif head.how == "skipped":
        s = _count(s, -1)
    failed = head.how in _FAILED
    succeeded = head.how in ("returned", "answered") and not head.is_error
    if failed or succeeded:
        s = replace(s, batch=replace(s.batch, good=s.batch.good + succeeded, bad=s.batch.bad + failed))
        if rule.failure_counting == "call":
            failures = 0 if succeeded else s.policy.failures + 1
            s = replace(s, policy=replace(s.policy, failures=failures))
    return _after_batch(s, rule)


def _after_batch(s: State, rule: PolicyRule) -> State:
    batch = s.batch
    if batch.unclosed or rule.failure_counting != "turn" or not (batch.good or batch.bad):
        return s
    failures = 0 if batch.good else s.policy.failures + 1
    return replace(s, policy=replace(s.policy, failures=failures))


def _count(s: State, calls: int) -> State:
    return replace(s, policy=replace(s.policy, calls=s.policy.calls + calls))

"""In policies and their clocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from campaigns.simulation.orders import Order
from campaigns.simulation.store import SimulatedLog
from msgspec.structs import replace

from simulation.planted.bug import KILLS, POLICIES, Bug, DecidesOnAnotherState
from weftline.kernel.policy import PolicyRule
from weftline.kernel.state import ActiveTime, State
from weftline.runtime.driver import TakeStep
from weftline.store.rows import Loaded


def sees(**use: Any) -> Callable[[], TakeStep]:
    return lambda: DecidesOnAnotherState(lambda state: replace(state, policy=replace(state.policy, **use)))


def _with_a_fast_clock(state: State) -> State:
    time = state.policy.time
    return replace(state, policy=replace(state.policy, time=replace(time, us=2 * time.us)))


class TakesDowntimeForWork(SimulatedLog):
    """A run that another process drove looks like one of this one's."""

    async def claim(self, key: int, *, kinds: Sequence[str]) -> Loaded | None:
        loaded = await super().claim(key, kinds=kinds)
        return None if loaded is None else replace(loaded, taken_over=False)


def _counts_calls(order: Order) -> None:
    order.policy = PolicyRule(max_tool_calls=4)


def _counts_failures(order: Order) -> None:
    order.policy = PolicyRule(max_consecutive_failed_tool_calls=1, failure_counting="call")


BUGS = (
    Bug("forgets_the_calls_of_earlier_turns", "P1", step=sees(calls=0), among=POLICIES, provoke=_counts_calls),
    Bug("forgets_failures", "P5", step=sees(failures=0), among=POLICIES, provoke=_counts_failures),
    Bug("lets_an_engine_loosen", "P1 P4", step=sees(allowed=None, max_calls=None, failed=False), among=POLICIES),
    Bug("goes_on_after_the_time_is_up", "P2", step=sees(time=ActiveTime()), among=POLICIES),
    Bug("has_a_fast_clock", "P3", step=lambda: DecidesOnAnotherState(_with_a_fast_clock), among=POLICIES),
    Bug("takes_downtime_for_work", "P7", log=TakesDowntimeForWork, among=POLICIES, odds=KILLS),
)

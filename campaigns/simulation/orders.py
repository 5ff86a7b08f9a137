"""The runs of a history, and how its world behaves: everything a seed decides before anything happens."""

from __future__ import annotations

from random import Random
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from campaigns.simulation.model import DEADLY, DOOMED, MODEL
from campaigns.simulation.tools import (
    ASKING,
    ASKS_A_QUESTION,
    ASKS_BACK,
    BOOKKEEPING,
    BROKEN,
    CLIENT_TOOL,
    CODE,
    KILLER,
    LACKS,
    SERVER_TOOLS,
    SHAKY,
    SLOW_KILLER,
    SUBAGENTS,
)
from campaigns.simulation.world import Manners
from weftline.kernel.control import LeaseRule
from weftline.kernel.entries import Limits
from weftline.kernel.policy import BudgetRule, MissingFields, PolicyRule
from weftline.messages import User
from weftline.plan import LocalRef, RunPlan, ServerRef, ToolRef

FALLBACK = SERVER_TOOLS[0]
"""The tool that executes calls of clients that are gone."""
DEADLIES = frozenset({KILLER, SLOW_KILLER, DEADLY})
"""Tools and models that make a run kill the process."""


class Order(Struct, kw_only=True):
    """A run that a client is going to create."""

    tag: str
    thread: int | None = None
    model: str = MODEL
    tools: tuple[str, ...] = ()
    client_tool: bool = False
    timeout_s: float = 300.0
    on_timeout: Literal["end", "report"] = "end"
    answers: bool = True
    """Whether its client-side calls are answered."""
    await_timeout_s: float | None = None
    on_await_expired: Literal["deny", "end"] = "deny"
    grant_ttl_s: float = 900.0
    in_doubt: Literal["report", "ask"] = "report"
    policy: PolicyRule | None = None
    claims: bool = False
    """Whether its clients claim calls."""
    leases: LeaseRule | None = None
    budget: BudgetRule | None = None
    max_depth: int = 3
    run_id: str | None = None
    """The id that its clients choose for it; there are two of them, one of which is rejected."""
    poison: str = ""
    """What is wrong with it, for a run that may be given up."""

    @property
    def plan(self) -> RunPlan:
        tools: list[ToolRef] = [ServerRef(name) for name in self.tools]
        if self.client_tool:
            tools.append(LocalRef(CLIENT_TOOL))
        return RunPlan(
            name=self.tag,
            model=self.model,
            system=self.tag,
            messages=(User.of(f"prompt of {self.tag}"),),
            tools=tuple(tools),
            metadata={"tag": self.tag} | self._callable,
            limits=Limits(
                local_timeout_us=int(self.timeout_s * 1_000_000),
                on_local_timeout=self.on_timeout,
                await_timeout_us=None if self.await_timeout_s is None else int(self.await_timeout_s * 1_000_000),
                on_await_expired=self.on_await_expired,
                grant_ttl_us=int(self.grant_ttl_s * 1_000_000),
                in_doubt=self.in_doubt,
                policy=self.policy,
                leases=self.leases,
                budget=self.budget,
                max_depth=self.max_depth,
            ),
        )

    @property
    def _callable(self) -> dict[str, str]:
        """What the code of the run may call."""
        if CODE not in self.tools:
            return {}
        others = [name for name in self.tools if name != CODE]
        return {"callable": ",".join([*others, *([CLIENT_TOOL] if self.client_tool else [])])}

    @property
    def deadly(self) -> bool:
        return self.poison in DEADLIES


def choose_manners(rng: Random) -> Manners:
    return Manners(
        errors=rng.choice((0.0, 0.1, 0.4)),
        slow=rng.choice((0.0, 0.0, 0.02)),
        long=rng.choice((0.0, 0.0, 0.2)),
        stubborn=rng.choice((0.0, 0.5)),
        turns=rng.choice((3, 3, 6)),
    )


def choose_orders(rng: Random, threads: list[int]) -> dict[str, Order]:
    orders = [_innocent(rng, f"r{number}", threads) for number in range(rng.randrange(2, 7))]
    if rng.random() < 0.25:
        orders.append(_poison(rng, rng.choice((KILLER, SLOW_KILLER, DEADLY, BROKEN, DOOMED)), threads))
    if rng.random() < 0.1:
        orders.append(Order(tag="shaky", tools=(SHAKY,)))
    return {order.tag: order for order in orders}


def involve_people(orders: dict[str, Order], rng: Random) -> None:
    """Makes some of the runs ask people."""
    for order in orders.values():
        if order.poison or rng.random() < 0.3:
            continue
        order.tools += tuple(rng.sample((*ASKING, ASKS_A_QUESTION), rng.randrange(1, 4)))
        order.await_timeout_s = rng.choice((None, None, 3.0, 60.0))
        order.on_await_expired = rng.choice(("deny", "deny", "end"))
        order.grant_ttl_s = rng.choice((900.0, 900.0, 0.5))
        order.in_doubt = rng.choice(("report", "ask"))


def leave_questions(orders: dict[str, Order], rng: Random) -> None:
    """Makes tools of some runs ask people, or fail because something is missing, and has people decide every doubt."""
    for order in orders.values():
        if order.poison or rng.random() < 0.2:
            continue
        order.tools += tuple(rng.sample((ASKS_BACK, LACKS), rng.randrange(1, 3)))
        order.await_timeout_s = rng.choice((None, None, 3.0, 60.0))
        order.on_await_expired = rng.choice(("deny", "deny", "end"))
        order.in_doubt = "ask"
        lacking: MissingFields | None = rng.choice((None, "finalize", "await_clarification", "await_clarification"))
        order.policy = replace(order.policy or PolicyRule(), on_missing_fields=lacking)


def set_policies(orders: dict[str, Order], rng: Random) -> None:
    """Makes a policy end some of the runs."""
    for order in orders.values():
        if order.poison or rng.random() < 0.2:
            continue
        if rng.random() < 0.4:
            order.tools += (BOOKKEEPING,)
        order.policy = PolicyRule(
            max_tool_calls=rng.choice((None, None, 0, 2, 4)),
            per_turn_max_tool_calls=rng.choice((None, None, 1, 3)),
            max_consecutive_failed_tool_calls=rng.choice((None, None, 1, 2)),
            failure_counting=rng.choice(("turn", "call")),
            time_budget_us=rng.choice((None, 200_000, 1_000_000, 3_000_000)),
            finalizer_grace_us=rng.choice((None, 300_000)),
            plan_timeout_us=rng.choice((None, 400_000)),
            tool_timeout_us=rng.choice((None, 500_000)),
            engine=rng.random() < 0.4,
        )


def write_code(orders: dict[str, Order], rng: Random) -> None:
    """Makes the models of some runs write code that calls tools."""
    for order in orders.values():
        if not order.poison and order.tools and SHAKY not in order.tools and rng.random() < 0.8:
            order.tools += (CODE,)


def hand_out_leases(orders: dict[str, Order], rng: Random) -> None:
    """Makes the clients of some runs claim their calls."""
    for order in orders.values():
        if order.poison or rng.random() < 0.2:
            continue
        order.client_tool = order.claims = True
        if FALLBACK not in order.tools:
            order.tools += (FALLBACK,)
        fallbacks = LeaseRule("fallback", {CLIENT_TOOL: FALLBACK})
        order.leases = rng.choice((None, LeaseRule("reoffer"), LeaseRule("error"), fallbacks))


def call_agents(orders: dict[str, Order], rng: Random) -> None:
    """Makes child runs execute calls of some runs."""
    for order in orders.values():
        if not order.poison and SHAKY not in order.tools and rng.random() < 0.7:
            order.tools += rng.choice((SUBAGENTS, SUBAGENTS[:2], SUBAGENTS[:1], SUBAGENTS[1:2], SUBAGENTS[2:]))
            order.max_depth = rng.choice((1, 2, 2, 3))
            order.await_timeout_s = order.await_timeout_s or 60.0  # there may be nobody to answer
            order.grant_ttl_s = rng.choice((order.grant_ttl_s, 0.5))


def give_ids(orders: dict[str, Order], rng: Random) -> None:
    """Makes clients choose the ids of some runs."""
    for order in orders.values():
        if rng.random() < 0.6:
            order.run_id = f"given_{order.tag}"


def _innocent(rng: Random, tag: str, threads: list[int]) -> Order:
    client_tool = rng.random() < 0.5
    return Order(
        tag=tag,
        thread=rng.choice(threads) if threads and rng.random() < 0.7 else None,
        tools=tuple(rng.sample(SERVER_TOOLS, rng.randrange(0 if client_tool else 1, 4))),
        client_tool=client_tool,
        timeout_s=rng.choice((0.5, 5.0, 300.0)),
        on_timeout=rng.choice(("end", "report")),
        answers=rng.random() < 0.9,
    )


def _poison(rng: Random, what: str, threads: list[int]) -> Order:
    is_model = what in (DEADLY, DOOMED)
    return Order(
        tag="poison",
        thread=rng.choice(threads) if threads and rng.random() < 0.2 else None,
        tools=() if is_model else (what,),
        model=what if is_model else MODEL,
        poison=what,
    )

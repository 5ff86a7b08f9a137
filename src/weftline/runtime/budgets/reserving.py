"""Checks whether what the kernel wants to begin fits the budget tree, and reserves it.

The worst case of a model call is twice the estimated length of its request, plus the longest answer that the request
allows, at the model's highest price for input. The worst case of a tool call is one call.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw
from msgspec.json import encode
from msgspec.structs import replace

from weftline.errors import InvalidRequest, WeftlineError, invalid
from weftline.kernel.bodies import AwaitBody
from weftline.kernel.budgeting import UNPRICED, sentence
from weftline.kernel.context import CompactionStarted
from weftline.kernel.control import OF_RUN
from weftline.kernel.entries import AttemptStarted, AwaitClosed, AwaitOpened, CallOpened
from weftline.kernel.policy import PARTS, BudgetRefused, Held, Unit
from weftline.kernel.state import Decision, New, State
from weftline.messages import Sampling, Usage
from weftline.plan import RunPlan
from weftline.providers.catalog import Catalog, ResolvedModel
from weftline.runtime.budgets.ledger import NOTHING, Account, Ledger, Need
from weftline.runtime.live import WorkingSet
from weftline.runtime.model_calls.compacting import summary_model
from weftline.runtime.model_calls.models import cost_of, refused_sampling, resolve
from weftline.runtime.tool_calls.toolbox import EMPTY
from weftline.store.budgets import day_of

INPUT_FACTOR = 2
"""Providers count tokens in their own ways. Texts in some languages have twice as many as estimated."""
ANSWER_TOKENS = 8_192
"""The longest answer that is requested under a limit in money or tokens, if nothing else is set."""
THINKING_TOKENS = 8_192
"""Added for a model that may think."""
_ANY_USE = Usage(input=1, output=1)
MIN_TOKENS = 2_048
"""A final turn requests a shorter answer than these if that is all that fits, but no shorter than this."""


def reserved(decision: Decision, state: State, work: WorkingSet, account: Account, *, at: int) -> Decision:
    """The decision with its reservations, or instead the fact that something of it does not fit."""
    calls = 0
    model_call: AttemptStarted | CompactionStarted | None = None
    for new in decision.append:
        head = new.head
        if type(head) is CallOpened:
            calls += not head.blocked
        elif type(head) is AttemptStarted or type(head) is CompactionStarted:
            model_call = head
    if not calls and model_call is None:
        return decision
    accounts = account.ledger.limited(account.accounts, account.rules)
    if not accounts:
        return decision
    if type(model_call) is AttemptStarted and account.ledger.counts_usd(accounts, account.rules):
        model_call = replace(model_call, choice=_priced(model_call.choice, state, work))
        chosen = model_call
        append = [New(chosen, new.text) if type(new.head) is AttemptStarted else new for new in decision.append]
        decision = replace(decision, append=tuple(append))
    held = _held(model_call, calls, state, work, account, accounts, at=at)
    if isinstance(held, BudgetRefused):
        child = held.level == "run" and held.on == account.own and state.parent is not None
        return Decision((New(replace(held, level="child") if child else held),))
    return replace(decision, append=tuple([_with(new, held) for new in decision.append]))


def _held(
    begins: AttemptStarted | CompactionStarted | None,
    calls: int,
    state: State,
    work: WorkingSet,
    account: Account,
    accounts: tuple[str, ...],
    *,
    at: int,
) -> Held | BudgetRefused:
    ledger, rules = account.ledger, account.rules
    day = day_of(at)
    if begins is None:
        refused = ledger.refusal(
            accounts, Need(calls=calls), own=account.own, final=NOTHING, rules=rules, run=account.key, at=at
        )
        return refused or Held(day, accounts, calls=1)
    model = _model(begins, state, work)
    if model is None:
        return Held(day, accounts)  # calling it fails at once with an explanation
    size = begins.estimate or _estimate(state, work)
    tokens = size * INPUT_FACTOR
    output = answer_tokens(work, model) if type(begins) is AttemptStarted else _max_tokens(model, thinks=True)
    if not _has_price(work, model) and ledger.counts_usd(accounts, rules):
        return BudgetRefused("run", "usd", 0, 0, 0, 0, accounts[0], outcome="stop", model=model.catalog_id)
    is_last = type(begins) is AttemptStarted and begins.final
    final = None if is_last else _worst_case(work.catalog, model, tokens=tokens + output, output=output) or NOTHING
    need = _worst_case(work.catalog, model, tokens=tokens, output=output) or Need(tokens=tokens + output)
    refused = ledger.refusal(accounts, need, own=account.own, final=final, rules=rules, run=account.key, at=at)
    while refused is not None and is_last and output > MIN_TOKENS and work.plan.sampling.max_output_tokens is None:
        # An answer of that length was not requested: a shorter one is better than none.
        output = max(output // 2, MIN_TOKENS)
        need = _worst_case(work.catalog, model, tokens=tokens, output=output) or Need(tokens=tokens + output)
        refused = ledger.refusal(accounts, need, own=account.own, final=None, rules=rules, run=account.key, at=at)
    if refused is not None:
        return replace(refused, final=is_last)
    if account.own is not None:
        ledger.keep_for_final(account.own, final or NOTHING)
    return Held(day, accounts, need.nusd, need.tokens, output=output)


def _with(new: New, held: Held) -> New:
    head = new.head
    if type(head) is AttemptStarted or type(head) is CompactionStarted:
        return New(replace(head, held=held), new.text)
    if type(head) is CallOpened and not head.blocked:
        return New(replace(head, held=held), new.text)
    return new


def answer_tokens(work: WorkingSet, model: ResolvedModel) -> int:
    """The longest answer that a request allows under a limit."""
    asked = work.plan.sampling.max_output_tokens
    if asked is not None:
        return asked
    return _max_tokens(model, thinks=work.plan.reasoning != 0)


def _max_tokens(model: ResolvedModel, *, thinks: bool) -> int:
    """The longest answer that is requested if nothing else is set."""
    most = ANSWER_TOKENS + (THINKING_TOKENS if thinks and model.entry.reasoning is not False else 0)
    own = model.entry.max_output_tokens
    return most if own is None else min(most, own)


def settled_if_raised(decision: Decision, state: State, account: Account) -> Decision:
    """The decision to ask about a limit, followed by the answer if the limit has been raised since the call did not
    fit.

    Running calls end before a person is asked. If the limit is raised in the meantime, there is no await to answer yet.
    """
    refused, asks = state.budget.refused, decision.append[-1].head
    if type(asks) is not AwaitOpened or asks.kind != "budget" or refused is None:
        return decision
    if not account.ledger.is_raised(refused, account.rules):
        return decision
    return replace(decision, append=(*decision.append, New(raised(state, asks.id, account.ledger))))


def raised(state: State, await_id: str, ledger: Ledger, *, by: str = "") -> AwaitClosed:
    """The answer for a run that asks about a limit which has been raised: by `by`, unless the limit records who did."""
    refused = state.budget.refused
    who = ledger.setter(refused) if refused is not None else ""
    return AwaitClosed(state.turn, OF_RUN, await_id, "approved", who or by or "runtime")


def budget_body(state: State) -> AwaitBody:
    """Returns the question to a person about a call that does not fit."""
    refused = state.budget.refused
    assert refused is not None
    prompt = f"{sentence(refused)} Raise the limit and continue? Otherwise the run answers with what it has."
    numbers = {
        "level": refused.level,
        "unit": refused.unit,
        "period": refused.period,
        "limit": _amount(refused.limit, refused.unit),
        "spent": _amount(refused.spent, refused.unit),
        "reserved": _amount(refused.reserved, refused.unit),
        "asked": _amount(refused.asked, refused.unit),
    }
    return AwaitBody(prompt, "", "", Raw(encode(numbers)))


def _amount(amount: int, unit: Unit) -> float:
    return amount if PARTS[unit] == 1 else amount / PARTS[unit]


def require_prices(account: Account, models: Sequence[ResolvedModel], catalog: Catalog) -> None:
    """Raises `InvalidRequest` (`unpriced_model`) if the first model needs a known price and has none.

    A fallback is refused only when it is to be called, which may never happen.
    """
    if not account.active or not models:
        return
    if not account.ledger.counts_usd(account.accounts, account.rules):
        return
    if cost_of(catalog, models[0], _ANY_USE) is None:
        model = models[0].catalog_id
        raise InvalidRequest(
            f"The model {model} has no known price, so it cannot be used under a limit in US dollars.",
            code=UNPRICED,
            model=model,
        )


def _priced(choice: int, state: State, work: WorkingSet) -> int:
    """The first model from this one on that can be used under a limit in money; this one if there is none."""
    for number in range(choice, state.fallbacks + 1):
        try:
            if _has_price(work, resolve(work, number)):
                return number
        except WeftlineError:
            return number  # calling it fails at once with an explanation
    return choice


def _has_price(work: WorkingSet, model: ResolvedModel) -> bool:
    return work.catalog is not None and cost_of(work.catalog, model, _ANY_USE) is not None


def _worst_case(catalog: Catalog | None, model: ResolvedModel, *, tokens: int, output: int) -> Need | None:
    """None if the price of the model is unknown."""
    if catalog is None:
        return None
    costs = (
        cost_of(catalog, model, Usage(input=tokens, output=output)),
        cost_of(catalog, model, Usage(input=tokens, output=output, cache_write=tokens)),
    )
    known = [cost for cost in costs if cost is not None]
    return Need(max(known), tokens + output) if len(known) == len(costs) else None


def _model(begins: AttemptStarted | CompactionStarted, state: State, work: WorkingSet) -> ResolvedModel | None:
    if type(begins) is CompactionStarted:
        return summary_model(state, work)
    assert type(begins) is AttemptStarted
    try:
        return resolve(work, begins.choice)
    except WeftlineError:
        return None


def _estimate(state: State, work: WorkingSet) -> int:
    return work.conversation.estimate(work.toolbox or EMPTY)


_AS_THE_MODEL_DOES = Sampling()


def check_models(plan: RunPlan, catalog: Catalog, account: Account | None) -> None:
    """Raises `WeftlineError` for anything that a run of the plan could not use. Without an account, no budget
    applies.
    """
    models = [catalog.resolve(model) for model in plan.all_models]
    if account is not None:
        require_prices(account, models, catalog)
    if plan.limits.compaction is not None and plan.limits.compaction.model:
        catalog.resolve(plan.limits.compaction.model)
    if plan.sampling != _AS_THE_MODEL_DOES:
        issues = [issue for model in models for issue in refused_sampling(plan, model)]
        if issues:
            raise invalid(issues)

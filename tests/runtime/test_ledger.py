"""The ledger: what is free for whom, while writes are on their way and when they are lost."""

from __future__ import annotations

import pytest

from runtime.kit import plan
from weftline.kernel.policy import BudgetRefused, BudgetRule
from weftline.runtime.budgets.ledger import NOTHING, Account, Ledger, Need
from weftline.store.budgets import Booking

ABOVE = "run:1"
RULES = {ABOVE: BudgetRule(tokens=100)}
HELD = Booking(1, ABOVE, 0, held_tokens=80)
SETTLED = Booking(1, ABOVE, 0, tokens=10, held_tokens=-80)


def _account(ledger: Ledger, key: int) -> Account:
    return Account(ledger, key=key, workspace=1, thread=None, plan=plan("demo"), parent=None)


def _asks(account: Account, tokens: int) -> BudgetRefused | None:
    need = Need(tokens=tokens)
    return account.ledger.refusal((ABOVE,), need, own=None, final=NOTHING, rules=RULES, run=account.key, at=0)


def _book(account: Account, one: Booking) -> None:
    account.ledger.add([one])
    account.ledger.keep_back([one], run=account.key)


def test_returned_reservations_are_durable_before_others_use_them() -> None:
    ledger = Ledger()
    one, other = _account(ledger, 2), _account(ledger, 3)
    _book(one, HELD)
    one.committed([HELD])
    assert _asks(one, 80) is not None
    _book(one, SETTLED)
    assert _asks(one, 80) is None
    refused = _asks(other, 80)
    assert refused is not None and (refused.spent, refused.reserved) == (10, 70)
    one.committed([SETTLED])
    assert _asks(other, 80) is None


@pytest.mark.parametrize("books", [0, 1])
def test_a_lost_write_gives_nothing_back_to_anybody(books: int) -> None:
    ledger = Ledger()
    one, other = _account(ledger, 2), _account(ledger, 3)
    _book(one, HELD)
    one.committed([HELD])
    for _ in range(books):  # what is reserved in the same write is lost with it
        _book(one, HELD)
    _book(one, SETTLED)
    one.undo([*[HELD] * books, SETTLED])
    for account in (one, other):
        refused = _asks(account, 80)
        assert refused is not None and (refused.spent, refused.reserved) == (0, 80)
        assert _asks(account, 20) is None

"""The conformance suite notices stores that break a promise, by the check that is there for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weftline.store.base import LogStore
from weftline.testing.store import CHECKS, Check

from .planted import (
    ChildrenInTheNextTransaction,
    EndInTwoTransactions,
    EpochsOnlyForWorkInFlight,
    ForgetsTheTrial,
    LastFirst,
    OneForAll,
    Planted,
    PlantedSubject,
    RowsJoinedToTheRun,
    TellsTooMuch,
    ToldTooEarly,
    WakesFirst,
)

CHECK: dict[str, Check] = {getattr(check, "__name__", ""): check for check in CHECKS}


@pytest.mark.parametrize(
    ("plant", "noticed_by"),
    [
        (EpochsOnlyForWorkInFlight, "every_claim_has_a_new_epoch"),
        (EpochsOnlyForWorkInFlight, "a_write_of_an_earlier_claim_changes_nothing"),
        (RowsJoinedToTheRun, "a_write_of_an_earlier_claim_changes_nothing"),
        (RowsJoinedToTheRun, "a_fenced_write_does_not_affect_others_in_its_batch"),
        (LastFirst, "flushes_take_effect_in_the_order_of_the_calls"),
        (OneForAll, "a_stale_write_does_not_affect_others_in_its_batch"),
        (ToldTooEarly, "acknowledged_writes_are_readable"),
        (EndInTwoTransactions, "an_end_that_fails_releases_nothing"),
        (ChildrenInTheNextTransaction, "a_child_is_not_created_with_a_stale_write"),
        (ChildrenInTheNextTransaction, "a_write_fails_if_its_child_cannot_be_created"),
        (WakesFirst, "the_end_of_a_child_makes_its_parent_due"),
        (TellsTooMuch, "pages_are_cut_by_bytes"),
        (ForgetsTheTrial, "a_death_is_charged_once_to_the_run_that_was_on_trial_alone"),
    ],
)
async def test_a_store_with_a_bug_is_noticed(plant: Callable[[LogStore], Any], noticed_by: str) -> None:
    with pytest.raises(AssertionError):
        await CHECK[noticed_by](PlantedSubject(plant))


@pytest.mark.parametrize("name", sorted(CHECK))
async def test_the_wrapper_alone_breaks_nothing(name: str) -> None:
    await CHECK[name](PlantedSubject(Planted))

"""The conformance suite notices stores that break a promise, by the check that is there for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from protocols import Suite, members_of, options_of
from weftline.store.base import LogStore, Store
from weftline.store.database import Database, statement
from weftline.store.memory import MemoryDisk, MemoryStore
from weftline.testing import store
from weftline.testing.store import CHECKS, Check, claims

from .planted import (
    AnswersInTheNextTransaction,
    BeginsAgain,
    ChildrenInTheNextTransaction,
    ClosesForAnother,
    EndInTwoTransactions,
    EpochsOnlyForWorkInFlight,
    FenceLeavesWithItsClaim,
    ForgetfulSubject,
    ForgetsTheTrial,
    ForgivesAfterTheDeathOfAGroup,
    KeepsTheHold,
    LastFirst,
    LatestOfAll,
    LeavesWhatItCould,
    LivingRows,
    LooksInEveryThread,
    OneForAll,
    OpensAgain,
    Plant,
    Planted,
    PlantedSubject,
    PromotesAnyNewRun,
    ReadsMayWrite,
    RowsJoinedToTheRun,
    SkipsRuns,
    TellsTooMuch,
    ToldTooEarly,
    UnfencedRecords,
    WakesFirst,
    answering,
    children_without,
    created_without,
    lose_due_times,
    lose_last_items,
    lose_secrets,
    lose_the_order_of_queues,
    of_all_runs,
    only_new_runs,
    rows_with,
    unfenced,
    with_children,
    with_plain_epochs,
    without,
)

CHECK: dict[str, Check] = {getattr(check, "__name__", ""): check for check in CHECKS}


SUITE = Suite(store, "Subject")

BUGS: list[tuple[str, Plant, str]] = [
    ("epochs for work in flight", EpochsOnlyForWorkInFlight, "every_claim_has_a_new_epoch"),
    ("epochs for work in flight", EpochsOnlyForWorkInFlight, "a_write_of_an_earlier_claim_changes_nothing"),
    ("rows joined to the run", RowsJoinedToTheRun, "a_write_of_an_earlier_claim_changes_nothing"),
    ("rows joined to the run", RowsJoinedToTheRun, "a_fenced_write_does_not_affect_others_in_its_batch"),
    (
        "fence leaves with its claim",
        FenceLeavesWithItsClaim,
        "an_earlier_claim_stays_fenced_after_the_later_one_has_left_without_writing",
    ),
    ("last first", LastFirst, "flushes_take_effect_in_the_order_of_the_calls"),
    ("one for all", OneForAll, "a_stale_write_does_not_affect_others_in_its_batch"),
    ("told too early", ToldTooEarly, "acknowledged_writes_are_readable"),
    ("end in two transactions", EndInTwoTransactions, "an_end_that_fails_releases_nothing"),
    ("children later", ChildrenInTheNextTransaction, "a_child_is_not_created_with_a_stale_write"),
    ("children later", ChildrenInTheNextTransaction, "a_write_fails_if_its_child_cannot_be_created"),
    ("wakes first", WakesFirst, "the_end_of_a_child_makes_its_parent_due"),
    ("tells too much", TellsTooMuch, "pages_are_cut_by_bytes"),
    ("forgets the trial", ForgetsTheTrial, "a_death_is_charged_once_to_the_run_that_was_on_trial_alone"),
    (
        "forgives after the death of a group",
        ForgivesAfterTheDeathOfAGroup,
        "a_death_of_a_group_changes_no_earlier_charge",
    ),
    ("wakes ignored", without(wakes=None), "the_end_of_a_child_makes_its_parent_due"),
    ("bookings ignored", without(bookings=()), "what_a_run_spends_is_booked_with_its_write"),
    ("closes ignored", without(closes=None), "the_account_of_a_run_is_closed_when_the_run_ends"),
    ("imported ignored", without(imported=False), "webhooks_are_not_notified_of_imported_runs"),
    ("always imported", without(imported=True), "webhooks_are_notified_of_ends_and_of_awaits"),
    ("kept messages ignored", without(kept=()), "what_a_run_keeps_is_on_its_thread_before_it_ends"),
    ("edits ignored", without(edits=()), "a_message_that_is_edited_stays_as_it_was_for_the_run_that_reads_it"),
    ("awaits ignored", without(awaits=()), "an_await_is_listed_until_it_is_answered"),
    ("answers ignored", without(answered=()), "an_await_is_listed_until_it_is_answered"),
    ("progress ignored", without(progress=0), "a_suspect_is_cleared_when_something_that_it_began_has_ended"),
    ("format ignored", without(format=0), "a_row_has_the_values_of_the_last_write"),
    ("rules lost", created_without(rules=1), "a_due_run_comes_with_what_decides_whether_it_may_be_driven"),
    ("secrets lost", created_without(secrets=None), "a_claim_brings_all_that_a_driver_needs"),
    ("blobs lost", created_without(blobs=()), "a_blob_is_stored_with_its_run_and_survives_a_crash"),
    *[
        (f"{field} never looked at", without(**{field: nothing}), "a_write_with_an_impossible_value_anywhere_fails")
        for field, nothing in (
            ("awaits", ()),
            ("answered", ()),
            ("bookings", ()),
            ("closes", None),
            ("thread_end", None),
            ("kept", ()),
            ("keeps", None),
            ("edits", ()),
            ("wakes", None),
            ("children", ()),
            ("started_at", None),
            ("ended_at", None),
        )
    ],
    *[
        (
            f"{field} never looked at",
            created_without(**{field: nothing}),
            "a_new_run_with_an_impossible_value_anywhere_is_not_created",
        )
        for field, nothing in (
            ("workspace", 1),
            ("thread", None),
            ("family", None),
            ("created_at", 1),
            ("rules", 1),
            ("agent", None),
            ("blobs", ()),
            ("idempotency", None),
        )
    ],
    ("leaves what it could", LeavesWhatItCould, "a_write_with_an_impossible_value_anywhere_fails"),
    ("leaves what it could", LeavesWhatItCould, "numbers_that_add_up_to_something_impossible_fail"),
    ("bookings ignored", without(bookings=()), "numbers_that_add_up_to_something_impossible_fail"),
    ("children later", ChildrenInTheNextTransaction, "a_new_run_that_its_thread_refuses_leaves_nothing"),
    ("awaits open again", OpensAgain, "an_await_is_opened_once"),
    ("promotes any new run", PromotesAnyNewRun, "only_a_run_of_the_thread_follows_one_that_ends"),
    (
        "children without what they cannot have",
        with_children(only_new_runs),
        "a_child_is_a_new_run_without_a_thread_and_nothing_else",
    ),
    *[
        (f"{field} of children lost", children_without(**{field: nothing}), "a_child_has_all_that_a_new_run_may_have")
        for field, nothing in (
            ("family", None),
            ("blobs", ()),
            ("secrets", None),
            ("agent", None),
            ("rules", 1),
            ("metadata", "{}"),
            ("idempotency", None),
            ("salt", "salt"),
        )
    ],
    (
        "children begin anew",
        with_children(lambda child: replace(child, started_at=None, due_at=0)),
        "a_child_has_all_that_a_new_run_may_have",
    ),
    ("rows live on", LivingRows, "a_row_that_was_read_does_not_change"),
    (
        "answers later",
        AnswersInTheNextTransaction,
        "webhooks_are_not_notified_of_an_await_that_is_answered_at_once",
    ),
    ("retention skips runs", SkipsRuns, "retention_examines_all_runs_in_the_order_of_their_keys"),
    ("retention begins again", BeginsAgain, "retention_examines_all_runs_in_the_order_of_their_keys"),
    ("latest of all", LatestOfAll, "the_latest_time_is_that_of_the_fact_that_was_written_last"),
    (
        "no order in the queues",
        answering("queued_behind", lambda found: found[::-1]),
        "runs_that_wait_for_earlier_ones_of_their_threads_are_found",
    ),
    ("a held store stays held", KeepsTheHold, "a_restored_store_is_held_until_its_hold_is_lifted"),
    (
        "pages without a format",
        answering("page", lambda page: page and replace(page, format=0)),
        "a_page_has_the_format_of_the_latest_write",
    ),
    (
        "nothing is below another run",
        answering("due_now", rows_with(created_head=b"")),
        "a_due_run_comes_with_what_decides_whether_it_may_be_driven",
    ),
    (
        "threads without a format",
        answering("due_now", rows_with(thread_format=0)),
        "a_due_run_comes_with_what_decides_whether_it_may_be_driven",
    ),
    (
        "awaits of every thread",
        LooksInEveryThread,
        "awaits_are_found_by_the_thread_of_their_run_or_of_the_one_at_the_top",
    ),
    (
        "no run was ever another owner's",
        answering("claim", lambda loaded: loaded and replace(loaded, taken_over=False)),
        "a_claim_tells_whether_an_earlier_owner_wrote_last",
    ),
    (
        "every run was another owner's",
        answering("claim", lambda loaded: loaded and replace(loaded, taken_over=True)),
        "a_claim_tells_whether_an_earlier_owner_wrote_last",
    ),
    *[
        (f"{method} is not fenced", unfenced(method), "nothing_that_a_replaced_owner_writes_takes_effect")
        for method in ("flush", "probe", "lift_hold", "begin_trial", "end_trial", "survived", "charge_death", "trim")
    ],
    ("charge_death is not fenced", unfenced("charge_death"), "a_replaced_owner_does_not_charge_its_own_death"),
    ("claims for another owner", unfenced("claim"), "a_claim_of_a_replaced_owner_does_not_fence_its_successor"),
]
"""What each does wrong, and the check that is there for it."""


@pytest.mark.parametrize(
    ("plant", "noticed_by"),
    [pytest.param(plant, noticed_by, id=f"{what}-{noticed_by}") for what, plant, noticed_by in BUGS],
)
async def test_a_store_with_a_bug_is_noticed(plant: Plant, noticed_by: str) -> None:
    with pytest.raises(AssertionError):
        await CHECK[noticed_by](PlantedSubject(plant))


LOST: dict[str, Callable[[MemoryDisk], object]] = {
    "secrets": lose_secrets,
    "latest_at": lambda disk: setattr(disk, "latest_at", 0),
    "the order of queues": lose_the_order_of_queues,
    "idempotency keys": lambda disk: disk.idempotency.clear(),
    "given ids": lambda disk: disk.given.clear(),
    "states": of_all_runs(state=b""),
    "versions of the fold": of_all_runs(fold=0),
    "the key of the vault": lambda disk: setattr(disk, "key", bytes(32)),
    "the id of the store": lambda disk: setattr(disk, "id", "other"),
    "awaits": lambda disk: disk.awaits.clear(),
    "blobs": lambda disk: disk.blobs.clear(),
    "due times": lose_due_times,
    "last items": lose_last_items,
    "bookings": lambda disk: disk.change_records(statement("DELETE FROM budget_use")),
}


@pytest.mark.parametrize("what", LOST)
@pytest.mark.parametrize(
    ("cleanly", "noticed_by"),
    [(True, "everything_survives_reopening_the_store"), (False, "everything_survives_the_death_of_the_owner")],
    ids=["by closing it", "by a death"],
)
async def test_a_store_that_forgets_something_is_noticed(what: str, cleanly: bool, noticed_by: str) -> None:
    with pytest.raises(AssertionError):
        await CHECK[noticed_by](ForgetfulSubject(LOST[what], cleanly=cleanly))


@pytest.mark.parametrize(
    ("inner", "noticed_by"),
    [
        (UnfencedRecords, "nothing_that_a_replaced_owner_writes_takes_effect"),
        (ReadsMayWrite, "a_query_that_should_only_read_cannot_write"),
        (ClosesForAnother, "a_replaced_owner_that_closes_the_store_does_not_hide_the_death_of_its_successor"),
    ],
)
async def test_a_store_with_a_bug_beside_its_log_is_noticed(inner: type[MemoryStore], noticed_by: str) -> None:
    with pytest.raises(AssertionError):
        await CHECK[noticed_by](PlantedSubject(inner=inner))


@pytest.mark.parametrize("name", sorted(CHECK))
async def test_the_wrapper_alone_breaks_nothing(name: str) -> None:
    await CHECK[name](PlantedSubject(Planted))


@pytest.mark.parametrize("check", claims.CHECKS, ids=lambda check: check.__name__)
async def test_a_store_may_number_its_claims_as_it_likes(check: Check) -> None:
    await check(PlantedSubject(with_plain_epochs()))


def test_every_member_of_the_protocols_is_used_by_the_suite() -> None:
    """A member that no check uses can do anything, or nothing."""
    assert members_of(LogStore, Store) - SUITE.uses(("log", "store")) == set()


def test_every_option_of_the_protocols_is_given_by_the_suite() -> None:
    """An option that no check gives can be ignored."""
    given = SUITE.gives(("log", "store", "records"), LogStore, Store, Database)
    assert options_of(LogStore, Store, Database) - given == set()


def test_every_check_is_listed() -> None:
    assert SUITE.functions() == set(CHECK)

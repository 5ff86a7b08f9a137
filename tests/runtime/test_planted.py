"""The conformance suite notices engines that break a promise, by the check that is there for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from protocols import Suite, members_of, options_of
from runtime.planted import (
    abort_that_leaves_streams_open,
    abort_that_writes_nothing,
    ahead,
    answering,
    beating,
    describing,
    drain_that_goes_on,
    drain_without_end,
    excusing,
    forgetting,
    hasty,
    idle,
    mute,
    new_workspaces,
    observed_until_it_fails,
    showing,
    with_method,
    without_deltas,
    without_limits,
)
from runtime.subjects import EmbeddedSubject, NewEngine
from store import planted
from store.planted import PlantedSubject, with_plain_epochs
from store.subjects import MemorySubject
from weftline.errors import Forbidden
from weftline.runtime import driver
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.engine import Follower, Leased, OwnedEngine, Resumed, StreamPlace
from weftline.store.rows import Written
from weftline.testing import engine, store
from weftline.testing.engine import CHECKS, Bench, Check, World

CHECK: dict[str, Check] = {getattr(check, "__name__", ""): check for check in CHECKS}


def uncounted(engine: Any) -> Callable[[int], StreamPlace]:
    """Reserves places for nobody in particular."""

    def reserve_stream(workspace: int) -> StreamPlace:
        return engine.reserve_stream(0)

    return reserve_stream


def yes(*args: Any, **options: Any) -> bool:
    return True


def later(by_us: int) -> Callable[[Leased], Leased]:
    return lambda lease: replace(lease, until=lease.until + by_us)


SUITE = Suite(engine, "Bench")

BUGS: list[tuple[str, NewEngine, str]] = [
    ("tools run ahead of the log", ahead("durable"), "a_call_begins_when_its_start_is_durable"),
    ("models run ahead of the log", ahead("permit"), "a_model_is_called_when_its_previous_answer_is_durable"),
    ("steer is hasty", hasty("steer", "m"), "messages_and_pauses_survive_a_crash"),
    ("follow_up is hasty", hasty("follow_up", "m"), "messages_and_pauses_survive_a_crash"),
    ("pause is hasty", hasty("pause"), "messages_and_pauses_survive_a_crash"),
    ("resume is hasty", hasty("resume"), "messages_and_pauses_survive_a_crash"),
    ("accept is hasty", hasty("accept", True), "messages_and_pauses_survive_a_crash"),
    ("claim is hasty", hasty("claim"), "claims_and_answers_survive_a_crash"),
    ("heartbeat is hasty", hasty("heartbeat"), "claims_and_answers_survive_a_crash"),
    ("answer is hasty", hasty("answer", True), "claims_and_answers_survive_a_crash"),
    ("provide is hasty", hasty("provide", True), "claims_and_answers_survive_a_crash"),
    ("answer_await is hasty", hasty("answer_await", "approved"), "decisions_and_cancels_survive_a_crash"),
    ("cancel is hasty", hasty("cancel"), "decisions_and_cancels_survive_a_crash"),
    (
        "steer has no key",
        forgetting("steer", "idempotency_key", ""),
        "a_message_with_an_idempotency_key_is_accepted_once",
    ),
    (
        "follow_up has no key",
        forgetting("follow_up", "idempotency_key", ""),
        "a_message_with_an_idempotency_key_is_accepted_once",
    ),
    ("followers are not counted", forgetting("follow", "workspace", 0), "a_workspace_has_so_many_streams_and_no_more"),
    (
        "reserved streams are not counted",
        with_method("reserve_stream", uncounted),
        "a_workspace_has_so_many_streams_and_no_more",
    ),
    ("add_ended", idle("add_ended", Written()), "a_run_that_ran_elsewhere_can_be_added"),
    ("add_ended", forgetting("add_ended", "last_key", 0), "a_run_that_ran_elsewhere_can_be_added"),
    ("budgets_changed", idle("budgets_changed"), "changed_limits_apply_at_once_and_runs_that_wait_for_them_continue"),
    ("check", idle("check"), "a_plan_can_be_checked_without_creating_a_run"),
    ("clock", with_method("clock", lambda _: Wrong()), "entries_have_the_time_of_the_engines_clock"),
    ("created_before", idle("created_before"), "an_earlier_create_is_found_by_its_key"),
    ("observe", mute("observe", lambda: None), "an_observer_sees_every_entry_of_every_run"),
    ("provide", idle("provide", True), "the_results_of_a_turn_are_accepted_together_or_not_at_all"),
    ("require_accepting", mute("require_accepting"), "requests_are_refused_while_the_store_refuses_writes"),
    (
        "require_accepting",
        mute("require_accepting"),
        "the_runs_of_a_restored_store_are_held_until_they_are_released",
    ),
    ("require_writable", mute("require_writable"), "requests_are_refused_while_the_store_refuses_writes"),
    (
        "resume_all",
        idle("resume_all", Resumed(True, 1)),
        "the_runs_of_a_restored_store_are_held_until_they_are_released",
    ),
    ("trim", idle("trim", (0, 0)), "the_logs_of_old_runs_are_removed_for_followers_too"),
    ("wait_released", idle("wait_released"), "the_runs_of_a_restored_store_are_held_until_they_are_released"),
    ("waits_for_people", idle("waits_for_people", False), "it_is_known_whether_a_tree_of_runs_waits_for_people"),
    ("waits_for_people", idle("waits_for_people", True), "it_is_known_whether_a_tree_of_runs_waits_for_people"),
    *[
        (f"created without {option}", forgetting("create", option, value), "a_run_keeps_all_that_it_was_created_with")
        for option, value in {"sent": None, "metadata": "{}", "secrets": None, "blobs": (), "origin": None}.items()
    ],
    (
        "created without history",
        forgetting("create", "history", ()),
        "a_fork_begins_its_thread_with_earlier_messages",
    ),
    *[
        (f"{name} forgets {option}", forgetting(name, option, value), "who_controls_a_run_and_why_is_kept")
        for name, option, value in (
            ("pause", "reason", ""),
            ("pause", "requested_by", ""),
            ("pause", "labels", None),
            ("resume", "notes", ""),
            ("resume", "requested_by", ""),
            ("resume", "labels", None),
            ("cancel", "reason", "user"),
            ("cancel", "requested_by", ""),
        )
    ],
    (
        "resume forgets messages",
        forgetting("resume", "messages", ()),
        "messages_that_come_with_a_resume_reach_the_next_turn",
    ),
    *[
        (
            f"{name} forgets {option}",
            forgetting(name, option, value),
            "the_senders_of_messages_and_their_labels_are_kept",
        )
        for name in ("steer", "follow_up")
        for option, value in (("by", ""), ("labels", None))
    ],
    (
        "provide forgets message_id",
        forgetting("provide", "message_id", ""),
        "the_senders_names_of_messages_and_answers_are_kept",
    ),
    (
        "provide forgets problems",
        forgetting("provide", "problems", {}),
        "the_results_of_a_turn_are_accepted_together_or_not_at_all",
    ),
    *[
        (
            f"check says {runs_now} to runs_now",
            forgetting("check", "runs_now", runs_now),
            "a_plan_without_a_model_can_be_stored_but_not_run_without_a_default",
        )
        for runs_now in (True, False)
    ],
    ("trim forgets after", forgetting("trim", "after", 0), "logs_are_removed_above_a_key"),
    (
        "end_thread forgets requested_by",
        forgetting("end_thread", "requested_by", ""),
        "the_end_of_a_thread_cancels_all_its_runs",
    ),
    (
        "budgets_changed forgets by",
        forgetting("budgets_changed", "by", ""),
        "whoever_raises_a_limit_answers_for_the_runs_that_wait",
    ),
    *[
        (f"{name} is hasty", hasty(name), "releases_raised_limits_and_ends_of_threads_survive_a_crash")
        for name in ("release", "budgets_changed", "end_thread")
    ],
    ("watch_ends", mute("watch_ends"), "ends_and_awaits_are_reported"),
    (
        "batches of deltas are lost",
        showing(without_deltas),
        "what_a_model_writes_reaches_followers_while_it_writes",
    ),
    *[
        (f"{name} is always {value}", describing(**{name: value}), "a_batch_describes_its_entries")
        for name, value in (
            ("ended", False),
            ("ended", True),
            ("newer", True),
            ("heads", ()),
            ("missing", (1, 1)),
            ("last_seq", 1),
            ("size", 1),
            ("after", 0),
            ("run_id", "run_1"),
            ("key", 10**6),
        )
    ],
    (
        "newer is not told",
        describing(newer=False),
        "the_reader_of_a_run_is_told_that_newer_code_has_written_to_it",
    ),
    ("pause is never refused", excusing("pause", Forbidden), "a_run_that_allows_no_interruptions_is_not_paused"),
    *[
        (f"heartbeat is {by} us off", answering("heartbeat", later(by)), "a_heartbeat_extends_the_lease_from_now_on")
        for by in (-(10**9), 10**9)
    ],
    (
        "an observer that fails is dropped",
        with_method("observe", observed_until_it_fails),
        "an_observer_sees_every_entry_of_every_run",
    ),
    *[
        (
            f"{times} beats for {out_of}",
            beating(times, out_of),
            "a_follower_with_nothing_to_read_is_woken_by_every_third_beat",
        )
        for times, out_of in ((3, 1), (2, 1), (1, 3), (0, 1))
    ],
    ("any number of runs is queued", without_limits, "a_workspace_has_so_many_runs_queued_and_no_more"),
    ("any number of streams is opened", without_limits, "a_workspace_has_so_many_streams_and_no_more"),
    ("drain is hasty", hasty("drain"), "a_drain_waits_for_what_is_running_and_starts_nothing"),
    (
        "drain begins more",
        with_method("drain", drain_that_goes_on),
        "a_drain_waits_for_what_is_running_and_starts_nothing",
    ),
    ("drain has no end", with_method("drain", drain_without_end), "a_drain_ends_when_its_time_is_up"),
    ("abort", idle("abort", True), "an_abort_cancels_what_is_running_and_ends_all_streams"),
    (
        "abort leaves streams open",
        with_method("abort", abort_that_leaves_streams_open),
        "an_abort_cancels_what_is_running_and_ends_all_streams",
    ),
    (
        "abort writes nothing",
        with_method("abort", abort_that_writes_nothing),
        "what_ended_before_an_abort_is_durable_after_it",
    ),
    ("abort hides a refusal", answering("abort", yes), "an_abort_reports_what_the_store_refuses"),
    ("abort does not hurry", forgetting("abort", "hurry", None), "an_abort_reports_what_the_store_refuses"),
    ("stop is hasty", hasty("stop"), "a_stop_gives_running_work_its_time_and_loses_nothing"),
    (
        "stop waits for nothing",
        forgetting("stop", "drain_s", 0),
        "a_stop_gives_running_work_its_time_and_loses_nothing",
    ),
    ("stop has no end", forgetting("stop", "drain_s", 60), "a_stop_does_not_wait_longer_than_it_may"),
    ("workspace", with_method("workspace", new_workspaces), "a_workspace_has_one_key"),
]
"""What each does wrong, or what does nothing, and the check that is there for it."""


class Wrong:
    """A clock that stands still."""

    def now_us(self) -> int:
        return 0


@asynccontextmanager
async def bench_of(new_engine: NewEngine, stores: store.Subject | None = None) -> AsyncGenerator[Bench]:
    world = World()
    subject = EmbeddedSubject(stores or MemorySubject(), world, new_engine=new_engine)
    await subject.start()
    try:
        yield Bench(subject, world, patience_s=2)
    finally:
        world.released.set()
        subject.crash()
        await subject.close()


@pytest.mark.parametrize(
    ("new_engine", "noticed_by"),
    [pytest.param(new_engine, noticed_by, id=f"{what}-{noticed_by}") for what, new_engine, noticed_by in BUGS],
)
async def test_an_engine_with_a_bug_is_noticed(new_engine: NewEngine, noticed_by: str) -> None:
    async with bench_of(new_engine) as bench:
        with pytest.raises(AssertionError):
            await CHECK[noticed_by](bench)


async def test_an_engine_that_accepts_every_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "accepts", yes)
    async with bench_of(EmbeddedEngine) as bench:
        with pytest.raises(AssertionError):
            await CHECK["a_result_that_nobody_waits_for_any_more_is_dropped"](bench)


async def test_store_that_hides_death_of_its_owner_is_noticed() -> None:
    hides = planted.answering("claim", lambda loaded: loaded and replace(loaded, taken_over=False))
    async with bench_of(EmbeddedEngine, PlantedSubject(hides)) as bench:
        with pytest.raises(AssertionError):
            await CHECK["time_without_an_engine_is_not_active"](bench)


async def test_engine_downtime_is_known_whatever_the_claim_numbers() -> None:
    async with bench_of(EmbeddedEngine, PlantedSubject(with_plain_epochs())) as bench:
        await CHECK["time_without_an_engine_is_not_active"](bench)


def test_every_member_of_the_protocols_is_used_by_the_suite() -> None:
    """A member that no check uses can do anything, or nothing."""
    used = SUITE.uses(("engine", "follower", "place"))
    used.add("start")  # by the subjects
    assert members_of(OwnedEngine, Follower, StreamPlace) - used == set()


def test_every_option_of_the_protocols_is_given_by_the_suite() -> None:
    """An option that no check gives can be ignored."""
    given = SUITE.gives(("engine", "follower", "place"), OwnedEngine, Follower, StreamPlace)
    assert options_of(OwnedEngine, Follower, StreamPlace) - given == set()


def test_every_check_is_listed() -> None:
    assert SUITE.functions() == set(CHECK)

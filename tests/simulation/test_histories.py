"""The core in a simulated world: every promise holds in every history, and planted bugs are noticed."""

from __future__ import annotations

import logging

import pytest
from hypothesis import settings

from forked import run_python
from simulation.planted import BUGS, SEEDS, Bug
from weftline.runtime.fleet import timers
from weftline.testing.simulation import Histories, Violation, simulate
from weftline.testing.simulation.slow import SlowBuild

CAMPAIGN = 5000 if settings.get_current_profile_name() == "deep" else 25
BLOCK = 25


@pytest.mark.parametrize("first", range(0, CAMPAIGN, BLOCK))
def test_every_promise_is_kept_in_every_history(first: int) -> None:
    for seed in range(first, first + BLOCK):
        try:
            simulate(seed)
        except Violation as violation:
            pytest.fail(violation.report(), pytrace=False)


@pytest.mark.parametrize("first", range(0, CAMPAIGN, BLOCK))
def test_every_promise_is_kept_beside_slow_watchers_and_tools_that_are_slow_to_open(first: int) -> None:
    histories = Histories(build=SlowBuild())
    for seed in range(first, first + BLOCK):
        try:
            histories.run(seed)
        except Violation as violation:
            pytest.fail(violation.report(), pytrace=False)


@pytest.mark.parametrize("seed", [91001487, 141009726])
def test_a_loop_that_stands_still_while_the_last_answers_are_written_loses_none(seed: int) -> None:
    simulate(seed)


def test_a_clock_set_between_a_request_and_its_entry_is_no_reason_to_miss_the_entry() -> None:
    simulate(41005409)


def test_a_cancelled_run_estimates_what_a_provider_used_that_does_not_stop() -> None:
    simulate(833000112)


def test_a_run_that_ends_as_a_person_edits_one_of_its_calls_says_that_it_has() -> None:
    simulate(590500375)


def test_a_stop_estimates_what_a_provider_used_that_does_not_stop() -> None:
    simulate(370303006)


def test_a_run_that_queues_because_a_lease_ran_out_still_hears_of_the_next_deadline() -> None:
    simulate(611000421)


def test_a_run_that_has_heard_of_one_deadline_while_it_queues_still_hears_of_the_next() -> None:
    simulate(260200947)


def test_a_person_may_be_told_that_a_cancelled_run_takes_no_answers() -> None:
    simulate(197)


def test_the_time_of_a_run_is_up_although_it_has_reached_another_cap() -> None:
    simulate(701001281)


def test_a_time_has_its_run_although_the_clock_was_set_back_before_its_schedule_moved_on() -> None:
    simulate(701004691)


def test_a_schedule_names_the_run_that_began_before_a_crash_whichever_of_its_times_was_missed() -> None:
    simulate(801002463)


@pytest.mark.parametrize("seed", [789004896, 801002154])
def test_nothing_is_reserved_on_the_strength_of_what_a_crash_can_undo(seed: int) -> None:
    simulate(seed)


def test_nothing_is_reserved_on_the_strength_of_a_write_that_is_refused() -> None:
    simulate(901003410)


def test_what_a_person_has_said_stands_although_the_run_times_out_before_it_moves() -> None:
    simulate(901001893)


def test_a_run_that_was_due_is_moved_by_a_start_although_the_clock_is_set_back_meanwhile() -> None:
    simulate(1445003766)


def test_a_refusal_of_a_cancelled_run_waits_for_an_end_that_was_appended_meanwhile() -> None:
    simulate(1501001721)


def test_a_run_that_is_resumed_while_the_server_stops_is_due_when_its_next_attempt_is() -> None:
    simulate(1545002628)


def test_a_run_whose_write_has_failed_hears_the_time_when_it_has_been_read_again() -> None:
    simulate(801003574)


def test_a_queued_run_whose_clock_was_set_back_is_not_told_the_time_for_ever() -> None:
    simulate(845002265)


@pytest.mark.parametrize("seed", [812000905, 823001243, 834001927])
def test_nobody_is_told_of_an_end_that_a_crash_can_undo(seed: int) -> None:
    simulate(seed)


def test_no_agent_is_called_with_an_approval_that_has_lapsed_while_its_run_was_planned() -> None:
    simulate(1011030753)


def test_a_run_planned_for_a_call_that_is_closed_by_then_is_not_made_and_harms_nobody() -> None:
    simulate(1030003336)


def test_a_parent_that_is_loaded_by_its_child_just_as_that_ends_carries_on() -> None:
    simulate(3112002381)


def test_a_run_that_will_end_with_its_children_asks_nobody_again_and_keeps_its_other_deadlines() -> None:
    simulate(3156003751)


def test_a_harmless_call_of_a_turn_that_was_lost_may_have_stood_at_another_place() -> None:
    simulate(4112001697)


def test_a_seed_always_gives_the_same_history_and_leaves_logging_as_it_was() -> None:
    level = logging.getLogger("weftline").level
    assert simulate(3) == simulate(3)
    assert logging.getLogger("weftline").level == level


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_noticed(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "Alarm", bug.rings)
    violation = first_violation(bug)
    assert violation.rule in bug.rules, violation.report()


def first_violation(bug: Bug) -> Violation:
    histories = Histories(build=bug)
    for seed in bug.among.seeds(0):
        try:
            histories.run(seed)
        except Violation as violation:
            return violation
    raise AssertionError(f"{SEEDS} histories went well with a bug in them")


def test_the_command_runs_as_many_histories_as_it_is_told() -> None:
    done = run_python("-m", "weftline.testing.simulation", "--seeds", "3", "--from", "40")
    assert (done.returncode, done.stdout) == (0, "3 histories from seed 40: 0 failures\n"), done.stderr

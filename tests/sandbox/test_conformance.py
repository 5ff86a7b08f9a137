"""Every engine keeps every promise of a code engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from weftline.sandbox import Language, Sandbox
from weftline.testing.sandbox import (
    CHECKS,
    Bench,
    Check,
    exports,
    failing,
    handles,
    importing,
    isolation,
    reporting,
    values,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

requirement = pytest.mark.requirement
SHOWN: dict[Check, pytest.MarkDecorator | tuple[()]] = {
    handles.code_starts_without_being_awaited: requirement("sandbox.handle.immediate", "sandbox.handle.running"),
    handles.everybody_who_awaits_gets_the_same_result: requirement("sandbox.handle.await"),
    handles.a_terminated_handle_reports_the_reason: requirement("sandbox.handle.terminate"),
    handles.a_tight_loop_is_ended_and_blocks_nobody: requirement(
        "sandbox.handle.terminate_speed", "sandbox.handle.host_stays_live"
    ),
    handles.every_result_has_its_fields: requirement("sandbox.result.shape", "sandbox.handle.failures_are_data"),
    handles.code_that_ends_without_a_value_succeeds: requirement("sandbox.export.no_value"),
    handles.too_much_memory_is_a_status: requirement("sandbox.limit.memory"),
    exports.the_selected_export_is_called_with_the_arguments: requirement("sandbox.export.function"),
    exports.an_export_that_is_not_a_function_is_the_result: requirement("sandbox.export.value"),
    exports.a_missing_export_is_named: requirement("sandbox.export.missing"),
    exports.what_can_be_awaited_is_awaited: requirement("sandbox.export.awaited"),
    exports.types_are_erased_and_never_checked: requirement("sandbox.lang.typescript", "sandbox.lang.javascript"),
    importing.bare_specifiers_come_from_imports: requirement("sandbox.import.bare", "sandbox.lang.python"),
    importing.relative_specifiers_come_from_modules: requirement("sandbox.import.relative"),
    importing.imports_have_no_fallback: requirement("sandbox.import.no_fallback"),
    importing.urls_cannot_be_imported: requirement("sandbox.import.url"),
    importing.a_link_error_comes_before_any_statement: requirement("sandbox.import.link_error"),
    importing.globals_are_free_variables_for_one_execution: requirement("sandbox.globals.free_variables"),
    reporting.reports_arrive_in_order_while_the_code_runs: requirement("sandbox.report.sink"),
    reporting.without_a_sink_there_is_no_report: requirement("sandbox.report.absent"),
    reporting.two_things_called_report_are_refused_at_the_call: requirement("sandbox.report.clash"),
    reporting.logs_are_kept_by_level: requirement("sandbox.log.capture"),
    reporting.a_custom_console_is_used_instead: requirement("sandbox.log.own_console"),
    failing.an_error_points_into_the_source: requirement("sandbox.error.position"),
    failing.an_exception_of_the_host_is_a_name_and_a_message: requirement("sandbox.error.no_host_frames"),
    failing.nothing_of_the_host_is_in_any_error: requirement("sandbox.error.no_host_frames"),
    failing.anything_that_code_throws_is_an_error: requirement("sandbox.import.link_error"),
    values.plain_data_crosses_both_ways_unchanged: requirement("sandbox.marshal.values"),
    values.what_is_not_plain_data_is_refused_with_its_path: requirement("sandbox.marshal.refused"),
    values.arguments_of_a_call_arrive_unchanged: requirement("sandbox.marshal.snapshot"),
    values.many_calls_are_outstanding_and_each_gets_its_answer: requirement("sandbox.bridge.calls"),
    values.a_call_that_is_open_at_the_end_changes_nothing: requirement("sandbox.bridge.calls"),
    isolation.only_the_language_itself_is_available: requirement("sandbox.isolate.ambient"),
    isolation.executions_leave_nothing_behind: requirement("sandbox.isolate.fresh"),
    isolation.only_bridged_env_values_are_seen: (),
}
# JavaScript is TypeScript without its first step; what that step is about is checked for both.
BY_LANGUAGE: dict[Language, tuple[Check, ...]] = {
    "typescript": CHECKS,
    "javascript": (exports.types_are_erased_and_never_checked, failing.an_error_points_into_the_source),
    "python": CHECKS,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncGenerator[Sandbox]:
    """One for all: a check leaves nothing behind, and engines cost time to start."""
    async with Sandbox(max_running=3) as sandbox:
        yield sandbox


@pytest.mark.parametrize(
    ("language", "check"),
    [
        pytest.param(language, check, marks=SHOWN[check], id=f"{language}-{check.__name__}")
        for language, checks in BY_LANGUAGE.items()
        for check in checks
    ],
)
async def test_an_engine_conforms(sandbox: Sandbox, language: Language, check: Check) -> None:
    await check(Bench(sandbox, language))

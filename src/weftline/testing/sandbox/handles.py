"""The handle: it is returned at once, settles once, and ends when it is terminated."""

from __future__ import annotations

import asyncio

from msgspec import UNSET

from weftline.testing.sandbox.bench import Bench, Check, Gate, error_of, settled, value_of

WAITS = "export default async () => await gate(1)"
PYTHON_WAITS = "async def default():\n    return await gate(1)"


async def code_starts_without_being_awaited(bench: Bench) -> None:
    gate = Gate()
    execution = bench.start(WAITS, PYTHON_WAITS, globals={"gate": gate})
    assert execution.running
    await gate.reached()
    gate.let.set()
    assert await value_of(execution) == [1]
    assert not execution.running


async def everybody_who_awaits_gets_the_same_result(bench: Bench) -> None:
    gate = Gate()
    execution = bench.start(WAITS, PYTHON_WAITS, globals={"gate": gate})
    impatient, patient = (asyncio.ensure_future(settled(execution)) for _ in range(2))
    await gate.reached()
    impatient.cancel()
    await asyncio.wait([impatient])
    assert impatient.cancelled() and execution.running
    gate.let.set()
    result = await patient
    assert result.status == "success"
    assert await execution is result


async def a_terminated_handle_reports_the_reason(bench: Bench) -> None:
    gate = Gate()
    execution = bench.start(WAITS, PYTHON_WAITS, globals={"gate": gate})
    await gate.reached()
    execution.terminate("Enough of this.")
    execution.terminate("Something else.")
    result = await settled(execution)
    assert (result.status, result.result) == ("terminated", UNSET)
    assert result.error is not None and result.error.message == "Enough of this."
    execution.terminate("Too late.")
    assert await execution is result
    assert not execution.running


async def a_tight_loop_is_ended_and_blocks_nobody(bench: Bench) -> None:
    # Both run at once and the loop continues: otherwise the second would never answer.
    endless = bench.start("for (;;);\nexport default 1", "while True:\n    pass\ndefault = 1")
    assert await value_of(bench.start("export default 2", "default = 2")) == 2
    assert endless.running
    endless.terminate("Stop.")
    assert (await error_of(endless, "terminated")).message == "Stop."


async def every_result_has_its_fields(bench: Bench) -> None:
    success = await settled(bench.start("export default 1", "default = 1"))
    assert (success.status, success.result, success.error) == ("success", 1, None)
    assert success.duration_ms > 0
    assert (success.reports, success.logs) == ((), ())
    assert success.memory_used_bytes is None or success.memory_used_bytes >= 0
    failure = await settled(
        bench.start("throw new Error('no'); export default 1", "default = 1\nraise ValueError('no')")
    )
    assert (failure.status, failure.result) == ("error", UNSET)
    assert failure.error is not None and failure.error.message == "no"


async def code_that_ends_without_a_value_succeeds(bench: Bench) -> None:
    result = await settled(bench.start("export default () => {}", "def default():\n    pass"))
    assert (result.status, result.result) == ("success", None)


async def too_much_memory_is_a_status(bench: Bench) -> None:
    script = (
        "export default (n) => { const all = []; for (let i = 0; i < n; i++) all.push('x' + i); return all.length }"
    )
    python = (
        "def default(n):\n    all = []\n    for i in range(n):\n        all.append('x' + str(i))\n    return len(all)"
    )
    if bench.language == "typescript":
        script = script.replace("(n)", "(n: number)").replace("all = []", "all: string[] = []")
    limit = 32 << 20
    error = await error_of(bench.start(script, python, args=[10**8], memory_limit_bytes=limit), "memory")
    assert error.name == "MemoryError"
    assert await value_of(bench.start(script, python, args=[1000], memory_limit_bytes=limit)) == 1000


CHECKS: tuple[Check, ...] = (
    code_starts_without_being_awaited,
    everybody_who_awaits_gets_the_same_result,
    a_terminated_handle_reports_the_reason,
    a_tight_loop_is_ended_and_blocks_nobody,
    every_result_has_its_fields,
    code_that_ends_without_a_value_succeeds,
    too_much_memory_is_a_status,
)

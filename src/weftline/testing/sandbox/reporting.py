"""Reports and logs: in order, as they were at the time of the call, and only if they were asked for."""

from __future__ import annotations

import time

from weftline.testing.sandbox.bench import Bench, Check, Gate, error_of, is_refused, settled, value_of


async def reports_arrive_in_order_while_the_code_runs(bench: Bench) -> None:
    gate, received = Gate(), list[object]()
    script = "const x = { n: 1 }; report(x); x.n = 2; report(x); await gate(); throw new Error('no'); export default 1"
    python = "x = {'n': 1}\nreport(x)\nx['n'] = 2\nreport(x)\nawait gate()\ndefault = 1\nraise ValueError('no')"
    execution = bench.start(script, python, globals={"gate": gate}, report=received.append)
    await gate.reached()
    assert execution.reports == ({"n": 1}, {"n": 2})
    received[0]["n"] = 5  # pyright: ignore
    gate.let.set()
    result = await settled(execution)
    assert result.status == "error"
    assert result.reports == ({"n": 1}, {"n": 2})
    assert len(received) == 2


async def without_a_sink_there_is_no_report(bench: Bench) -> None:
    error = await error_of(bench.start("report(1); export default 1", "report(1)\ndefault = 1"), "error")
    assert error.name in ("ReferenceError", "NameError")
    own: list[object] = []
    script = "import { report } from 'lib'; await report(1); export default 1"
    python = "from lib import report\nawait report(1)\ndefault = 1"
    result = await settled(bench.start(script, python, imports={"lib": {"report": own.append}}))
    assert (result.status, result.reports, own) == ("success", (), [1])


async def two_things_called_report_are_refused_at_the_call(bench: Bench) -> None:
    assert is_refused(lambda: bench.start("", "", globals={"report": 1}, report=print))


async def logs_are_kept_by_level(bench: Bench) -> None:
    script = (
        "const x = [1]; console.log('a', x); x.push(2); console.info('b'); console.warn('c'); console.error('d');"
        "console.debug(null, true, 1.5, () => 1); export default console.log('end')"
    )
    python = (
        "x = [1]\nconsole.log('a', x)\nx.append(2)\nconsole.info('b')\nconsole.warn('c')\nconsole.error('d')\n"
        "console.debug(None, True, 1.5, lambda: 1)\nprint('end')\ndefault = None"
    )
    before = time.time_ns() // 1_000_000
    result = await settled(bench.start(script, python))
    assert result.status == "success", result.error
    assert [log.level for log in result.logs] == ["log", "info", "warn", "error", "debug", "log"]
    assert result.logs[0].args == ("a", [1])
    *plain, function = result.logs[4].args
    assert plain == [None, True, 1.5]
    assert isinstance(function, str) and len(function) < 250
    assert result.logs[5].args == ("end",)
    assert all(before <= log.timestamp <= time.time_ns() // 1_000_000 for log in result.logs)


async def a_custom_console_is_used_instead(bench: Bench) -> None:
    reported: list[object] = []
    script = "console.log('mine'); await done(); export default typeof globalThis.console"
    python = "console.log('mine')\nprint('and', 'this')\nawait done()\ndefault = 'undefined'"
    console = {"log": reported.append}
    execution = bench.start(script, python, globals={"console": console, "done": lambda: None})
    assert await value_of(execution) == "undefined"
    expected = ["mine", "and this"] if bench.language == "python" else ["mine"]
    assert ((await execution).logs, reported) == ((), expected)


CHECKS: tuple[Check, ...] = (
    reports_arrive_in_order_while_the_code_runs,
    without_a_sink_there_is_no_report,
    two_things_called_report_are_refused_at_the_call,
    logs_are_kept_by_level,
    a_custom_console_is_used_instead,
)

"""A conformance suite for code engines: checks that an engine keeps the promises of `sandbox/base.py`.

It needs a `Bench` around a sandbox and a language, which checks may share:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_engine_conforms(check):
        async with Sandbox(engines=[MyEngine()]) as sandbox:
            await check(Bench(sandbox, "python"))

Every broken promise is an `AssertionError`. What an engine cannot do it refuses at the call, by name.
"""

from __future__ import annotations

from weftline.testing.sandbox import exports, failing, handles, importing, isolation, reporting, values
from weftline.testing.sandbox.bench import Bench, Check

__all__ = ["CHECKS", "Bench", "Check"]

CHECKS: tuple[Check, ...] = (
    *handles.CHECKS,
    *exports.CHECKS,
    *importing.CHECKS,
    *reporting.CHECKS,
    *failing.CHECKS,
    *values.CHECKS,
    *isolation.CHECKS,
)
"""Every promise; no check leaves anything behind that the next would notice."""

"""Every engine keeps every promise of a code engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from weftline.sandbox import Language, Sandbox
from weftline.testing.sandbox import CHECKS, Bench, Check

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncGenerator[Sandbox]:
    """One for all: a check leaves nothing behind, and engines cost time to start."""
    async with Sandbox(max_running=3) as sandbox:
        yield sandbox


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("language", ["typescript", "javascript", "python"])
async def test_an_engine_conforms(sandbox: Sandbox, language: Language, check: Check) -> None:
    await check(Bench(sandbox, language))

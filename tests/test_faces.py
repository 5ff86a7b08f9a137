"""The blocking faces are written by a script; what is checked in is what it writes."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

_SCRIPT = runpy.run_path(str(Path(__file__).parent.parent / "scripts" / "faces.py"))


@pytest.mark.parametrize("module", list(_SCRIPT["FACES"]))
def test_blocking_faces_match_their_async_classes(module: str) -> None:
    written = cast("Callable[[str], str]", _SCRIPT["source_of"])(module)
    path = cast("Callable[[str], Path]", _SCRIPT["path_of"])(module)
    assert path.read_text(encoding="utf-8") == written, "run `make faces`"

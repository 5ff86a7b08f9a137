"""What every test may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The checkout, for tests that look at the project's own files."""
    return Path(__file__).resolve().parent.parent

"""What every test may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Nothing here may depend on how busy the machine is: no deadline, and no health check that watches the clock.
settings.register_profile(
    "small",
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # The same examples each time: a change is judged by what it changed. The deep profile looks for the rest.
    derandomize=True,
    database=None,
)
settings.register_profile("deep", settings.get_profile("small"), max_examples=1000, derandomize=False, print_blob=True)
settings.load_profile("small")


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The checkout, for tests that look at the project's own files."""
    return Path(__file__).resolve().parent.parent

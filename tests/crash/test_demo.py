"""`make demo` as it is: it counts for itself, and fails when a promise was broken."""

from __future__ import annotations

from pathlib import Path

from forked import run_python


def test_the_demo_ends_by_itself_and_has_found_nothing_repeated(project_root: Path) -> None:
    done = run_python(str(project_root / "examples" / "demo.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIGKILL" in done.stdout and "Nothing was repeated" in done.stdout
    assert "\x1b" not in done.stdout and not done.stderr, "plain text where nobody looks on"

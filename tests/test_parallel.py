"""Tests in forked processes: every one is run once, whatever happens to the processes, and is told of as always."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from forked import run_python

PROGRAM = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import pytest; sys.exit(pytest.main())"
SUITE = """
import os, pathlib, pytest

HERE = pathlib.Path(__file__).parent

@pytest.fixture(scope="session", autouse=True)
def session():
    yield
    (HERE / f"left-{os.getpid()}").touch()

@pytest.mark.parametrize("number", range(100))
def test_passes(number):
    with open(HERE / "ran", "a") as file:
        file.write(f"{number}\\n")

def test_takes_its_process_along():
    os._exit(7)

def test_fails(capfd):
    print("captured")
    assert capfd.readouterr().out == "captured\\n"
    print("told")
    assert False
"""
FAILS_FIRST = """
import pytest

def test_fails():
    assert False

@pytest.mark.parametrize("number", range(20))
def test_passes(number):
    pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
def test_tests_run_once_and_process_killers_fail(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    done = run_suite(tmp_path, "--forks", "3")
    assert done.returncode == 1, done.stderr
    assert sorted(json.loads(line) for line in (tmp_path / "ran").read_text().splitlines()) == list(range(100))
    assert "2 failed, 100 passed" in done.stdout
    assert "the process of this test ended with 7" in done.stdout and "told" in done.stdout
    assert 1 <= len(list(tmp_path.glob("left-*"))) <= 3, "what a session holds is let go of where it ends in peace"


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
def test_the_first_failure_ends_it_if_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(FAILS_FIRST)
    done = run_suite(tmp_path, "--forks", "2", "-x")
    assert done.returncode == 1 and "1 failed" in done.stdout and "passed" not in done.stdout


def run_suite(folder: Path, *options: str) -> CompletedProcess[str]:
    fixed = ("-p", "parallel", "-p", "no:cacheprovider", f"--rootdir={folder}", str(folder))
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # others take long to import
    return run_python("-c", PROGRAM, *options, *fixed, env=env, cwd=folder)

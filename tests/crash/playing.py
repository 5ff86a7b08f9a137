"""Scripts of these tests: killed in a process of their own, and carried on by somebody else."""

from __future__ import annotations

import logging
import os
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from unittest.mock import patch

from hypothesis import settings

from forked import run_python
from weftline.runtime import trials


def play_apart(script: str, *arguments: str, point: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the script in a process that dies at this point."""
    return run_python(script, *arguments, env=os.environ | {"WEFTLINE_CRASH": point})


def play_on(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the script to its end: in this process, which is as new to the store as any other. An error is raised.

    In the deep profile it has a process of its own too.
    """
    if settings.get_current_profile_name() == "deep":
        return play_apart(script, *arguments)
    out, err = StringIO(), StringIO()
    warnings = logging.StreamHandler(err)
    warnings.setLevel(logging.WARNING)
    logging.getLogger().addHandler(warnings)
    try:
        with (
            redirect_stdout(out),
            patch.object(sys, "argv", [script, *arguments]),
            patch.object(trials, "TRIAL_S", 0.1),  # a run that died twice waits twice as long
        ):
            runpy.run_path(script, run_name="__main__")
    finally:
        logging.getLogger().removeHandler(warnings)
    return subprocess.CompletedProcess(arguments, 0, out.getvalue(), err.getvalue())

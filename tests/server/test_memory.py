"""What large requests took goes back to the system."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROBE = """
from pathlib import Path
from weftline.server.process import return_large_blocks

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if not return_large_blocks():
    raise SystemExit("not glibc")
MB = 1024 * 1024
before = resident()
del [bytearray(b"x") * (16 * MB)][:]
large = [bytearray(b"x") * (12 * MB) for _ in range(10)]
pin = bytearray(b"x") * 4000
assert resident() > before + 100 * MB
del large
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux how much memory a process has")
def test_memory_of_large_blocks_is_returned_when_they_are_freed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60, env={}, check=False
    )
    if "not glibc" in done.stderr:
        pytest.skip("this C library returns memory in its own way")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 30 * 1024 * 1024

"""Generates a test from a run: a Python file, and beside it the recording that it replays."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Mapping
from pathlib import Path

from weftline.errors import InvalidRequest
from weftline.replay.exporting import new_file
from weftline.replay.format import Digest, EndLine, Offered, OfferedLine, decode_line, encode_line

_TEST = '''"""Replays {run}, recorded in {recording}: models, tools and people are answered from there.

It fails when the prompt, the tools or the way that arguments are handled change its course.
"""

from pathlib import Path

from weftline.testing import replay


def test_{name}_comes_out_as_it_did() -> None:
    replay(Path(__file__).with_name({recording!r}){agents})
'''


async def write_test(
    path: Path,
    lines: AsyncIterable[bytes],
    *,
    run_id: str,
    offered: Mapping[str, Offered],
    agents: str | None,
    force: bool = False,
) -> tuple[Path, Path]:
    """Writes the test to `path` and the recording beside it; returns both.

    Raises `Conflict` if one of them exists, unless `force`.
    """
    if path.suffix != ".py":
        raise InvalidRequest(f"{path} is not the name of a Python file.")
    recording = path.with_suffix(".jsonl")
    where = "" if agents is None else f", agents={_from(path, agents)}"
    text = _TEST.format(run=run_id, recording=recording.name, name=_words(path), agents=where)
    with new_file(path, force=force) as test, new_file(recording, force=force) as file:
        digest = Digest()
        async for line in lines:
            if isinstance(decode_line(line), EndLine):
                break
            file.write(digest.take(line))
        for run, offer in offered.items():
            file.write(digest.take(encode_line(OfferedLine(run, offer))))
        file.write(encode_line(EndLine(digest.lines, digest.hex)))
        test.write(text.encode())
    return path, recording


def _from(path: Path, agents: str) -> str:
    """The path from the test to the agents' file, which stays valid if both are moved together. A module has a name."""
    if not Path(agents).exists():
        return repr(agents)
    return f"Path(__file__).parent / {os.path.relpath(Path(agents).absolute(), path.absolute().parent)!r}"


def _words(path: Path) -> str:
    words = path.stem.removeprefix("test_")
    return "".join([letter if letter.isalnum() else "_" for letter in words]) or "the_run"

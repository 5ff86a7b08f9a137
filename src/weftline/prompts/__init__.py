"""Every text of ours that a model reads: results that no tool produced, nudges and instructions.

They are prompts. Each says what happened, whether anything took effect, and what to do next, in words that make sense
to a reader who knows nothing about this server. A test pins them all. A text that clients also see and compare stays as
they know it; a note next to it says so.
"""

from __future__ import annotations

from weftline.prompts import (
    behavior,
    builtin,
    calls,
    code,
    compaction,
    failure,
    files,
    models,
    people,
    policy,
    remote,
    seats,
    skills,
    subagents,
    turns,
)

__all__ = [
    "behavior",
    "builtin",
    "calls",
    "code",
    "compaction",
    "failure",
    "files",
    "models",
    "people",
    "policy",
    "remote",
    "seats",
    "skills",
    "subagents",
    "turns",
]

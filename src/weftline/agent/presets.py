"""Presets that come with Weftline, for agents that work in a directory.

from weftline.behaviors import presets

agent = Agent("anthropic:claude-sonnet-4-5", preset=presets.build("./project"))
"""

from __future__ import annotations

import os

from weftline import prompts
from weftline.agent.behavior import Behavior
from weftline.agent.preset import Preset
from weftline.tools.builtin.files import files
from weftline.tools.builtin.people import ask_user, present_plan
from weftline.tools.builtin.shell import shell
from weftline.tools.builtin.todo import todo

PERSIST_EXCLUDE_TOOLS = ("read_file", "list_files", "glob", "grep", "skills_read")
"""Their results are paged: writing them to a file would only make the model read it again."""
_CODING = Behavior(compact_strategy="tail", elide_stale_reads=True, persist_exclude_tools=PERSIST_EXCLUDE_TOOLS)


def basic(root: str | os.PathLike[str] = ".") -> Preset:
    """Files and commands in a directory, and nothing else."""
    return Preset(name="basic", tools=[files(root), shell(root=root)])


def build(root: str | os.PathLike[str] = ".") -> Preset:
    """For changing files in a directory: a file is read before it is edited, and long runs stay within limits."""
    return Preset(
        name="build",
        instructions=prompts.behavior.BUILD,
        tools=[files(root, require_read_before_edit=True), shell(root=root), todo()],
        behavior=_CODING,
    )


def plan(root: str | os.PathLike[str] = ".") -> Preset:
    """For reading and planning: nothing is changed, no command is run, and a person reviews the plan."""
    tools = [files(root, write=False), todo(), ask_user, present_plan]
    return Preset(name="plan", instructions=prompts.behavior.PLAN, tools=tools, behavior=_CODING)

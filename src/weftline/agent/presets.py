"""Presets that come with Weftline, for agents that work in a directory.

from weftline.agent import presets

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
"""Their results have pages of their own: a file with what they read would only be read again."""
_CODING = Behavior(compact_strategy="tail", elide_stale_reads=True, persist_exclude_tools=PERSIST_EXCLUDE_TOOLS)


def basic(root: str | os.PathLike[str] = ".") -> Preset:
    """Files and commands in a directory, and nothing else."""
    return Preset(name="basic", tools=[files(root), shell(root=root)])


def build(root: str | os.PathLike[str] = ".") -> Preset:
    """For changing what is in a directory: a file is read before it is edited, and long runs stay within bounds."""
    return Preset(
        name="build",
        instructions=prompts.behavior.BUILD,
        tools=[files(root, require_read_before_edit=True), shell(root=root), todo()],
        behavior=_CODING,
    )


def plan(root: str | os.PathLike[str] = ".") -> Preset:
    """For looking and thinking: nothing is changed, no command is run, and a person is shown the plan."""
    tools = [files(root, write=False), todo(), ask_user, present_plan]
    return Preset(name="plan", instructions=prompts.behavior.PLAN, tools=tools, behavior=_CODING)

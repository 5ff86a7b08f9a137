"""Folders of agents for the tests of this directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from weftline.threads import Problem, Project, read_project

IMPORTS = "from weftline.threads import *\n"
MODEL = 'model = define_model(name="fast", provider="test", model="desk")\n'
TONE = 'prompt = define_prompt(name="tone", model="fast", tool_description="How we write.", prompt="Be kind.")\n'
AGENT = 'agent = define_agent(name="tone", side_a=SideConfig(prompt="tone"))\n'
FIND = """
@define_tool(effect="read")
async def find_order(state: ThreadState, number: str) -> str:
    '''Finds an order.'''
    return number
"""
SMALL = {"agents/models/fast.py": MODEL, "agents/prompts/tone.py": TONE, "agents/agents/tone.py": AGENT}
"""The least that is a folder of Python files: a model, a prompt and an agent."""


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Writes the files of a folder. Python files below `agents` begin with the import of our names."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        ours = name.startswith("agents/") and name.endswith(".py")
        path.write_text(IMPORTS + text if ours else text, encoding="utf-8")
    return root


def read(root: Path, files: Mapping[str, str]) -> Project:
    return read_project(write(root / "desk", files))


def said(root: Path, problems: Iterable[Problem]) -> list[str]:
    """The problems as they are shown, with paths below the folder."""
    return [str(one).replace(f"{root / 'desk'}/", "") for one in problems]

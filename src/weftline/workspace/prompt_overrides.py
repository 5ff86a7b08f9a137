"""Overrides of agents' prompts."""

from __future__ import annotations

from weftline.store.records import prompt_overrides
from weftline.store.records.prompt_overrides import PromptOverrideRow
from weftline.workspace.context import Workspaces


async def add(at: Workspaces, workspace: int, row: PromptOverrideRow) -> None:
    await at.records.write(prompt_overrides.insert(row, workspace=workspace))


async def of_workspace(at: Workspaces, workspace: int) -> list[PromptOverrideRow]:
    """Newest first."""
    return await at.records.read(prompt_overrides.of_workspace(workspace))

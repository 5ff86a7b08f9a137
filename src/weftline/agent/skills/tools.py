"""The three tools with which a model activates a skill, reads its files and runs its scripts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, Protocol, cast

from weftline import prompts
from weftline.agent.skills.activation import SkillActivations
from weftline.agent.skills.content import (
    ALL_COMMANDS_TIMEOUT_S,
    MAX_OUTPUT_BYTES,
    Runs,
    read_lines,
    script_command,
    tail,
)
from weftline.agent.skills.format import MAX_DESCRIPTION_CHARS, Skill
from weftline.tools.base import Tool, ToolContext, ToolFailed, ToolOutput
from weftline.tools.function import FunctionTool


class Catalog:
    """The skills that can be used, by name."""

    def __init__(self, skills: Iterable[Skill] = ()) -> None:
        self._skills = {skill.name: skill for skill in sorted(skills, key=lambda skill: skill.name)}
        self.names = tuple(self._skills)
        """The valid values of the name argument of skills_use."""
        self.text = prompts.skills.catalog([(skill.name, one_line(skill.description)) for skill in self])
        """The catalog for the system prompt; empty if there are no skills."""

    def __iter__(self) -> Iterator[Skill]:
        return iter(self._skills.values())

    def __len__(self) -> int:
        return len(self._skills)

    def get(self, name: str) -> Skill | None:
        return self._skills.get(name)


def one_line(description: str) -> str:
    """Returns a description as one line, without control characters and within the maximum length of the format."""
    words = "".join(char if char.isprintable() or char.isspace() else "\ufffd" for char in description)
    line = " ".join(words.split())
    return line if len(line) <= MAX_DESCRIPTION_CHARS else line[: MAX_DESCRIPTION_CHARS - 1] + "…"


SCRIPT_TIMEOUT_S = 60.0
MAX_SCRIPT_TIMEOUT_S = 600.0
_GRACE_S = 60.0
"""How much longer a call may take than what it runs."""


class Offer(Protocol):
    """The skills and the run that the tools operate on."""

    @property
    def catalog(self) -> Catalog: ...
    @property
    def runs(self) -> Runs: ...
    async def use(self, name: str, context: ToolContext) -> str: ...


def skill_tools(skills: Offer, names: Sequence[str]) -> tuple[Tool, ...]:
    """Returns the tools for the skills with these names; none if there are no names."""
    if not names:
        return ()

    async def skills_use(name: str, context: ToolContext) -> str:
        """Activates a skill and returns its instructions. Follow them.

        Args:
            name: Name of the skill, as your instructions list it.
        """
        return await skills.use(name, context)

    async def skills_read(name: str, path: str, context: ToolContext, offset: int = 1, limit: int = 2000) -> str:
        """Reads a text file of an active skill.

        Args:
            name: Name of the skill.
            path: Path of the file, relative to the directory of the skill.
            offset: The line to begin with; the first line is 1.
            limit: How many lines to read; 0 for as many as fit.
        """
        directory = _directory(skills, name, context)
        return await asyncio.to_thread(read_lines, directory, path, offset=offset, limit=limit)

    async def skills_run_script(
        name: str,
        script: str,
        context: ToolContext,
        args: list[str] = [],  # noqa: B006  read, never changed
        timeout: float = SCRIPT_TIMEOUT_S,
    ) -> ToolOutput:
        """Runs a script of an active skill, in the directory of the skill, and returns what it prints.

        Args:
            name: Name of the skill.
            script: Path of the script, relative to the directory of the skill.
            args: Arguments, each passed on exactly as it is; no shell reads them.
            timeout: Seconds after which the script is stopped; 600 at most.
        """
        return await _run_script(skills, name, script, context, args=args, timeout_s=timeout)

    # The names are only known at run time, so the annotation is set here.
    skills_use.__annotations__["name"] = _one_of(names)
    return (
        FunctionTool(skills_use, effect="idempotent", timeout_s=ALL_COMMANDS_TIMEOUT_S + _GRACE_S),
        FunctionTool(skills_read, effect="read"),
        FunctionTool(skills_run_script, effect="once", timeout_s=MAX_SCRIPT_TIMEOUT_S + _GRACE_S),
    )


def _one_of(names: Sequence[str]) -> Any:
    from pydantic import Field

    def as_enum(schema: dict[str, Any]) -> None:
        # For a single name pydantic writes `const`, which fewer models support.
        schema.pop("const", None)
        schema["enum"] = list(names)

    return Annotated[cast("Any", Literal)[tuple(names)], Field(json_schema_extra=as_enum)]


def _active(skills: Offer, name: str, context: ToolContext) -> Skill:
    skill = skills.catalog.get(name)
    if skill is None or name not in SkillActivations(context.state).names:
        raise ToolFailed(prompts.skills.not_active(name))
    return skill


def _directory(skills: Offer, name: str, context: ToolContext) -> str:
    skill = _active(skills, name, context)
    if not skill.directory:
        raise ToolFailed(prompts.skills.no_files(name))
    return skill.directory


async def _run_script(
    skills: Offer, name: str, script: str, context: ToolContext, *, args: Sequence[str], timeout_s: float
) -> ToolOutput:
    directory = _directory(skills, name, context)
    if not _active(skills, name, context).trusted:
        raise ToolFailed(prompts.skills.script_untrusted(name))
    command = [*await asyncio.to_thread(script_command, directory, script), *args]
    timeout_s = min(max(timeout_s, 0.001), MAX_SCRIPT_TIMEOUT_S)
    began = time.monotonic()
    try:
        ran = await skills.runs.exec(command, cwd=directory, timeout_s=timeout_s)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ToolFailed(prompts.skills.script_not_started(script, reason)) from None
    elapsed_ms = round((time.monotonic() - began) * 1000)
    # They share one budget: errors are mostly short, and the purpose of the script is its stdout.
    stderr = tail(ran.stderr, ran.dropped_stderr, max_bytes=MAX_OUTPUT_BYTES // 2)
    stdout = tail(ran.stdout, ran.dropped_stdout, max_bytes=MAX_OUTPUT_BYTES - min(len(ran.stderr), len(stderr)))
    done = prompts.skills.script_done(
        stdout.rstrip("\n"), stderr.rstrip("\n"), exit_code=ran.exit_code, elapsed_ms=elapsed_ms
    )
    if ran.timed_out:
        return ToolOutput.of(prompts.skills.script_timed_out(done, timeout_s), is_error=True)
    # The model judges a non-zero exit code: `grep` that finds nothing fails too.
    return ToolOutput.of(done)

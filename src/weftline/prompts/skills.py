"""Texts for a model about skills: the catalog, the content of one, and the answers of the three skills tools."""

from __future__ import annotations

from collections.abc import Sequence

from weftline.text.display import escaped

CONTENT_START = "<skill_content"


# The catalog, in the system prompt

CATALOG = (
    "Skills are instructions, files and scripts for particular kinds of task. When a task fits a skill's description, "
    "call skills_use with its name before you begin, and follow what it says. "
    "Use only the skills that the task needs."
)


def catalog(skills: Sequence[tuple[str, str]]) -> str:
    """Returns the skills by name and description; empty if there are none."""
    if not skills:
        return ""
    listed = "".join(
        f"<skill>\n<name>{escaped(name)}</name>\n<description>{escaped(description)}</description>\n</skill>\n"
        for name, description in skills
    )
    return f"{CATALOG}\n\n<available_skills>\n{listed}</available_skills>"


# The content of a skill


def skill_content(
    name: str, body: str, *, directory: str, compatibility: str, allowed_tools: str, resources: Sequence[str], left: str
) -> str:
    """Returns the result of skills_use.

    `body` must not contain the closing tag; `left` is the number of files that are not listed.
    """
    lines = [f'{CONTENT_START} name="{escaped(name)}">', body, ""]
    if directory:
        lines.append(f"Directory of this skill: {escaped(directory)}")
        lines.append(
            "Paths in this skill are relative to that directory. "
            "Read its files with skills_read and run its scripts with skills_run_script."
        )
    if compatibility:
        lines.append(f"Compatibility: {escaped(compatibility)}")
    if allowed_tools:
        lines.append(f"Allowed tools: {escaped(allowed_tools)}")
    if resources:
        files = "".join(f"<file>{escaped(path)}</file>\n" for path in resources)
        lines.append(f"<skill_resources>\n{files}</skill_resources>")
    if left:
        lines.append(left)
    return "\n".join([*lines, "</skill_content>"])


def resources_left(count: int, *, at_least: bool) -> str:
    return f"({'at least ' if at_least else ''}{count:,} more files of this skill are not listed)"


def command_output_cut(text: str, dropped: int) -> str:
    """Returns the end of an output whose beginning was dropped."""
    return f"…({dropped} bytes truncated from head)…\n{text}"


def command_failed(command: str, exit_code: int, output: str) -> str:
    suffix = f": {output}" if output else ""
    return f"[The command `{command}` failed with exit code {exit_code}{suffix}]"


def command_timed_out(command: str, timeout_s: float) -> str:
    return f"[The command `{command}` did not finish within {timeout_s:g} seconds and was stopped]"


def command_not_started(command: str, reason: str) -> str:
    return f"[The command `{command}` could not be started: {reason}]"


def command_skipped(command: str) -> str:
    return f"[The command `{command}` was not run: this skill has too many commands, or they take too long]"


# What the tools say instead of a result


def already_active(name: str) -> str:
    return f"The skill {name} is already active; its instructions are above. Continue with them."


def unknown_skill(name: str, near: str) -> str:
    """`near` is a sentence with a leading space, or empty."""
    return f"There is no skill named {name!r}.{near} Use one of the skills listed in your instructions."


def too_many_active(name: str, active: Sequence[str], max_active: int) -> str:
    times = "one skill" if max_active == 1 else f"{max_active} skills"
    return (
        f"The skill {name} was not activated: at most {times} may be active at once in this run. Active now: "
        f"{', '.join(active)}. Continue with those, or without a skill."
    )


def not_active(name: str) -> str:
    return f"The skill {name!r} is not active. Call skills_use with its name first."


def no_files(name: str) -> str:
    return f"The skill {name} has no files."


NOT_A_FILE = "it is not a file"
NOT_A_NAME = "its name contains a NUL character"
NOT_RELATIVE = "its path must be relative to the skill's directory"
PATH_TOO_LONG = "its path is too long"
OUTSIDE = "it is outside the skill's directory"
LINKS_IN_A_CIRCLE = "its links form a loop"
LINK_OUT = "it is a link that leads out of the skill's directory"
NOT_OPENED = "it could not be opened"
"""Reasons for `file_refused`."""


def file_refused(path: str, reason: str) -> str:
    return f"{path!r} cannot be read: {reason}."


def file_missing(path: str) -> str:
    return f"There is no file {path!r} in this skill. Its files are listed in the result of skills_use."


def file_binary(path: str, size: int) -> str:
    return f"[{path} is a binary file ({size:,} bytes), which cannot be shown as text]"


def file_empty(path: str) -> str:
    return f"[{path} is empty]"


def file_ends_before(path: str, offset: int, lines: int) -> str:
    return f"[{path} has only {lines} lines; there is nothing at offset={offset}]"


def file_goes_on(text: str, *, next_offset: int) -> str:
    return f"{text}\n[More lines follow; read on with offset={next_offset}]"


def file_line_cut(text: str, *, next_offset: int) -> str:
    return f"{text}\n[This line is too long and was cut; read on after it with offset={next_offset}]"


def script_not_runnable(script: str) -> str:
    return (
        f"{script!r} cannot be run: it is not executable, has no #! line, and its file type is not "
        "supported. Read it with skills_read instead."
    )


def script_untrusted(name: str) -> str:
    return (
        f"The skill {name} comes with the project and is not trusted, so its scripts may not be run. "
        "Follow its instructions without them, or say that the script is needed."
    )


def script_not_started(script: str, reason: str) -> str:
    return f"{script!r} could not be started: {reason}."


def script_timed_out(output: str, timeout_s: float) -> str:
    head = f"{output}\n" if output else ""
    return (
        f"{head}[The script did not finish within {timeout_s:g} seconds and was stopped. "
        "Parts of it may have taken effect.]"
    )


def script_done(stdout: str, stderr: str, *, exit_code: int, elapsed_ms: int) -> str:
    """Returns the output of a script, and how it ended."""
    parts = [stdout] if stdout else []
    if stderr:
        parts.append(f"stderr:\n{stderr}")
    return "\n".join([*parts, f"(exit {exit_code}, {elapsed_ms}ms)"])


# Allowed tools


def tool_not_allowed(tool: str, skills: Sequence[str], allowed: Sequence[str]) -> str:
    which = f"the active skill {skills[0]} allows" if len(skills) == 1 else f"the active skills {_and(skills)} allow"
    rest = f"only {', '.join(allowed)}" if allowed else "no tools"
    return f"Blocked: {tool} may not be called this way now; {which} {rest}, besides the skills tools."


def _and(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"

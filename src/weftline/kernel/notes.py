"""The log's vocabulary for notes, which change nothing: what hooks and providers record about a turn, which prompts
were rendered, and how many calls the child run of a call has made. Notes are observations: readers can ask for them,
and they are never folded.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.json import Decoder

TEXT_DELTA = "delta.text"
THINKING_DELTA = "delta.thinking"
PROVIDER_CALL = "note.provider_call"
"""A tool that the provider ran itself while answering. Body: `ProviderNote`, one line; also part of the message."""
TOOL_PROGRESS = "note.tool_progress"
"""Progress of a tool call. Body: `ProgressNote`, one line."""
TOOL_NOTE = "note.tool"
"""A message from a running tool. Body: `ToolNote`, one line."""
RUN_NOTE = "note.run"
"""What a hook or a provider records about a turn. Body: `RunNote`, one line."""
PROMPT_NOTE = "note.prompt"
"""One of the agent's prompts was rendered. Body: `PromptNote`, one line."""
CHILD_NOTE = "note.child"
"""The child run of a call has asked for further calls. Body: `ChildNote`, one line."""
ARGS_DELTA = "delta.args"
"""A piece of a call's arguments as the model writes them, in runs that ask for these. Body: `ArgsDelta`, one line."""


class RunNote(Struct, omit_defaults=True):
    text: str
    labels: dict[str, str] = {}
    turn: int = 0


class PromptNote(Struct, omit_defaults=True):
    """Which version of which prompt was used, and what it was selected for: a thread, labels, both or neither."""

    prompt: str
    version: str
    thread: str = ""
    labels: dict[str, str] = {}


class ChildNote(Struct, omit_defaults=True):
    """The number of calls that the child run has made so far, not counting those of its own children."""

    call: str
    name: str
    calls: int


class ArgsDelta(Struct, omit_defaults=True):
    """`call` is the provider's id for the call, and `name` the tool as the model knows it."""

    call: str
    name: str
    text: str
    turn: int = 0
    attempt: int = 1


decode_args_delta = Decoder(ArgsDelta).decode
decode_child_note = Decoder(ChildNote).decode
decode_run_note = Decoder(RunNote).decode
decode_prompt_note = Decoder(PromptNote).decode

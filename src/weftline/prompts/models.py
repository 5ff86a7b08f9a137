"""Texts for a model because of the limits of its API: content that it does not accept, answers by a tool."""

from __future__ import annotations

from msgspec.json import encode


def unseen_image(media_type: str) -> str:
    return f"[An image ({media_type}) that this model cannot see.]"


def attached_text(name: str, content: str) -> str:
    """A text file that came with a message."""
    return f"Attached file {encode(name).decode()}:\n{content}"


def lost_attachment(media_type: str) -> str:
    return f"[An attachment ({media_type}) that is no longer stored.]"


def unfetched_attachment(url: str, media_type: str) -> str:
    return f"[An attachment ({media_type}) at {url}, which this model cannot fetch.]"


def unreadable_file(name: str | None, media_type: str, url: str | None) -> str:
    where = f" at {url}" if url else ""
    which = f"The file {name}" if name else "A file without a name"
    return f"[{which} ({media_type}){where}, which this model cannot read.]"


# For model APIs that have no other way

CONTINUE = "Continue."
"""Precedes a conversation that does not begin with a user."""
IMAGE_PLACEHOLDER = "[An image was shown here.]"
"""Replaces an image in the model's own messages."""
NO_RESULT = "No result was recorded for this call."
RESULT_FOLLOWS = "The result follows in the next message."
"""Replaces a result that the model API only accepts in a user message."""
ANSWER_TOOL = (
    "Gives the final answer. Call this tool once, when everything else is done, with the complete answer as its input; "
    "do not write the answer as text."
)
ANSWER_FUNCTION = "Delivers the final answer in the form that the caller needs."


def returned_by(tool: str, call_id: str) -> str:
    """Precedes what `RESULT_FOLLOWS` announced."""
    return f"Returned by {tool} ({call_id}):"


def late_system_message(content: str) -> str:
    return f"[System message]\n{content}"


def result_schema(schema: str) -> str:
    """Ends the description of a tool."""
    return f"The result follows this JSON Schema: {schema}"


def answer_by_tool(tool: str) -> str:
    return f"Give your final answer by calling the tool `{tool}`, never as text."


def answer_by_schema(schema: str) -> str:
    return (
        "When you give your final answer, write nothing but JSON that fits the JSON Schema below: no other text and no "
        f"code fence.\n\n{schema}"
    )


def answer_by_function(function: str) -> str:
    return (
        f"Give your final answer by calling the function `{function}` exactly once, with the answer as its arguments. "
        "Never write the final answer as plain text. Until the answer is ready, use the other functions as usual."
    )

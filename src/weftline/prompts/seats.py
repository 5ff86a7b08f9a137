"""Texts for a model that is one of several speakers of a run: what ends its turn, and what the other one hears."""

from __future__ import annotations

BEGIN = "Begin."
"""What the first side reads when nobody has said anything yet."""
NOTHING_SAID = "(nothing was said)"
"""What a side reads when the other's turn ended without text."""
CLOSING = {
    "max_steps": (
        "You have reached the number of steps that your turn may have, so tools are no longer available. "
        "End your turn now with an answer."
    ),
    "no_answer": (
        "You have answered several times without ending your turn, so tools are no longer available. "
        "End your turn now with an answer."
    ),
}
"""The instruction for the last answer of a turn, by its reason."""
NOT_SHOWN = "Done."
"""For a prompt that was called, if its caller does not read what came of it."""
OVERTAKEN = "Not run: another call of the same turn has ended this part of the conversation."
FAILED_BY_TOOL = "A tool has ended the session as failed."


def asked_on(stop_tool: str) -> str:
    return f"Go on, or call {stop_tool} when your turn is over." if stop_tool else "Go on."


def handed_over(agent: str) -> str:
    return f"The conversation is now with {agent}, who has read it. Answer as {agent} from here on."

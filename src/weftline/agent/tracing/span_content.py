"""The content of a run as attributes of its spans: JSON in the shape of OpenTelemetry's conventions for messages.

It is included only on request.
"""

from __future__ import annotations

from typing import Any

from msgspec.json import encode

from weftline.kernel.bodies import CreatedBody
from weftline.messages import Assistant, Message, System, Text, ToolCall, ToolResults, User, joined_text
from weftline.plan import decode_content


def input_messages(created: CreatedBody) -> dict[str, str]:
    """Returns the attributes of a run's instructions and input."""
    plan = decode_content(created.plan)
    found = {"gen_ai.input.messages": _json([_message(message) for message in plan.messages])}
    if plan.system:
        found["gen_ai.system_instructions"] = _json([_text(plan.system)])
    return found


def output_messages(message: Message) -> dict[str, str]:
    """Returns the attribute of a model call's answer."""
    return {"gen_ai.output.messages": _json([_message(message)])}


def final_answer(text: str) -> dict[str, str]:
    """Returns the attribute of a run's answer."""
    return output_messages(Assistant((Text(text),)))


def _message(message: Message) -> dict[str, Any]:
    match message:
        case System():
            return {"role": "system", "parts": [_text(message.content)]}
        case User():
            return {"role": "user", "parts": [_text(message.text)]}
        case Assistant():
            texts = [_text(part.text) for part in message.parts if isinstance(part, Text)]
            return {"role": "assistant", "parts": [*texts, *[_call(call) for call in message.calls]]}
        case ToolResults():
            parts = [
                {"type": "tool_call_response", "id": one.id, "response": joined_text(one.parts)}
                for one in message.results
            ]
            return {"role": "tool", "parts": parts}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.args}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _json(value: list[dict[str, Any]]) -> str:
    return encode(value).decode()

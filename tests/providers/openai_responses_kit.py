"""A provider of the Responses API that is asked and answered without a network."""

from __future__ import annotations

from typing import Any

from openai_stand_in import (
    events,
    sent_by,
)

from weftline.providers.base import (
    ModelRequest,
)
from weftline.providers.openai.responses import OpenAIResponses
from weftline.testing.recordings import RecordedTransport

KEY = "sk-secret-0123456789"


def response(*output: dict[str, Any], status: str = "completed", **fields: Any) -> dict[str, Any]:
    return {"object": "response", "status": status, "output": list(output), **fields}


def text_item(text: str, **fields: Any) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": content, **fields}


def completed(*output: dict[str, Any], kind: str = "completed", **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "response": response(*output, status=kind, **fields)}


HELLO = events(completed(text_item("Hello")))


def responses(transport: RecordedTransport, **settings: Any) -> OpenAIResponses:
    return OpenAIResponses(transport=transport, base_url="http://stand-in/v1", api_key=KEY, **settings)


async def sent(request: ModelRequest, **settings: Any) -> Any:
    return await sent_by(lambda transport: responses(transport, **settings), HELLO, request)


def folder(name: str) -> str:
    return f"openai_responses/{name}"


def ours(name: str) -> str:
    return f"streams/openai_responses/{name}"


ENCRYPTED, ENCRYPTED_RECORDED = ours("encrypted_reasoning"), folder("openai_responses_streaming_usage")


SEARCH, SEARCH_RECORDED = ours("file_search"), folder("openai_responses_model_file_search_tool_stream")

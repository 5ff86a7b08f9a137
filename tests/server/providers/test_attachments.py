"""Images and files as each family's API gets them: content, addresses, and words where a model cannot take them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from ..kit import Json
from .conftest import Team
from .dialects import FAMILIES, Dialect

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"pixels").decode()
PDF = base64.b64encode(b"%PDF-1.7 pages").decode()
NOTES = base64.b64encode("Grüße".encode()).decode()
SENT: list[Json] = [
    {"data": PNG, "name": "cat.png"},
    {"data": PDF, "name": "report.pdf"},
    {"data": NOTES, "mediaType": "text/plain", "name": "notes.txt"},
    {"url": "https://example.com/dog.jpg"},
]


def parts(family: str, body: Any) -> list[Json]:
    """The parts of the user's message, as this API has them."""
    match family:
        case "google":
            return body["contents"][0]["parts"]
        case "openai_responses":
            return body["input"][0]["content"]
        case _:
            return body["messages"][-1]["content"]


TEXT = '<file name="notes.txt">\nGrüße\n</file>'
EXPECTED: dict[str, list[Json]] = {
    "anthropic": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
            "title": "report.pdf",
        },
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "Grüße"},
            "title": "notes.txt",
        },
        {"type": "image", "source": {"type": "url", "url": "https://example.com/dog.jpg"}},
        {"type": "text", "text": "What?"},
    ],
    "google": [
        {"inlineData": {"mimeType": "image/png", "data": PNG}},
        {"inlineData": {"mimeType": "application/pdf", "data": PDF}},
        {"inlineData": {"mimeType": "text/plain", "data": NOTES}},
        {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://example.com/dog.jpg"}},
        {"text": "What?"},
    ],
    "openai_chat": [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {
            "type": "file",
            "file": {"filename": "report.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
        },
        {"type": "text", "text": TEXT},
        {"type": "image_url", "image_url": {"url": "https://example.com/dog.jpg"}},
        {"type": "text", "text": "What?"},
    ],
    "openai_responses": [
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"},
        {
            "type": "input_file",
            "filename": "report.pdf",
            "file_data": f"data:application/pdf;base64,{PDF}",
        },
        {"type": "input_text", "text": TEXT},
        {"type": "input_image", "image_url": "https://example.com/dog.jpg", "detail": "auto"},
        {"type": "input_text", "text": "What?"},
    ],
}


@pytest.mark.parametrize("family", FAMILIES)
async def test_attachments_reach_the_api_of_each_family(team: Team, family: str) -> None:
    dialect = FAMILIES[family]
    model = await team.bring(dialect)
    team.upstream.answers(dialect.answer("A cat."))
    frames = await team.run(model, prompt="What?", attachments=SENT)
    assert frames[-1]["text"] == "A cat."
    got = parts(family, team.upstream.asked[0].body)
    assert [{key: value for key, value in part.items() if key != "cache_control"} for part in got] == EXPECTED[family]


async def test_blind_model_reads_a_note_and_others_get_images(team: Team, dialect: Dialect) -> None:
    blind = {"id": "blind", "vision": False}
    await team.bring(dialect, models=[blind, dialect.model])
    failure = dialect.fails(400, "invalid_request_error")
    team.upstream.answers(failure, dialect.answer("A cat."))
    frames = await team.run(
        "mine:blind", prompt="What?", attachments=SENT[:1], modelFallbacks=[f"mine:{dialect.model}"]
    )
    assert frames[-1]["text"] == "A cat."
    first, second = team.upstream.asked
    assert b"An image (image/png) that this model cannot see." in first.raw and PNG.encode() not in first.raw
    assert PNG.encode() in second.raw

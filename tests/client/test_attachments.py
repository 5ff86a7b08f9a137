"""Attachments from Python: files, bytes and addresses, with a run and in a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from weftline.client import AsyncClient, Attachment, Client, InvalidSpec

PNG = b"\x89PNG\r\n\x1a\npixels"


async def test_a_run_takes_files_bytes_and_addresses(client: AsyncClient, tmp_path: Path) -> None:
    file = tmp_path / "notes.md"
    file.write_text("# Notes", encoding="utf-8")
    attachments = [str(file), file, Attachment(data=PNG, name="cat.png"), "https://example.com/dog.jpg"]
    result = await client.run("see", model_id="scripted:attached", attachments=attachments)
    assert result.text == (
        "text/markdown 7 bytes, text/markdown 7 bytes, image/png 14 bytes, image/jpeg https://example.com/dog.jpg"
    )
    spec = (await client.get_run(result.run_id)).spec
    assert [one.get("name") for one in spec["attachments"]] == ["notes.md", "notes.md", "cat.png", None]


def test_a_session_takes_them_and_tells_of_them(sync_client: Client) -> None:
    with sync_client.create_session(model_id="scripted:attached") as session:
        session.send("see", attachments=[Attachment(data=PNG, media_type="image/png")])
        assert session.send("again").text == "image/png 14 bytes"
        message, *_ = session.history()
    (kept,) = message.attachments
    assert (kept.media_type, kept.size_bytes, kept.url, len(kept.sha256 or "")) == ("image/png", 14, None, 64)


async def test_unsendable_input_is_refused_before_the_request(client: AsyncClient, tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="cannot be read"):
        await client.run("see", model_id="scripted:attached", attachments=[tmp_path / "missing.png"])
    with pytest.raises(InvalidSpec, match="either data or a url"):
        await client.run("see", model_id="scripted:attached", attachments=[Attachment(data=PNG, url="https://x/a.png")])

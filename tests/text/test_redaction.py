"""Blackening: what a peer was sent is found however it comes back, and nothing else is touched."""

from __future__ import annotations

import base64
import html
import io
import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.messages import File, Image, Text
from weftline.peer_responses import state_of
from weftline.providers.base import ToolSpec
from weftline.server.logs import configure_logs
from weftline.text.redaction import REDACTED, Redactor, redact_template, redact_url
from weftline.text.spellings import Needle
from weftline.tools.base import ToolContext, ToolOutput
from weftline.tools.remote import RemoteTool, redacted
from weftline.tools.schema import EMPTY_OBJECT_SCHEMA

SRC = Path(__file__).resolve().parents[2] / "src"
SECRET = 's3cr3t/"ü+&<'


@pytest.mark.parametrize(
    "spelled",
    [
        SECRET,
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        "".join(f"%{byte:02X}" for byte in SECRET.encode()),
        json.dumps(SECRET)[1:-1].replace("/", "\\/"),
        json.dumps(json.dumps(SECRET)[1:-1])[1:-1],
        "".join(f"\\u{ord(char):04x}" for char in SECRET),
        SECRET.encode().hex(),
        SECRET.encode().hex().upper(),
        html.escape(SECRET, quote=True),
        base64.b64encode(SECRET.encode()).decode(),
    ],
)
def test_a_secret_is_found_however_it_is_spelled(spelled: str) -> None:
    shown = Redactor([SECRET]).text(f"before {spelled} after")
    assert spelled.rstrip("=") not in shown and shown.startswith(f"before {REDACTED}") and shown.endswith(" after")
    data = Redactor([SECRET]).data(f"before {spelled} after".encode())
    assert spelled.rstrip("=").encode() not in data and REDACTED.encode() in data


@pytest.mark.parametrize(
    ("headers", "text", "shown"),
    [
        ({"Authorization": "Bearer abcd-1234"}, "Bearer abcd-1234, abcd-1234; Bearer", "{0}, {0}; Bearer"),
        ({"authorization": "Basic dXNlcjpwYXNz"}, "user:pass pass dXNlcjpwYXNz", "{0} {0} {0}"),
        ({"Cookie": "sid=abcdef; theme=dark"}, "abcdef dark", "{0} {0}"),
        ({"X-Api-Key": "k123"}, "k123", "{0}"),
        ({"X-Anything": "hush-hush"}, "hush-hush", "{0}"),
        ({"X-Team": "red", "X-Dry-Run": "true"}, "reduced: true", "reduced: true"),
        ({"Accept": "application/json"}, "application/json", "application/json"),
    ],
)
def test_of_headers_the_secret_parts_are_blacked_out(headers: dict[str, str], text: str, shown: str) -> None:
    assert Redactor.of_request("https://x.example", headers).text(text) == shown.format(REDACTED)


def test_of_an_address_the_credentials_and_tokens_are_blacked_out() -> None:
    redactor = Redactor.of_request("https://ann:p%40ss@x.example/a?token=t0ken&page=12345678&t=abcdefgh12345678", {})
    text = "p@ss ann:p%40ss t0ken abcdefgh12345678 page 12345678 x.example"
    assert redactor.text(text) == f"{REDACTED} {REDACTED} {REDACTED} {REDACTED} page 12345678 x.example"


def test_without_secrets_nothing_changes() -> None:
    assert not Redactor() and not Redactor(["", "ab"]) and Redactor(["", "ab"]).text("ab") == "ab"


@pytest.mark.parametrize(
    ("url", "shown", "template"),
    [
        ("https://x.example/a", "https://x.example/a", "https://x.example/a"),
        ("https://u:p@x.example/a", "https://[redacted]@x.example/a", "https://[redacted]@x.example/a"),
        ("https://x/?q={{q}}&n=1", "https://x/?q={{q}}&n=[redacted]", "https://x/?q={{q}}&n=1"),
        ("https://x/?api_key=1", "https://x/?api_key=[redacted]", "https://x/?api_key=[redacted]"),
        ("https://x?bare", "https://x?[redacted]", "https://x?bare"),
        ("https://x/#token", "https://x/", "https://x/"),
    ],
)
def test_an_address_is_shown_without_its_secrets(url: str, shown: str, template: str) -> None:
    assert redact_url(url) == shown == redact_url(shown)
    assert redact_template(url) == template == redact_template(template)


@given(st.text(), st.text(min_size=3), st.text())
def test_no_secret_survives(before: str, secret: str, after: str) -> None:
    shown = Redactor([secret]).text(before + secret + after)
    assert secret not in shown.replace(REDACTED, "") or secret in before + after or secret in REDACTED


def test_the_mark_is_written_down_once() -> None:
    spelled = [path.name for path in SRC.rglob("*.py") if f'"{REDACTED}"' in path.read_text(encoding="utf-8")]
    assert spelled == ["redaction.py"]


@pytest.fixture
def log() -> io.StringIO:
    stream = io.StringIO()
    configure_logs("info", stream=stream)
    return stream


def test_no_library_speaks_at_info(log: io.StringIO) -> None:
    for name in ("httpx", "httpx2", "mcp.client.streamable_http", "aiohttp.client", "uvicorn.error", "asyncio", "a.b"):
        logging.getLogger(name).info("GET https://x.example/?token=abc")
    assert log.getvalue() == ""
    logging.getLogger("weftline.server").info("hello")
    logging.getLogger("some.library").warning("trouble")
    assert "INFO weftline.server: hello" in log.getvalue() and "WARNING some.library: trouble" in log.getvalue()


def test_library_has_no_line_for_each_session_that_it_refuses(log: io.StringIO) -> None:
    sessions = logging.getLogger("mcp.server.streamable_http_manager")
    sessions.warning("Refusing to open a new session: %d sessions are already open", 500)
    assert log.getvalue() == ""
    sessions.error("Session %s crashed", "a")
    assert "Session a crashed" in log.getvalue()


def test_addresses_and_credentials_are_redacted_from_logs_and_tracebacks(log: io.StringIO) -> None:
    key = "weft_0123456789abcdef"
    try:
        raise ValueError(f"https://u:hush@x.example/a?token=hush, key {key}")
    except ValueError:
        logging.getLogger("some.library").exception("failed: %s", "http://x.example/?key=hush")
    text = log.getvalue()
    assert "hush" not in text and key not in text and "Traceback" in text
    assert "https://[redacted]@x.example/a?token=[redacted]" in text and "weft_[redacted]" in text


@pytest.mark.parametrize("place", [0, 199_995, 200_000, 200_005, 399_990])
def test_secret_at_cut_of_long_text_leaves_no_piece(place: int) -> None:
    secret = "abcdefghijklmnopqrstuvwxyz"
    for filler in ("-", "-" * 100 + secret * 30):
        text = (filler * (place // len(filler) + 1))[:place] + secret + "-" * 300_000
        shown = redacted(ToolOutput.of(text), Redactor([secret])).parts[0]
        assert isinstance(shown, Text) and len(shown.text) < 201_000
        head, _, note = shown.text.rpartition("\n")
        assert note == f"[cut after 200000 of {len(text)} characters]" and "abc" not in head.replace(REDACTED, "")


class Echo(RemoteTool):
    """A peer that repeats what it was sent."""

    async def ask(self, args: bytes, context: ToolContext) -> ToolOutput:
        return ToolOutput.of(args.decode())


async def test_redaction_is_computed_once_and_off_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []
    needle = Needle.of

    def noted(secret: str) -> Needle:
        threads.append(threading.get_ident())
        return needle(secret)

    monkeypatch.setattr(Needle, "of", noted)
    headers = {f"X-{index}": f"{index}" + "%" * 1000 for index in range(64)}
    tool = Echo(ToolSpec("echo", "", EMPTY_OBJECT_SCHEMA), redactor=Redactor.of_request("https://x.example", headers))
    assert threads == []
    context: ToolContext = ToolContext("run_1", "call_1", "key", "echo", "acme")
    for _ in range(2):
        shown = await tool.invoke(headers["X-7"].encode(), context)
        assert shown.parts == (Text(REDACTED),)
    assert len(threads) == len(headers) and threading.get_ident() not in threads


def test_secret_header_is_redacted_whole_and_in_parts() -> None:
    cookie = "; ".join([f"c{index}=value-{index:04}" for index in range(600)])
    redactor = Redactor.of_request("https://x.example", {"Cookie": cookie, "Authorization": "Bearer abcd-1234"})
    assert redactor.text(f"{cookie} Bearer abcd-1234") == f"{REDACTED} {REDACTED}"
    assert redactor.text("value-0001") == REDACTED
    assert len(redactor._needles) < 200  # pyright: ignore[reportPrivateUsage]


def test_content_in_several_blocks_is_read_as_one() -> None:
    """MCP servers and A2A agents answer in parts, and the model reads them one below the other."""
    secret = "Zx9Qw7Lm2Kp4Rt6Yv8"
    parts = (Text(f"a {secret[:9]}"), Image("image/png", data="eA=="), Text(secret[9:] + " b"), Text("c"))
    shown = redacted(ToolOutput(parts), Redactor([secret])).parts
    assert shown == (Text(f"a {REDACTED}"), parts[1], Text(" b"), Text("c"))


@pytest.mark.parametrize("kind", [Image, File])
def test_every_field_of_an_image_or_a_file_is_searched(kind: type[Image | File]) -> None:
    secret = "Zx9Qw7Lm2Kp4Rt6Yv8"
    data = base64.b64encode(b"\x89PNG\0" + secret.encode()).decode()
    part = kind(f"image/{secret}", data=data, url=f"https://x.example/{secret}", name=f"{secret}.png")
    (shown,) = redacted(ToolOutput((part,)), Redactor([secret])).parts
    assert isinstance(shown, kind) and (shown.media_type, shown.name) == (f"image/{REDACTED}", f"{REDACTED}.png")
    assert shown.url == f"https://x.example/{REDACTED}"
    assert base64.b64decode(shown.data or "") == b"\x89PNG\0" + REDACTED.encode()


def test_a_state_that_no_task_has_is_not_repeated() -> None:
    """It is read without regard to case, in which a secret would not be found."""
    assert [
        state_of({"status": {"state": state}}) for state in ("Zx9Qw7Lm2Kp4Rt6Yv8", "TASK_STATE_INPUT_REQUIRED", "")
    ] == [
        "unknown",
        "input-required",
        "",
    ]


def test_arbitrary_bytes_are_searched_and_preserved() -> None:
    noise = bytes(range(1, 256)) * 3
    for spelled in (SECRET, json.dumps(SECRET)[1:-1], quote(SECRET, safe="").lower(), SECRET.encode().hex()):
        assert Redactor([SECRET]).data(noise + spelled.encode() + noise) == noise + REDACTED.encode() + noise
    binary = noise + b"\0"
    assert Redactor([SECRET]).data(binary + SECRET.encode() + binary) == binary + REDACTED.encode() + binary


async def test_a_large_answer_is_searched_beside_the_loop() -> None:
    threads: list[int] = []

    class Noting(Redactor):
        def texts(self, texts: Sequence[str]) -> list[str]:
            threads.append(threading.get_ident())
            return super().texts(texts)

    tool = Echo(ToolSpec("echo", "", EMPTY_OBJECT_SCHEMA), redactor=Noting([SECRET]))
    context: ToolContext = ToolContext("run_1", "call_1", "key", "echo", "acme")
    await tool.invoke(b"x" * 100_000, context)
    assert threads and threading.get_ident() not in threads

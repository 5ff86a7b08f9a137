"""What goes out for an answer: its head, its framing, and what no header may do to them."""

from __future__ import annotations

from typing import Any

import pytest

from weftline.server.exchange import Exchange


class Wire:
    def __init__(self) -> None:
        self.sent = b""
        self.closed = self.aborted = False
        self.writes = 0
        self.write_paused = False

    def write(self, data: bytes) -> None:
        self.sent += data
        self.writes += 1

    def write_now(self, data: bytes) -> None:
        self.write(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


def exchange(wire: Wire, *, method: str = "GET", keep_alive: bool = True) -> Exchange:
    transport: Any = wire
    scope: Any = {"type": "http", "method": method, "headers": []}
    return Exchange(
        scope=scope,
        transport=transport,
        default_headers=[(b"date", b"today")],
        keep_alive=keep_alive,
        on_response=lambda: None,
        more_body=False,
    )


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, object]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes, *, more: bool = False) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def test_a_body_of_known_length_is_sent_as_it_is() -> None:
    wire = Wire()
    answer = exchange(wire)
    await answer.send(start((b"content-length", b"2")))
    await answer.send(body(b"ok"))
    assert wire.sent == b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\n\r\nok"
    assert wire.writes == 1
    assert answer.response_complete and not wire.closed


async def test_a_stream_is_sent_in_chunks() -> None:
    wire = Wire()
    answer = exchange(wire, keep_alive=False)
    await answer.send(start())
    await answer.send(body(b"0123456789abcdef", more=True))
    await answer.send(body(b"", more=True))
    await answer.send(body(b""))
    head, _, rest = wire.sent.partition(b"\r\n\r\n")
    assert head.endswith(b"transfer-encoding: chunked\r\nconnection: close")
    assert rest == b"10\r\n0123456789abcdef\r\n0\r\n\r\n"


async def test_an_answer_without_a_body_has_no_framing() -> None:
    wire = Wire()
    answer = exchange(wire)
    await answer.send(start(status=204))
    await answer.send(body(b""))
    assert wire.sent == b"HTTP/1.1 204 No Content\r\ndate: today\r\n\r\n"


async def test_head_gets_the_length_and_no_body() -> None:
    wire = Wire()
    answer = exchange(wire, method="HEAD")
    await answer.send(start((b"content-length", b"70")))
    await answer.send(body(b"not sent"))
    assert wire.sent.endswith(b"content-length: 70\r\n\r\n")


async def test_an_answer_can_close_its_connection() -> None:
    wire = Wire()
    answer = exchange(wire)
    await answer.send(start((b"content-length", b"0"), (b"connection", b"close")))
    await answer.send(body(b""))
    assert wire.sent.count(b"connection: close") == 1
    assert not answer.keep_alive


@pytest.mark.parametrize("value", [b"x\r\nset-cookie: y", b"x\ny", b"x\ry", b"x\0y"])
async def test_no_header_can_end_its_line(value: bytes) -> None:
    wire = Wire()
    with pytest.raises(RuntimeError, match="line break or a null byte"):
        await exchange(wire).send(start((b"x-run-id", value)))
    assert wire.sent == b""


@pytest.mark.parametrize("data", [b"", b"abc"])
async def test_a_body_has_the_length_that_its_head_says(data: bytes) -> None:
    answer = exchange(Wire())
    await answer.send(start((b"content-length", b"2")))
    with pytest.raises(RuntimeError, match="length"):
        await answer.send(body(data))


async def test_messages_come_in_their_order() -> None:
    answer = exchange(Wire())
    with pytest.raises(RuntimeError, match="not expected now"):
        await answer.send(body(b""))
    await answer.send(start((b"content-length", b"0")))
    with pytest.raises(RuntimeError, match="not expected now"):
        await answer.send(start())


async def test_an_application_that_fails_without_an_answer_is_a_500() -> None:
    wire = Wire()
    answer = exchange(wire)
    answer.end()
    assert wire.sent.startswith(b"HTTP/1.1 500 ") and wire.sent.endswith(b"\r\n\r\nInternal Server Error")
    assert answer.response_complete and not answer.keep_alive


async def test_an_answer_that_breaks_off_closes_its_connection() -> None:
    wire = Wire()
    answer = exchange(wire)
    await answer.send(start())
    await answer.send(body(b"some", more=True))
    answer.end()
    assert wire.sent.endswith(b"4\r\nsome\r\n")
    assert wire.closed


async def test_broken_answer_is_not_kept_for_a_slow_client() -> None:
    wire = Wire()
    answer = exchange(wire)
    await answer.send(start())
    await answer.send(body(b"some", more=True))
    wire.write_paused = True
    answer.end()
    assert wire.aborted and not wire.closed

"""Certificates are checked: whose they are, who signed them, and whether they still hold."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.net.errors import RequestFailed
from weftline.net.transport import AiohttpTransport

from .certificates import Authority
from .kit import HELLO, answering, dialled, listening, post


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def attempt(server: ssl.SSLContext, trusted: ssl.SSLContext | None) -> bytes:
    """What a transport reads from `localhost`, once nothing of a refused request has reached the server."""
    requests: list[bytes] = []
    http = AiohttpTransport(tls=trusted)
    async with listening(answering(HELLO, requests=requests), tls=server) as port:
        try:
            return await post(http, f"https://localhost:{port}/")
        except RequestFailed:
            assert requests == []
            raise
        finally:
            await http.aclose()


async def test_a_certificate_of_a_trusted_authority_is_good(authority: Authority) -> None:
    assert await attempt(authority.server("localhost"), authority.trusted()) == b"hello"


async def test_a_certificate_for_another_host_is_refused(authority: Authority) -> None:
    with pytest.raises(RequestFailed) as raised:
        await attempt(authority.server("other.test"), authority.trusted())
    assert (raised.value.reason, raised.value.sent) == ("certificate", False)
    assert "mismatch" in raised.value.message


async def test_an_expired_certificate_is_refused(authority: Authority) -> None:
    with pytest.raises(RequestFailed) as raised:
        await attempt(authority.server("localhost", expired=True), authority.trusted())
    assert (raised.value.reason, raised.value.sent) == ("certificate", False)
    assert "expired" in raised.value.message


async def test_an_unknown_authority_is_refused_by_default(authority: Authority) -> None:
    with pytest.raises(RequestFailed) as raised:
        await attempt(authority.server("localhost"), None)
    assert (raised.value.reason, raised.value.sent) == ("certificate", False)


async def test_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(RequestFailed) as raised:
        await attempt(authority.server("localhost"), Authority(tmp_path).trusted())
    assert (raised.value.reason, raised.value.sent) == ("certificate", False)


async def test_tools_check_certificates_too(authority: Authority) -> None:
    requests: list[bytes] = []
    async with listening(answering(HELLO, requests=requests), tls=authority.server("localhost")) as port:
        url = f"https://localhost:{port}/"
        usual, knowing = Dialer(Egress("private")), Dialer(Egress("private"), tls=authority.trusted())
        failed = await dialled(usual, "GET", url)
        assert isinstance(failed, RequestFailed) and failed.reason == "certificate"
        assert await dialled(knowing, "GET", url) == b"hello"
        await usual.aclose()
        await knowing.aclose()
    assert len(requests) == 1


async def test_server_that_does_not_speak_tls_cannot_be_connected_to() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HELLO)
        await writer.drain()

    http = AiohttpTransport()
    async with listening(serve) as port:
        with pytest.raises(RequestFailed) as raised:
            await post(http, f"https://localhost:{port}/")
    assert (raised.value.reason, raised.value.sent) == ("connect", False)
    await http.aclose()


def test_loop_that_ends_during_transport_close_has_no_complaints(
    authority: Authority,
) -> None:
    server, trusted = authority.server("localhost"), authority.trusted()
    complaints: list[str] = []

    async def use() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(str(context)))
        listener = await asyncio.start_server(answering(HELLO, stay=True), "127.0.0.1", 0, ssl=server)
        http = AiohttpTransport(tls=trusted)
        assert await post(http, f"https://localhost:{listener.sockets[0].getsockname()[1]}/") == b"hello"
        closing = asyncio.ensure_future(http.aclose())
        await asyncio.sleep(0)
        assert not closing.done()  # it waits for the connection to be shut down
        await loop.shutdown_asyncgens()
        await closing
        listener.close()

    asyncio.run(use())
    assert complaints == []

"""What tools and webhooks dial: nothing is sent twice that may have been carried out, and redirects are judged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.net.errors import RequestFailed
from weftline.net.proxies import Proxies

from .kit import HELLO, WAIT_S, answering, dialled, listening, read_request


@pytest.fixture
async def dialer() -> AsyncGenerator[Dialer]:
    opened = Dialer(Egress("private"))
    yield opened
    await opened.aclose()


def redirect(status: int, location: str) -> bytes:
    return f"HTTP/1.1 {status} Go\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


@pytest.mark.parametrize(("method", "sent_again"), [("POST", False), ("PATCH", False), ("GET", True), ("PUT", True)])
async def test_only_repeatable_requests_are_resent_on_a_fresh_connection(
    dialer: Dialer, method: str, sent_again: bool
) -> None:
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        while True:
            await read_request(reader)
            requests += 1
            if requests == 2:
                return
            writer.write(HELLO)
            await writer.drain()

    async with listening(serve) as port:
        url = f"http://127.0.0.1:{port}/"
        assert await dialled(dialer, method, url) == b"hello"
        second = await dialled(dialer, method, url)
    assert requests == (3 if sent_again else 2)
    if isinstance(second, RequestFailed):
        assert (second.reason, second.sent) == ("broken", True)
    assert (second == b"hello") == sent_again


REDIRECTS = [
    (301, "POST", "GET"),
    (302, "POST", "GET"),
    (302, "PUT", "PUT"),
    (303, "PUT", "GET"),
    (307, "GET", "GET"),
    (307, "POST", "POST"),
    (308, "PUT", "PUT"),
]


@pytest.mark.parametrize(("status", "method", "then"), REDIRECTS)
async def test_a_redirect_is_followed_as_its_status_says(dialer: Dialer, status: int, method: str, then: str) -> None:
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            requests.append(await read_request(reader))
            writer.write(redirect(status, "/new") if len(requests) == 1 else HELLO)
            await writer.drain()

    async with listening(serve) as port:
        url = f"http://127.0.0.1:{port}/old"
        async with dialer.request(method, url, body=b"{}", timeout_s=WAIT_S, redirects=1) as response:
            assert (response.status, response.url) == (200, f"http://127.0.0.1:{port}/new")
    assert requests[1].startswith(f"{then} /new HTTP/1.1".encode())
    assert requests[1].endswith(b"{}") == (then == method)


@pytest.mark.parametrize(("status", "method", "then"), REDIRECTS)
async def test_another_origin_gets_neither_headers_nor_body(
    dialer: Dialer, status: int, method: str, then: str
) -> None:
    requests: list[bytes] = []
    failed: RequestFailed | None = None
    async with (
        listening(answering(HELLO, requests=requests)) as port,
        listening(answering(redirect(status, f"http://127.0.0.1:{port}/new"))) as first,
    ):
        sent = dialer.request(
            method,
            f"http://127.0.0.1:{first}/old",
            headers={"Authorization": "secret", "Content-Type": "application/x-secret"},
            body=b"secret",
            timeout_s=WAIT_S,
            redirects=1,
        )
        try:
            async with sent as response:
                assert (response.status, response.url) == (200, f"http://127.0.0.1:{port}/new")
        except RequestFailed as error:
            failed = error
    if then == "GET":
        assert failed is None and requests[0].startswith(b"GET /new HTTP/1.1") and b"secret" not in requests[0]
    else:
        assert failed is not None and (failed.reason, failed.sent, requests) == ("redirected", True, [])


async def test_headers_stay_with_their_origin(dialer: Dialer) -> None:
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await read_request(reader))
        writer.write(redirect(307, "/new") if len(requests) == 1 else HELLO)
        await writer.drain()

    async with listening(serve) as port:
        url = f"http://127.0.0.1:{port}/old"
        async with dialer.request("GET", url, headers={"X": "secret"}, timeout_s=WAIT_S, redirects=1) as response:
            assert response.status == 200
    assert b"secret" in requests[1]


async def test_redirects_end_at_their_number(dialer: Dialer) -> None:
    requests: list[bytes] = []
    async with listening(answering(redirect(302, "/again"), requests=requests)) as port:
        url = f"http://127.0.0.1:{port}/"
        async with dialer.request("GET", url, timeout_s=WAIT_S, redirects=3) as response:
            assert response.status == 302
    assert len(requests) == 4


@pytest.mark.parametrize("location", ["http://127.0.0.1:1/", "http://[::1/", "ftp://127.0.0.1/", "http://h:99999/"])
async def test_a_request_whose_redirect_leads_nowhere_was_still_sent(dialer: Dialer, location: str) -> None:
    async with listening(answering(redirect(302, location))) as port:
        with pytest.raises(RequestFailed) as raised:
            async with dialer.request("POST", f"http://127.0.0.1:{port}/", body=b"", timeout_s=WAIT_S, redirects=1):
                pytest.fail("there is nothing there")
    assert raised.value.sent


async def test_a_redirect_into_a_private_network_is_refused() -> None:
    secrets: list[bytes] = []
    async with (
        listening(answering(HELLO, requests=secrets)) as inside,
        listening(answering(redirect(302, f"http://127.0.0.1:{inside}/"))) as outside,
    ):
        dialer = Dialer(Egress(hosts=frozenset({"localhost"})))
        failed = await dialled(dialer, "GET", f"http://localhost:{outside}/", redirects=1)
        await dialer.aclose()
    assert isinstance(failed, RequestFailed) and failed.reason == "refused"
    assert secrets == []


async def test_only_this_machine_itself_may_redirect_to_this_machine() -> None:
    requests: list[bytes] = []
    async with listening(answering(HELLO, requests=requests)) as inside:
        inward = answering(redirect(302, f"http://127.0.0.1:{inside}/"))
        async with listening(inward) as outside:
            for host, reached in (("public.test", False), ("127.0.0.1", True)):
                egress = Egress("loopback", hosts=frozenset({"public.test"}))
                dialer = Dialer(egress, proxies=Proxies({"http": f"http://127.0.0.1:{outside}"}))
                answer = await dialled(dialer, "GET", f"http://{host}:{outside}/", redirects=1)
                await dialer.aclose()
                assert (answer == b"hello") == reached
    assert len(requests) == 1


async def test_a_name_that_leads_into_a_private_network_is_refused() -> None:
    requests: list[bytes] = []
    async with listening(answering(HELLO, requests=requests)) as port:
        dialer = Dialer(Egress())
        with pytest.raises(RequestFailed) as raised:
            async with dialer.request("GET", f"http://localhost:{port}/", timeout_s=WAIT_S):
                pytest.fail("it was reached")
        await dialer.aclose()
    assert (raised.value.reason, raised.value.sent, requests) == ("refused", False, [])


async def test_headers_that_frame_the_request_are_not_sent(dialer: Dialer) -> None:
    """Tools that were stored before such headers were refused may have them."""
    requests: list[bytes] = []
    given = {"Transfer-Encoding": "chunked", "content-length": "0", "Host": "other.example", "X-Own": "1"}
    async with listening(answering(HELLO, requests=requests)) as port:
        url = f"http://127.0.0.1:{port}/"
        async with dialer.request("POST", url, headers=given, body=b"{}", timeout_s=WAIT_S) as reply:
            assert (await reply.read_up_to(10))[0] == b"hello"
    sent = requests[0].lower()
    assert b"transfer-encoding" not in sent and b"other.example" not in sent and b"x-own: 1" in sent
    assert sent.count(b"content-length") == 1 and b"content-length: 2\r\n" in sent

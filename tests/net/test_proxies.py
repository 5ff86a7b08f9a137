"""Proxies of the environment are used, passed by where NO_PROXY says so, and never passed by silently."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.net.errors import RequestFailed
from weftline.net.proxies import Proxies
from weftline.net.transport import AiohttpTransport

from .certificates import Authority
from .kit import HELLO, LIMITS, WAIT_S, answering, dialled, listening, post, read_request

NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
PROXY = "http://proxy.test:3128"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def addresses(monkeypatch: pytest.MonkeyPatch, known: Mapping[str, str]) -> None:
    """Every name but these is unknown. Several addresses of one name stand with a blank between them."""

    def resolve(host: str, port: object, *_: object, **__: object) -> list[tuple[Any, ...]]:
        found = known.get(host, host if host[0].isdigit() else "").split()
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port or 0)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@asynccontextmanager
async def tunnelling(target: int, *, heads: list[bytes], status: bytes = b"200 OK") -> AsyncGenerator[str]:
    """A proxy whose every tunnel leads to the port `target` of this machine."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await read_request(reader))
        writer.write(b"HTTP/1.1 " + status + b"\r\n\r\n")
        await writer.drain()
        if not status.startswith(b"200"):
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    async with listening(serve) as port:
        yield f"http://127.0.0.1:{port}"


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def test_a_plain_request_goes_through_the_proxy_with_its_password() -> None:
    requests: list[bytes] = []
    async with listening(answering(HELLO, requests=requests)) as port:
        proxies = Proxies.from_environment({"HTTP_PROXY": f"http://me:s%40cret@127.0.0.1:{port}"})
        http = AiohttpTransport(proxies=proxies)
        assert await post(http, "http://model.test/v1?x=1") == b"hello"
        await http.aclose()
    assert requests[0].startswith(b"POST http://model.test/v1?x=1 HTTP/1.1\r\n")
    password = base64.b64encode(b"me:s@cret")
    assert b"Proxy-Authorization: Basic " + password in requests[0]


@pytest.mark.parametrize("variable", ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])
async def test_a_request_over_tls_goes_through_a_tunnel(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    heads: list[bytes] = []
    requests: list[bytes] = []
    async with (
        listening(answering(HELLO, requests=requests), tls=authority.server("model.test")) as target,
        tunnelling(target, heads=heads) as proxy,
    ):
        monkeypatch.setenv(variable, proxy.replace("//", "//me:secret@"))
        http = AiohttpTransport(tls=authority.trusted())
        assert await post(http, "https://model.test/v1") == b"hello"
        await http.aclose()
    assert heads[0].startswith(b"CONNECT model.test:443 HTTP/1.1\r\n")
    assert b"proxy-authorization: basic" in heads[0].lower()
    assert requests[0].startswith(b"POST /v1 HTTP/1.1\r\n") and b"proxy-authorization" not in requests[0].lower()


async def test_certificates_are_checked_behind_a_proxy(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    requests: list[bytes] = []
    async with (
        listening(answering(HELLO, requests=requests), tls=authority.server("other.test")) as target,
        tunnelling(target, heads=[]) as proxy,
    ):
        http = AiohttpTransport(tls=authority.trusted(), proxies=Proxies({"https": proxy}))
        with pytest.raises(RequestFailed) as raised:
            await post(http, "https://model.test/v1")
        await http.aclose()
    assert (raised.value.reason, requests) == ("certificate", [])


async def test_a_proxy_that_says_no_is_not_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[bytes] = []
    addresses(monkeypatch, {"model.test": "127.0.0.1"})
    async with (
        listening(answering(HELLO, requests=requests)) as target,
        tunnelling(target, heads=[], status=b"407 No") as proxy,
    ):
        http = AiohttpTransport(proxies=Proxies({"https": proxy}))
        with pytest.raises(RequestFailed) as raised:
            await post(http, f"https://model.test:{target}/")
        await http.aclose()
    assert (raised.value.reason, raised.value.sent) == ("proxy", False)
    assert raised.value.message == "The proxy did not connect to model.test: status 407."
    assert requests == []


async def test_a_proxy_that_is_not_there_is_not_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[bytes] = []
    addresses(monkeypatch, {"model.test": "127.0.0.1"})
    async with listening(answering(HELLO)) as gone:
        pass
    async with listening(answering(HELLO, requests=requests)) as target:
        http = AiohttpTransport(proxies=Proxies({"http": f"http://127.0.0.1:{gone}"}))
        with pytest.raises(RequestFailed) as raised:
            await post(http, f"http://model.test:{target}/")
        await http.aclose()
    assert (raised.value.reason, raised.value.sent, requests) == ("connect", False, [])
    assert "proxy" in raised.value.message


async def test_a_proxy_that_hangs_up_is_asked_once() -> None:
    heads: list[bytes] = []

    async def kept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(HELLO)
            await writer.drain()

    async with listening(answering(b"", requests=heads)) as proxy, listening(kept) as port:
        http = AiohttpTransport(proxies=Proxies({"https": f"http://127.0.0.1:{proxy}"}))
        # What was true of the connection of an earlier request says nothing about this one.
        for _ in range(2):
            await post(http, f"http://127.0.0.1:{port}/")
        with pytest.raises(RequestFailed) as raised:
            await post(http, "https://model.test/")
        await http.aclose()
    assert (raised.value.reason, len(heads)) == ("broken", 1)


async def test_unusable_kind_of_proxy_is_not_bypassed(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[bytes] = []
    addresses(monkeypatch, {"model.test": "127.0.0.1"})
    async with listening(answering(HELLO, requests=requests)) as target:
        monkeypatch.setenv("ALL_PROXY", "socks5://me:secret@127.0.0.1:1080")
        http = AiohttpTransport()
        with pytest.raises(RequestFailed) as raised:
            await post(http, f"http://model.test:{target}/")
        await http.aclose()
    assert (raised.value.reason, raised.value.sent, requests) == ("invalid", False, [])
    assert "socks5" in raised.value.message and "secret" not in raised.value.message


async def test_loopback_and_exempt_hosts_are_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[bytes] = []
    addresses(monkeypatch, {"model.test": "127.0.0.1", "localhost": "127.0.0.1"})
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "example.com, model.test")
    async with listening(answering(HELLO, requests=requests)) as port:
        http = AiohttpTransport()
        for host in ("127.0.0.1", "localhost", "model.test"):
            assert await post(http, f"http://{host}:{port}/") == b"hello"
        await http.aclose()
    assert all(request.startswith(b"POST / HTTP/1.1\r\n") for request in requests)


@pytest.mark.parametrize(
    ("no_proxy", "host", "port", "direct"),
    [
        ("example.com", "example.com", 443, True),
        ("example.com", "api.example.com", 443, True),
        (".example.com", "api.example.com", 443, True),
        ("*.example.com", "api.example.com", 443, True),
        ("example.com", "API.Example.COM.", 443, True),
        ("example.com", "notexample.com", 443, False),
        ("example.com", "example.com.evil.test", 443, False),
        ("example.com:8443", "example.com", 8443, True),
        ("example.com:8443", "example.com", 443, False),
        ("10.0.0.0/8", "10.1.2.3", 443, True),
        ("10.0.0.0/8", "11.1.2.3", 443, False),
        ("10.0.0.0/8", "ten.test", 443, False),
        ("10.1.2.3", "10.1.2.3", 443, True),
        ("10.1.2.3:80", "10.1.2.3", 443, False),
        ("fd00::/8", "fd00::1", 443, True),
        ("[fd00::1]:443", "fd00::1", 443, True),
        ("[fd00::1]:80", "fd00::1", 443, False),
        ("[fd00::1]", "fd00::1", 443, True),
        ("a.test , b.test", "b.test", 443, True),
        ("*", "anything.test", 443, True),
        ("", "anything.test", 443, False),
        ("", "localhost", 443, True),
        ("", "127.8.8.8", 443, True),
        ("", "::1", 443, True),
    ],
)
def test_no_proxy_names_hosts_networks_and_ports(no_proxy: str, host: str, port: int, direct: bool) -> None:
    proxies = Proxies.from_environment({"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy})
    assert proxies.find("https", host, port) == (None if direct else PROXY)


@pytest.mark.parametrize(
    ("environ", "http", "https"),
    [
        ({}, None, None),
        ({"HTTP_PROXY": "http://a"}, "http://a", None),
        ({"HTTPS_PROXY": "a:1"}, None, "http://a:1"),
        ({"ALL_PROXY": "http://a", "HTTPS_PROXY": "http://b"}, "http://a", "http://b"),
        ({"all_proxy": "http://a", "ALL_PROXY": "http://b"}, "http://a", "http://a"),
        ({"https_proxy": "", "HTTPS_PROXY": "http://b"}, None, "http://b"),
    ],
)
def test_each_scheme_has_its_proxy(environ: dict[str, str], http: str | None, https: str | None) -> None:
    proxies = Proxies.from_environment(environ)
    assert (proxies.find("http", "h.test", 80), proxies.find("https", "h.test", 443)) == (http, https)
    assert bool(proxies) == (http is not None or https is not None)


@pytest.mark.parametrize(
    ("egress", "url", "passes"),
    [
        (Egress(), "http://public.test/", True),
        (Egress(), "http://private.test/", False),
        (Egress("private"), "http://private.test/", True),
        (Egress("private"), "http://metadata.test/", False),
        (Egress(), "http://unknown.test/", False),
        (Egress("private"), "http://unknown.test/", False),
        (Egress(hosts=frozenset({"unknown.test"})), "http://unknown.test/", True),
        (Egress(), "http://10.0.0.1/", False),
        # The proxy chooses among the addresses, so all of them must be good.
        (Egress(), "http://mixed.test/", False),
        (Egress(), "http://proxy.test/", False),
    ],
)
async def test_the_policy_holds_behind_a_proxy_too(
    egress: Egress, url: str, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {
        "public.test": "8.8.8.8",
        "private.test": "10.0.0.1",
        "mixed.test": "8.8.8.8 10.0.0.1",
        "metadata.test": "169.254.169.254",
        "proxy.test": "127.0.0.1",
    }
    requests: list[bytes] = []
    addresses(monkeypatch, known)
    async with listening(answering(HELLO, requests=requests)) as port:
        dialer = Dialer(egress, proxies=Proxies({"http": f"http://proxy.test:{port}"}))
        answer = await dialled(dialer, "GET", url)
        await dialer.aclose()
    if isinstance(answer, RequestFailed):
        assert (answer.reason, answer.sent) == ("refused", False)
    assert ((answer == b"hello"), len(requests)) == (passes, passes)


async def test_the_proxys_own_name_is_no_way_around_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy itself may be private, but a tool that names it gets no connection to it."""
    requests: list[bytes] = []
    addresses(monkeypatch, {"proxy.test": "127.0.0.1"})
    async with listening(answering(HELLO, requests=requests)) as port:
        dialer = Dialer(Egress(), proxies=Proxies({"https": f"http://proxy.test:{port}"}))
        with pytest.raises(RequestFailed) as raised:
            async with dialer.request("GET", f"http://proxy.test:{port}/", timeout_s=WAIT_S):
                pytest.fail("it was reached")
        await dialer.aclose()
    assert (raised.value.reason, requests) == ("refused", [])


async def test_without_proxies_nobody_asks_for_them() -> None:
    async with listening(answering(HELLO)) as port:
        http = AiohttpTransport(proxies=Proxies())
        async with http.post(f"http://127.0.0.1:{port}/", headers={}, body=b"", limits=LIMITS) as response:
            assert await response.read() == b"hello"
        await http.aclose()

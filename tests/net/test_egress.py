"""Which addresses the server connects to on somebody's behalf."""

from __future__ import annotations

import pytest

from weftline.errors import WeftlineError
from weftline.net import egress as policy
from weftline.net.dial import Dialer
from weftline.net.egress import Egress, EgressRefused, Reach, egress_from
from weftline.net.errors import RequestFailed

PRIVATE = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.3.4",
    "192.168.1.1",
    "100.64.0.1",
    "198.18.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fc00::1",
    "ff02::1",
    "::ffff:10.0.0.1",
    "::ffff:127.0.0.1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
]
METADATA = ["169.254.169.254", "fe80::1", "fe80::1%eth0", "::ffff:169.254.169.254", "fd00:ec2::254", "100.100.100.200"]
PUBLIC = ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]


def allowed(egress: Egress, address: str, host: str = "some.host") -> bool:
    try:
        egress.check(host, address)
    except EgressRefused:
        return False
    return True


@pytest.mark.parametrize(
    ("reach", "private", "metadata"), [("public", False, False), ("private", True, False), ("any", True, True)]
)
def test_each_reach_has_its_addresses(reach: Reach, private: bool, metadata: bool) -> None:
    egress = Egress(reach)
    assert {address: allowed(egress, address) for address in PRIVATE} == dict.fromkeys(PRIVATE, private)
    assert {address: allowed(egress, address) for address in METADATA} == dict.fromkeys(METADATA, metadata)
    assert all(allowed(egress, address) for address in PUBLIC)


def test_a_list_lets_through_what_it_names() -> None:
    egress = egress_from({"allow_egress": ["10.1.0.0/16", "Intranet.Example", "fd00::/8"]}, dialled=False)
    assert allowed(egress, "10.1.2.3") and not allowed(egress, "10.2.0.1")
    assert allowed(egress, "::ffff:10.1.2.3") and allowed(egress, "fd00::7")
    assert allowed(egress, "192.168.0.1", "intranet.example.") and not allowed(egress, "192.168.0.1", "x.example")


def test_only_the_developers_own_addresses_may_be_private_by_default() -> None:
    assert egress_from({}, dialled=True).reach == "private"
    assert egress_from({}, dialled=False).reach == "public"
    assert egress_from({"allow_private_egress": False}, dialled=True).reach == "public"
    assert egress_from({"allow_private_egress": True}, dialled=False).reach == "any"


@pytest.mark.parametrize(
    "server", [{"allow_private_egress": 1}, {"allow_egress": "10.0.0.0/8"}, {"allow_egress": ["10.0.0.0/99"]}]
)
def test_wrong_settings_are_named(server: dict[str, object]) -> None:
    with pytest.raises(WeftlineError) as caught:
        egress_from(server, dialled=False, origin="weftline.toml")
    assert caught.value.code == "bad_config" and "weftline.toml: server.allow_" in caught.value.message


def test_of_several_addresses_the_allowed_ones_are_left() -> None:
    assert policy.allowed(Egress().check, "h", ["10.0.0.1", "8.8.8.8"]) == ["8.8.8.8"]
    with pytest.raises(EgressRefused):
        policy.allowed(Egress().check, "h", ["10.0.0.1", "127.0.0.1"])


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/",
        "http://localhost:1/",
        "http://127.1:1/",
        "http://2130706433:1/",
        "http://0x7f000001:1/",
        "http://[::1]:1/",
        "http://[::ffff:127.0.0.1]:1/",
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "gopher://x/",
        "http:///nowhere",
        "not a url",
    ],
)
async def test_nothing_is_sent_to_the_inside_however_it_is_spelled(url: str) -> None:
    dialer = Dialer(Egress())
    try:
        with pytest.raises(RequestFailed) as caught:
            async with dialer.request("GET", url, timeout_s=5):
                pass
        assert not caught.value.sent and "Could not connect" not in caught.value.message
    finally:
        await dialer.aclose()

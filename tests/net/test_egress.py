"""Which addresses the server connects to on somebody's behalf."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest

from weftline.errors import WeftlineError
from weftline.net import egress as policy
from weftline.net.dial import Dialer
from weftline.net.egress import Egress, EgressRefused, Reach, egress_from
from weftline.net.errors import RequestFailed

LOOPBACK = ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"]
PRIVATE = [
    "0.0.0.0",
    "10.0.0.1",
    "172.16.3.4",
    "192.168.1.1",
    "100.64.0.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "192.0.0.8",
    "192.0.0.9",
    "192.0.2.7",
    "192.88.99.1",
    "198.51.100.7",
    "203.0.113.7",
    "::",
    "fc00::1",
    "fec0::1",
    "ff02::1",
    "::ffff:10.0.0.1",
    "::ffff:0:10.0.0.1",
    "100::1",
    "2001:db8::1",
    "4000::1",
    "5f00::1",
    "3fff::1",
    "2001:2::1",
    "2001:10::1",
]
GUARDED = [
    "169.254.169.254",
    "fe80::1",
    "fe80::1%eth0",
    "::ffff:169.254.169.254",
    "::ffff:0:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::",
    "fd00:ec2::254",
    "fd20:ce::254",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "64:ff9b:1::7f00:1",
    "64:ff9b:1:7f00:0:100::",
]
PUBLIC = ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
REACHES: dict[Reach, list[str]] = {
    "public": PUBLIC,
    "loopback": PUBLIC + LOOPBACK,
    "private": PUBLIC + LOOPBACK + PRIVATE,
}


def allowed(egress: Egress, address: str, host: str = "some.host") -> bool:
    try:
        egress.check(host, address)
    except EgressRefused:
        return False
    return True


@pytest.mark.parametrize("reach", REACHES)
def test_each_reach_has_its_addresses(reach: Reach) -> None:
    everything = PUBLIC + LOOPBACK + PRIVATE + GUARDED
    assert [one for one in everything if allowed(Egress(reach), one)] == REACHES[reach]


def test_public_names_do_not_depend_on_the_python_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of `ipaddress` differ from version to version."""
    for kind in (IPv4Address, IPv6Address):
        for name in ("is_global", "is_private", "is_reserved", "is_multicast", "is_link_local", "is_loopback"):
            monkeypatch.setattr(kind, name, property(lambda _: pytest.fail("the interpreter's table was asked")))
    assert [one for one in PUBLIC + PRIVATE + GUARDED if allowed(Egress(), one)] == PUBLIC


def test_a_list_lets_through_what_it_names() -> None:
    egress = egress_from({"allow_egress": ["10.1.0.0/16", "Intranet.Example", "fd00::/8"]})
    assert allowed(egress, "10.1.2.3") and not allowed(egress, "10.2.0.1")
    assert allowed(egress, "::ffff:10.1.2.3") and allowed(egress, "fd00::7")
    assert allowed(egress, "192.168.0.1", "intranet.example.") and not allowed(egress, "192.168.0.1", "x.example")


@pytest.mark.parametrize(
    "server",
    [
        {"allow_private_egress": True},
        {"allow_egress": ["0.0.0.0/0", "::/0"]},
        {
            "allow_egress": [
                "169.0.0.0/8",
                "100.64.0.0/10",
                "168.0.0.0/8",
                "192.0.0.0/8",
                "fd00::/8",
                "f000::/4",
                "::/1",
            ]
        },
    ],
)
def test_no_general_setting_opens_a_guarded_address(server: dict[str, object]) -> None:
    egress = egress_from(server, loopback=True)
    assert [one for one in GUARDED if allowed(egress, one)] == []


def test_a_guarded_address_is_opened_by_its_name() -> None:
    egress = egress_from({"allow_egress": ["169.254.169.254", "fe80::/64"]})
    assert [one for one in GUARDED if allowed(egress, one)] == [
        "169.254.169.254",
        "fe80::1",
        "fe80::1%eth0",
        "::ffff:169.254.169.254",
        "::ffff:0:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::",
    ]


def test_this_machine_is_reached_only_where_that_is_wanted() -> None:
    assert egress_from({}).reach == "public"
    assert egress_from({}, loopback=True).reach == "loopback"
    assert egress_from({"allow_private_egress": False}, loopback=True).reach == "public"
    assert egress_from({"allow_private_egress": True}).reach == "private"


@pytest.mark.parametrize("address", LOOPBACK + PRIVATE + GUARDED)
def test_a_refusal_names_the_setting(address: str) -> None:
    with pytest.raises(EgressRefused, match=r"`allow_egress`.* in the \[server\] table") as caught:
        Egress().check("some.host", address)
    assert ("allow_private_egress" in str(caught.value)) == (address not in GUARDED)


@pytest.mark.parametrize(
    "server",
    [
        {"allow_private_egress": 1},
        {"allow_egress": "10.0.0.0/8"},
        {"allow_egress": ["10.0.0.0/99"]},
        {"allow_egress": ["10.1"]},
    ],
)
def test_wrong_settings_are_named(server: dict[str, object]) -> None:
    with pytest.raises(WeftlineError) as caught:
        egress_from(server, origin="weftline.toml")
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
        "http://0177.0.0.1:1/",
        "http://127.0.0.1.:1/",
        "http://localhost.:1/",
        "http://１２７.0.0.1:1/",
        "http://127。0。0。1:1/",
        "http://127．0．0．1:1/",
        "http://①②⑦.0.0.1:1/",
        "http://ⓛocalhost:1/",
        "http://%31%32%37.0.0.1:1/",
        "http://127.0.0.1%00.example:1/",
        "http://example.com\\@127.0.0.1:1/",
        "http://example.com@127.0.0.1:1/",
        "http://[::1%25lo]:1/",
        "http://[::ffff:7f00:1]:1/",
        "http://[fec0::1]:1/",
        "http://[64:ff9b:1::7f00:1]:1/",
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

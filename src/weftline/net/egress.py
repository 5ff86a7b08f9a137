"""Which addresses the server may connect to on someone's behalf.

A URL from a tenant or a model must not lead into the server's own network. The name is resolved first, the addresses
are checked, and the connection goes to a checked address, whatever the name resolves to a moment later. Every redirect
is checked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Literal, TypeAlias, cast

from msgspec import Struct

from weftline.errors import WeftlineError
from weftline.net.address import InvalidAddress, canonical_host, literal

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
AddressCheck: TypeAlias = Callable[[str, str], None]
"""Takes a host and one of its addresses; raises `EgressRefused` if connecting to it is not allowed."""
Kind: TypeAlias = Literal["public", "loopback", "private", "guarded"]
Reach: TypeAlias = Literal["public", "loopback", "private"]
"""`loopback` adds this machine, `private` also private networks. Guarded addresses must be named explicitly."""

_GUARDED: tuple[Network, ...] = (
    ip_network("169.254.0.0/16"),
    ip_network("fe80::/10"),
    ip_network("100.100.100.200/32"),
    ip_network("168.63.129.16/32"),
    ip_network("192.0.0.192/32"),
    ip_network("fd00:ec2::/32"),
    ip_network("fd20:ce::254/128"),
    ip_network("fd00:42::42/128"),
    ip_network("64:ff9b:1::/48"),
)
"""Addresses where clouds hand out credentials, link-local ones, and the local NAT64 prefix, which may map to any."""
_LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
_GLOBAL_V6 = ip_network("2000::/3")
"""The only IPv6 addresses allocated for the public internet."""
_NOT_PUBLIC: tuple[Network, ...] = (
    ip_network("0.0.0.0/8"),
    ip_network("10.0.0.0/8"),
    ip_network("100.64.0.0/10"),
    ip_network("127.0.0.0/8"),
    ip_network("169.254.0.0/16"),
    ip_network("172.16.0.0/12"),
    ip_network("192.0.0.0/24"),
    ip_network("192.0.2.0/24"),
    ip_network("192.88.99.0/24"),
    ip_network("192.168.0.0/16"),
    ip_network("198.18.0.0/15"),
    ip_network("198.51.100.0/24"),
    ip_network("203.0.113.0/24"),
    ip_network("224.0.0.0/3"),
    ip_network("2001::/23"),
    ip_network("2001:db8::/32"),
    ip_network("2002::/16"),
    ip_network("3fff::/20"),
)
"""Whole ranges of IANA's special-purpose registries, and multicast.

Not `is_global`, which depends on the version of Python: older ones count some of these as public.
"""
_CARRIES_V4 = (ip_network("64:ff9b::/96"), ip_network("::ffff:0:0:0/96"))


class EgressRefused(OSError):
    """The server does not connect to this address. An `OSError`, as connection failures are."""


class Egress(Struct, frozen=True):
    """Which addresses may be reached. `hosts` (lower-case names) and `networks` (address ranges) are allowed in
    addition.

    A range only includes guarded addresses if it lies inside a guarded range; `0.0.0.0/0` does not.
    """

    reach: Reach = "public"
    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()
    remedy: str = ""
    """What a refusal says about how to allow it, if there is no server configuration."""

    def check(self, host: str, address: str) -> None:
        """Raises `EgressRefused` unless `address`, which `host` resolved to, may be connected to."""
        if host.lower().rstrip(".") in self.hosts:
            return
        found = _carried(ip_address(address.partition("%")[0]))
        kind = kind_of(found)
        if kind in _REACHED[self.reach] or any(_opens(network, found, kind) for network in self.networks):
            return
        about, remedy = _REFUSALS[kind]
        if self.remedy:
            raise EgressRefused(f"{host} has {about} address, which is not connected to. {self.remedy}")
        raise EgressRefused(
            f"{host} has {about} address, which this server does not connect to. {remedy} in the [server] table of its"
            " configuration."
        )


_REACHED: dict[Reach, tuple[Kind, ...]] = {
    "public": ("public",),
    "loopback": ("public", "loopback"),
    "private": ("public", "loopback", "private"),
}
_USUAL = "An operator can allow it with `allow_egress` or `allow_private_egress`"
_REFUSALS: dict[Kind, tuple[str, str]] = {
    "public": ("a public", _USUAL),
    "loopback": ("a loopback", _USUAL),
    "private": ("a private", _USUAL),
    "guarded": ("a metadata or link-local", "An operator can allow it only by naming it in `allow_egress`"),
}


def allowed(check: AddressCheck, host: str, addresses: Iterable[str]) -> list[str]:
    """Returns the addresses of `host` that may be connected to. Raises `EgressRefused` if there are none."""
    found: list[str] = []
    refused: EgressRefused | None = None
    for address in addresses:
        try:
            check(host, address)
        except EgressRefused as error:
            refused = error
        else:
            found.append(address)
    if not found and refused is not None:
        raise refused
    return found


def egress_from(server: Mapping[str, Any], *, loopback: bool = False, origin: str = "") -> Egress:
    """Reads the policy in the `[server]` table of a configuration.

        [server]
        allow_private_egress = true                          # loopback and private networks, for every kind of tool
        allow_egress = ["10.20.0.0/16", "intranet.example"]  # or only these

    With `loopback`, this machine may be reached unless `allow_private_egress` is false.
    """
    private = server.get("allow_private_egress")
    if private is not None and not isinstance(private, bool):
        raise _bad(origin, "allow_private_egress", "must be true or false")
    listed = server.get("allow_egress", [])
    if not isinstance(listed, list):
        raise _bad(origin, "allow_egress", "must be a list of host names, addresses or networks")
    hosts: set[str] = set()
    networks: list[Network] = []
    for entry in cast("list[object]", listed):
        if not isinstance(entry, str) or not entry.strip():
            raise _bad(origin, "allow_egress", "must be a list of host names, addresses or networks")
        try:
            networks.append(ip_network(entry.strip(), strict=False))
        except ValueError:
            if "/" in entry:
                raise _bad(origin, "allow_egress", f"{entry!r} is not a network") from None
            hosts.add(_host(entry.strip(), origin))
    reach: Reach = "private" if private else "loopback" if loopback and private is None else "public"
    return Egress(reach, frozenset(hosts), tuple(networks))


def kind_of(address: Address) -> Kind:
    address = _carried(address)
    if any(address in network for network in _GUARDED):
        return "guarded"
    if any(address in network for network in _LOOPBACK):
        return "loopback"
    if isinstance(address, IPv6Address) and address not in _GLOBAL_V6:
        return "private"
    return "private" if any(address in network for network in _NOT_PUBLIC) else "public"


def is_loopback(host: str) -> bool:
    """Returns True if a host's name alone identifies this machine."""
    address = literal(host)
    return host == "localhost" if address is None else kind_of(address) == "loopback"


def _opens(network: Network, address: Address, kind: Kind) -> bool:
    if address not in network:
        return False
    return kind != "guarded" or any(_is_inside(network, guarded) for guarded in _GUARDED)


def _is_inside(inner: Network, outer: Network) -> bool:
    if isinstance(inner, IPv4Network):
        return isinstance(outer, IPv4Network) and inner.subnet_of(outer)
    return isinstance(outer, IPv6Network) and inner.subnet_of(outer)


def _carried(address: Address) -> Address:
    """Returns the IPv4 address embedded in an IPv6 one; any other address unchanged."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if any(address in network for network in _CARRIES_V4) or (int(address) >> 32 == 0 and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _host(entry: str, origin: str) -> str:
    try:
        return canonical_host(entry)
    except InvalidAddress as error:
        raise _bad(origin, "allow_egress", str(error).rstrip(".")) from None


def _bad(origin: str, key: str, problem: str) -> WeftlineError:
    where = f"{origin}: " if origin else ""
    return WeftlineError(f"{where}server.{key} {problem}.", code="bad_config")

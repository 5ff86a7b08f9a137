"""Which addresses the server may connect to on somebody's behalf.

A URL that a model or a stored tool names must not lead into the server's own network. The name is resolved first, the
addresses are judged, and the connection goes to a judged address: what the name resolves to a moment later is of no
account. Every redirect is judged anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Literal, TypeAlias, cast

from msgspec import Struct

from weftline.errors import WeftlineError

Address: TypeAlias = IPv4Address | IPv6Address
AddressCheck: TypeAlias = Callable[[str, str], None]
"""Takes a host and an address of it; raises `EgressRefused` when that is not to be connected to."""
Reach: TypeAlias = Literal["public", "private", "any"]
"""`private` adds loopback and private networks; `any` adds link-local and metadata addresses and all the rest."""

_METADATA = (
    ip_network("169.254.0.0/16"),
    ip_network("fe80::/10"),
    ip_network("fd00:ec2::254/128"),
    ip_network("100.100.100.200/32"),
    ip_network("168.63.129.16/32"),
)
"""Where clouds hand out credentials to whoever asks from the inside; link-local addresses among them."""
_NAT64 = ip_network("64:ff9b::/96")


class EgressRefused(OSError):
    """The server does not connect to this address. An `OSError`, since that is what connecting fails with."""


class Egress(Struct, frozen=True):
    """What may be reached. `hosts` are lower-case names, and `networks` address ranges, that are always allowed."""

    reach: Reach = "public"
    hosts: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    def check(self, host: str, address: str) -> None:
        """Raises `EgressRefused` unless `address`, which `host` resolved to, may be connected to."""
        if self.reach == "any" or host.lower().rstrip(".") in self.hosts:
            return
        kind = _kind(ip_address(address.partition("%")[0]), self.networks)
        if kind == "public" or (kind == "private" and self.reach == "private"):
            return
        about = "a metadata or link-local" if kind == "metadata" else "a private"
        raise EgressRefused(f"{host} has {about} address, which this server does not connect to.")


def allowed(check: AddressCheck, host: str, addresses: Iterable[str]) -> list[str]:
    """The addresses of `host` that may be connected to. Raises `EgressRefused` when there are none."""
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


def egress_from(server: Mapping[str, Any], *, dialled: bool, origin: str = "") -> Egress:
    """The policy of the `[server]` table of a configuration.

        [server]
        allow_private_egress = true                          # everything, for everybody
        allow_egress = ["10.20.0.0/16", "intranet.example"]  # or only these

    `dialled` asks for the policy of `mcp` and `a2a` tools, whose addresses come from an authenticated developer: they
    may be on private networks unless `allow_private_egress` is false.
    """
    private = server.get("allow_private_egress")
    if private is not None and not isinstance(private, bool):
        raise _bad(origin, "allow_private_egress", "must be true or false")
    listed = server.get("allow_egress", [])
    if not isinstance(listed, list):
        raise _bad(origin, "allow_egress", "must be a list of host names, addresses or networks")
    hosts: set[str] = set()
    networks: list[IPv4Network | IPv6Network] = []
    for entry in cast("list[object]", listed):
        if not isinstance(entry, str) or not entry.strip():
            raise _bad(origin, "allow_egress", "must be a list of host names, addresses or networks")
        try:
            networks.append(ip_network(entry.strip(), strict=False))
        except ValueError:
            if "/" in entry:
                raise _bad(origin, "allow_egress", f"{entry!r} is not a network") from None
            hosts.add(entry.strip().lower().rstrip("."))
    reach: Reach = "any" if private else "private" if dialled and private is None else "public"
    return Egress(reach, frozenset(hosts), tuple(networks))


def _kind(
    address: Address, networks: tuple[IPv4Network | IPv6Network, ...]
) -> Literal["public", "private", "metadata"]:
    inner = _inside(address)
    if inner is not None:
        return _kind(inner, networks)
    if any(address in network for network in networks):
        return "public"
    if any(address in network for network in _METADATA):
        return "metadata"
    return "public" if address.is_global and not address.is_multicast else "private"


def _inside(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 one stands for."""
    if isinstance(address, IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or (int(address) >> 32 == 0 and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def _bad(origin: str, key: str, fault: str) -> WeftlineError:
    where = f"{origin}: " if origin else ""
    return WeftlineError(f"{where}server.{key} {fault}.", code="bad_config")

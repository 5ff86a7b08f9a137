"""Limits on connections, in total and per address, and on how long each may take."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Protocol, TypeAlias

from msgspec import Struct

from weftline.errors import WeftlineError
from weftline.server.http import Headers
from weftline.server.memory import MAX_BODY_BYTES_HELD, MAX_BODY_BYTES_HELD_PER_WORKSPACE

Network: TypeAlias = IPv4Network | IPv6Network

MAX_CONNECTIONS = 10_000
_SPARE_FILES = 4
"""One in this many descriptors is reserved for the store, models and tools."""


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """Limits from the server's settings; see `docs/settings.md`."""

    max_connections: int = MAX_CONNECTIONS
    max_connections_per_address: int = MAX_CONNECTIONS // 2
    """0 for no limit, as behind a proxy all connections come from one address."""
    max_head_bytes: int = 64 * 1024
    head_timeout_s: float = 15.0
    body_timeout_s: float = 300.0
    body_pause_s: float = 30.0
    """How long a client may pause in the middle of a body."""
    max_body_bytes_held: int = MAX_BODY_BYTES_HELD
    max_body_bytes_held_per_workspace: int = MAX_BODY_BYTES_HELD_PER_WORKSPACE
    keep_alive_s: float = 120.0
    """Longer than clients keep an idle connection (Go: 90 s).

    The client must be the one to close it. Otherwise a request that is not repeated, such as a tool's result, can be
    lost on a connection that was just closed.
    """
    stall_timeout_s: float = 300.0
    """How long a client may take without reading what is waiting to be sent."""


class Aborting(Protocol):
    def abort(self) -> None: ...


class Connections:
    """Counts connections. `max_files` is how many descriptors the process may have open."""

    def __init__(
        self, limits: ConnectionLimits, *, max_files: int | None = None, proxies: Sequence[Network] = ()
    ) -> None:
        self.limits = limits
        self._proxies = proxies
        self.maximum = limits.max_connections
        if max_files is not None:
            self.maximum = min(self.maximum, max(1, max_files - max_files // _SPARE_FILES))
        self._open: set[Aborting] = set()
        self._closed = asyncio.Event()
        self._count = 0
        self._by_address: Counter[str] = Counter()
        self.on_refused: Callable[[WeftlineError], object] = lambda _: None
        """Called for each connection or request that is refused before it is handled."""
        self.headers_of_refusal: Callable[[str | None], Headers] = lambda _: ()
        """Returns additional headers for such a refusal, given the page's origin if it was read."""

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        return self._count >= self.maximum

    def address_of(self, host: str) -> str:
        """Returns the address that a connection counts for; empty for a proxy, which represents many clients."""
        return "" if is_in(host, self._proxies) else network_of(host)

    def full_for(self, address: str) -> bool:
        """Returns True if this address has reached its limit."""
        limit = self.limits.max_connections_per_address
        return bool(limit and address) and self._by_address[address] >= limit

    def enter(self, address: str) -> None:
        """Counts a connection from this address; must be followed by `leave`."""
        self._count += 1
        self._by_address[address] += 1

    def leave(self, address: str) -> None:
        self._count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def opened(self, connection: Aborting) -> None:
        self._open.add(connection)

    def closed(self, connection: Aborting) -> None:
        self._open.discard(connection)
        self._closed.set()

    async def next_closed(self) -> None:
        """Waits until another connection has been closed."""
        self._closed.clear()
        await self._closed.wait()

    def abort(self) -> None:
        """Closes all connections at once, whatever is waiting to be sent."""
        for connection in list(self._open):
            connection.abort()


def client_of(peer: str, forwarded: Sequence[str], proxies: Sequence[Network]) -> str:
    """Returns the address of the client: the peer, or the last in `X-Forwarded-For` that is not a trusted proxy."""
    host = peer
    for given in reversed([part.strip() for line in forwarded for part in line.split(",")]):
        if not is_in(host, proxies):
            break
        host = given
    return network_of(host)


def is_in(host: str, networks: Sequence[Network]) -> bool:
    if not networks:
        return False
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)


def network_of(host: str) -> str:
    """Returns what counts as one address: an IPv4 address, or an IPv6 /64, which one customer usually has."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64))

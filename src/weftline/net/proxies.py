"""The proxies in the environment: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, in upper or lower case.

The lower-case name wins. Loopback is never reached through a proxy: the proxy's loopback is a different machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from weftline.net.errors import RequestFailed

Network: TypeAlias = IPv4Network | IPv6Network


class _Exempt(Struct, frozen=True):
    """One entry of NO_PROXY: a name with everything below it, or a network; with a port, only that one."""

    name: str = ""
    network: Network | None = None
    port: int | None = None


class Proxies(Struct, frozen=True):
    """Finds the proxy for an address. Falsy if the environment has none, as a shortcut for callers."""

    by_scheme: dict[str, str] = {}
    exempt: tuple[_Exempt, ...] = ()
    exempt_all: bool = False

    def __bool__(self) -> bool:
        return bool(self.by_scheme) and not self.exempt_all

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Proxies:
        found = os.environ if environ is None else environ

        def value(name: str) -> str:
            return (found.get(name) or found.get(name.upper()) or "").strip()

        usual = value("all_proxy")
        by_scheme = {scheme: value(f"{scheme}_proxy") or usual for scheme in ("http", "https")}
        entries = [entry.strip() for entry in value("no_proxy").split(",") if entry.strip()]
        return cls(
            {scheme: proxy if "://" in proxy else f"http://{proxy}" for scheme, proxy in by_scheme.items() if proxy},
            tuple(_exempt(entry) for entry in entries),
            "*" in entries,
        )

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts of the proxies."""
        return frozenset(urlsplit(proxy).hostname or "" for proxy in self.by_scheme.values())

    def find(self, scheme: str, host: str, port: int | None) -> str | None:
        """Returns the proxy for an address; None for a direct connection.

        Raises:
            RequestFailed: if it is a kind of proxy that we do not support, as bypassing it would be worse.
        """
        proxy = self.by_scheme.get(scheme)
        if proxy is None or self.exempt_all or self._is_exempt(host.lower().rstrip("."), port):
            return None
        kind = urlsplit(proxy).scheme.lower()
        if kind not in ("http", "https"):
            raise RequestFailed("invalid", f"{kind!r} proxies are not supported; use http or https.", sent=False)
        return proxy

    def _is_exempt(self, host: str, port: int | None) -> bool:
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            address = None
        if host == "localhost" or (address is not None and address.is_loopback):
            return True
        for entry in self.exempt:
            if entry.port is not None and entry.port != port:
                continue
            if entry.network is not None:
                if address is not None and address in entry.network:
                    return True
            elif host == entry.name or host.endswith(f".{entry.name}"):
                return True
        return False


def _exempt(entry: str) -> _Exempt:
    text, port = entry.lower(), None
    if text.startswith("[") or text.count(":") == 1:
        text, _, after = text.rpartition(":") if not text.endswith("]") else (text, "", "")
        port = int(after) if after.isdigit() else None
        text = text.strip("[]")
    try:
        return _Exempt(network=ip_network(text, strict=False), port=port)
    except ValueError:
        return _Exempt(name=text.removeprefix("*").strip("."), port=port)

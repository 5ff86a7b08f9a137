"""Addresses, parsed once. Checking a URL, comparing its origin and connecting to it all use this parser and no other.

Two parsers of one URL can be made to disagree about the host: full-width or circled digits, ideographic dots, `127.1`,
a backslash. So a host is first normalized, and one that has no normal form is refused.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeAlias
from urllib.parse import quote, unquote, urlencode

from msgspec import Struct

Origin: TypeAlias = tuple[str, str, int]
"""Scheme, host and port."""

_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#\\]*)(.*)", re.DOTALL)
_HOST_AND_PORT = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([0-9]{0,5}))?", re.ASCII)
_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_DROPPED = dict.fromkeys(map(ord, "\t\r\n"))
_MAX_HOST_CHARS = 253
_NEEDS_NO_QUOTING = "%/:=&?~#+!$,;'@()*[]"


class InvalidAddress(ValueError):
    """This is not an http or https URL. The message names at most the host, never anything that may be secret."""


class Address(Struct, frozen=True):
    """`host` is a lower-case ASCII name or an IP address in normal form, IPv6 without brackets.

    `url` is the whole URL, all ASCII, with this host in it; `bare_url` is what is sent, without `credentials`.
    """

    scheme: str
    host: str
    port: int
    rest: str
    """Path, query and fragment."""
    credentials: str = ""
    """The part before the host, verbatim."""

    @property
    def origin(self) -> Origin:
        return self.scheme, self.host, self.port

    @property
    def url(self) -> str:
        at = f"{self.credentials}@" if self.credentials else ""
        return f"{self.scheme}://{at}{self._place}{self.rest}"

    @property
    def bare_url(self) -> str:
        return f"{self.scheme}://{self._place}{self.rest}"

    @property
    def basic(self) -> str | None:
        """The Authorization header for the credentials."""
        if not self.credentials:
            return None
        user, _, password = self.credentials.partition(":")
        return "Basic " + base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()

    @property
    def _place(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def ip(self) -> IPv4Address | IPv6Address | None:
        """The host, if it is an address and not a name."""
        return literal(self.host)


def parse(url: str) -> Address:
    """Reads an http or https URL. Raises `InvalidAddress`."""
    # Dropped wherever they appear, as in browsers.
    match = _URL.fullmatch(url.translate(_DROPPED))
    scheme = match[1].lower() if match else ""
    if match is None or scheme not in _PORTS:
        raise InvalidAddress("Only http and https addresses can be reached.")
    authority, rest = match[2], match[3]
    if rest.startswith("\\"):
        raise InvalidAddress("The host of the address ends in a backslash.")
    credentials, _, place = authority.rpartition("@")
    parts = _HOST_AND_PORT.fullmatch(place)
    if parts is None or (parts[2] and not 0 < int(parts[2]) < 65536):
        raise InvalidAddress("The host or the port of the address is not valid.")
    host = canonical_host(parts[1])
    port = int(parts[2]) if parts[2] else _PORTS[scheme]
    return Address(scheme, host, port, _quoted(rest), _quoted(credentials).replace("@", "%40"))


def origin_of(url: str) -> Origin:
    """Returns scheme, host and port of a URL. Raises `InvalidAddress`."""
    return parse(url).origin


def at_path(url: str, path: str) -> str:
    """Returns the address of something below `url`. The query of `url` stays at the end: it may hold a token."""
    head, mark, query = url.partition("#")[0].partition("?")
    return f"{head.rstrip('/')}/{path}{mark}{query}"


def with_query(url: str, query: Mapping[str, str]) -> str:
    """Adds to the query of an address."""
    if not query:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"


def display_url(url: str, *, with_port: bool = False) -> str:
    """Returns an address as people may see it: without credentials, query and fragment."""
    try:
        found = parse(url)
    except InvalidAddress:
        return "the address"
    host = f"[{found.host}]" if ":" in found.host else found.host
    place = f"{host}:{found.port}" if with_port or found.port != _PORTS[found.scheme] else host
    return f"{found.scheme}://{place}{found.rest.partition('?')[0].partition('#')[0]}"


def canonical_host(text: str) -> str:
    """Returns the normal form of a host. Raises `InvalidAddress` if it has none."""
    if text.startswith("["):
        address = literal(text[1:-1])
        if not isinstance(address, IPv6Address):
            raise InvalidAddress(f"{text[:80]!r} is not an IPv6 address.")
        return str(address)
    if len(text) > _MAX_HOST_CHARS:
        raise InvalidAddress(f"{text[:80]!r}… is too long for a host.")
    host = (text if text.isascii() else _ascii(text)).lower().removesuffix(".")
    if not _NAME.fullmatch(host):
        raise InvalidAddress(f"{text!r} is not a host.")
    # Browsers and resolvers read anything that ends in a number as an IPv4 address, but differ on unusual forms.
    if _NUMBER.fullmatch(host.rpartition(".")[2]) and literal(host) is None:
        raise InvalidAddress(f"{text!r} is not a host; an IPv4 address has four decimal numbers.")
    return host


def literal(host: str) -> IPv4Address | IPv6Address | None:
    """Returns the host as an IP address; None for a name, and for an address with a zone."""
    try:
        return ip_address(host) if "%" not in host else None
    except ValueError:
        return None


def _ascii(host: str) -> str:
    import idna

    try:
        return idna.encode(host, uts46=True).decode("ascii")
    except (idna.IDNAError, UnicodeError):
        raise InvalidAddress(f"{host!r} is not a host.") from None


def _quoted(text: str) -> str:
    """Encodes spaces and other unsafe characters; encoded ones stay unchanged."""
    if text.isascii() and text.isprintable() and " " not in text:
        return text
    return quote(text, safe=_NEEDS_NO_QUOTING)


def same_origin(before: str, after: str) -> bool:
    """Returns True if both addresses have the same origin; False if one has none."""
    try:
        return origin_of(before) == origin_of(after)
    except InvalidAddress:
        return False

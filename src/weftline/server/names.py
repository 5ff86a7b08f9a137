"""The names of this server: which Host and Origin headers it accepts, and the base of its own URLs.

A page of another site can make a browser send requests to a server on the user's machine, under a name that the page's
owner points there (DNS rebinding). The Host and Origin headers of such a request reveal that.
"""

from __future__ import annotations

from collections.abc import Iterable

from weftline.errors import Forbidden
from weftline.net.address import InvalidAddress, Origin, canonical_host, literal, origin_of, parse
from weftline.net.egress import is_loopback
from weftline.server.cors import Cors
from weftline.server.http import Request

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class OwnNames:
    """The names of the server.

    Args:
        url: The address that the server listens on.
        public_url: Where it is reached from outside, if that differs.
        hosts: Further names that it goes by.
        local: Whether the server serves only its own machine. One that listens on every address without a
            `public_url` does not know all of its names.
        cors: Which pages of other origins may use the server.
    """

    def __init__(
        self,
        *,
        url: str,
        public_url: str = "",
        hosts: Iterable[str] = (),
        local: bool = False,
        cors: Cors | None = None,
    ) -> None:
        self.url = public_url or url
        self._public = bool(public_url)
        self._public_prefix = parse(public_url).rest.rstrip("/") if public_url else ""
        self._learned = False
        self._hosts = frozenset(hosts)
        self._local = local
        self._cors = cors
        self._closed = local or bool(public_url) or bool(self._hosts)
        self._know(url, public_url)

    def learn(self, url: str) -> None:
        """Sets the address that the server listens on, if it was not known before; only the first call counts."""
        if not self._learned:
            self._learned = True
            self.url = url
            self._know(url)

    def _know(self, url: str, public_url: str = "") -> None:
        self._bases = {origin_of(base): base for base in (*_aliases(url), url, public_url) if base}

    def base(self, request: Request) -> str:
        """Returns the base of the URLs in the response to this request.

        This is the public one if there is one, whatever the Host, as a proxy may pass on the address that we listen on.
        Otherwise it has the name in the request if that is one of the server's own; any other Host is never repeated.
        """
        if self._public:
            return self.url
        host = request.header(b"host") or ""
        for scheme in ("https", "http"):
            origin = _origin(f"{scheme}://{host}")
            if origin in self._bases:
                return self._bases[origin]
        return self.url

    def prefix(self, request: Request) -> str:
        """Returns the path that all of the server's paths begin with, as this request's client sees them.

        It is usually empty; otherwise that of a mount in another application, or one that a proxy strips.
        """
        return self._public_prefix if self._public else request.root

    def path_of(self, url: str) -> str | None:
        """Returns the path of a URL of this server, empty for the server as a whole; None for any other URL."""
        try:
            address = parse(url)
        except InvalidAddress:
            return None
        base = self._bases.get(address.origin)
        if base is None or address.credentials or any(char in address.rest for char in "?#"):
            return None
        prefix = parse(base).rest
        if not address.rest.startswith(prefix):
            return None
        return address.rest.removeprefix(prefix).rstrip("/")

    def check(self, request: Request) -> None:
        """Raises `Forbidden` for a request to a name that is not the server's, or from another site's page.

        An IP address is accepted like one of our names, as it cannot be pointed elsewhere.
        """
        if not self.may_be_own(request.header(b"host") or ""):
            raise Forbidden(
                "The Host header does not name this server.",
                hint="Set public_url, or list the name in allowed_hosts, in the [server] table of the configuration.",
            )
        origin = request.header(b"origin")
        if origin is not None and not self._is_own_page(origin):
            raise Forbidden("This request comes from another site's page.")

    def may_be_own(self, host: str) -> bool:
        """Returns True if a Host header may name this server. Any may if the server does not know all of its names."""
        return not self._closed or self._is_own(host)

    def _is_own_page(self, given: str) -> bool:
        """Returns True if a page is the server's own, is allowed by CORS or, if the server is local, is on its own
        machine.
        """
        if self._cors is not None and self._cors.allows(given):
            return True
        origin = _origin(given)
        return origin is not None and (origin in self._bases or (self._local and is_loopback(origin[1])))

    def _is_own(self, host: str) -> bool:
        origin = _origin(f"http://{host}")
        if origin is None:
            return False
        if literal(origin[1]) is not None or origin[1] in self._hosts:
            return True
        return any(origin[1] == known[1] for known in self._bases)


def host_name(text: str) -> str | None:
    """Returns the normal form of a host in `allowed_hosts`; None if it is not a host."""
    try:
        return canonical_host(text)
    except InvalidAddress:
        return None


def _aliases(url: str) -> list[str]:
    """Returns the other names of a server that listens only on this machine."""
    address = parse(url)
    if not is_loopback(address.host):
        return []
    return [f"{address.scheme}://{name}:{address.port}{address.rest}".rstrip("/") for name in _LOOPBACK]


def _origin(url: str) -> Origin | None:
    try:
        address = parse(url)
    except InvalidAddress:
        return None
    return address.origin if not address.credentials else None

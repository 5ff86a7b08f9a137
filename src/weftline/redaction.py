"""What must not be shown, and the mark that replaces it.

A secret that goes out comes back: peers repeat headers in their errors, and addresses carry tokens. Whatever a peer
says goes through a `Redactor` built from what it was sent, before anyone reads, stores or logs it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import quote, quote_plus

from weftline.percent import decoded

REDACTED: Final = "[redacted]"
SEALED_URL: Final = ":url"
"""Where a tool's whole address is kept, next to its secret headers, if the address contains a secret. No header can
have this name.
"""

_SECRET_NAME = re.compile(
    r"token|secret|passw|passphrase|credential|key$|api[_-]?key"
    r"|(?:^|[^a-z])(?:auth|authorization|bearer|cookie|jwt|pass|pwd|session|sid|sig|signature)(?![a-z])",
    re.IGNORECASE,
)
_PLAIN_HEADERS = frozenset(
    {"accept", "accept-encoding", "accept-language", "cache-control", "content-type", "user-agent"}
)
_RANDOM = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_.~+/=%-]{16,}")
_PLACEHOLDERS = re.compile(r"(?:\{\{[^{}]*\}\})+")
_MIN_SECRET_CHARS = 3
"""A shorter declared secret would black out half of every text."""
_MIN_HEADER_CHARS, _MIN_OTHER_CHARS = 4, 8
"""Of a header or parameter with a name that speaks of secrets, and of any other."""


class Redactor:
    """Blacks out these secrets wherever they appear, including as JSON, in an address, in HTML or in base64."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if len(secret) >= _MIN_SECRET_CHARS for form in _forms(secret)}
        # Longest first: one secret may be part of another.
        self._forms = sorted(forms, key=len, reverse=True)
        self.longest = len(self._forms[0]) if self._forms else 0
        """Of what it looks for, in characters."""

    @classmethod
    def of_request(cls, url: str, headers: Mapping[str, str], *, secrets: Iterable[str] = ()) -> Redactor:
        """For what a request carries: its headers, the secrets in its address, and anything else declared secret."""
        return cls([*secrets, *_of_headers(headers), *_of_url(url)])

    @classmethod
    def of_environment(cls, env: Mapping[str, str]) -> Redactor:
        """For the variables that a program was started with, as far as their names speak of secrets."""
        return cls(
            [value for name, value in env.items() if _SECRET_NAME.search(name) and len(value) >= _MIN_HEADER_CHARS]
        )

    def __or__(self, other: Redactor) -> Redactor:
        """One that blackens the secrets of both."""
        both = Redactor()
        both._forms = sorted({*self._forms, *other._forms}, key=len, reverse=True)
        both.longest = max(self.longest, other.longest)
        return both

    def __bool__(self) -> bool:
        return bool(self._forms)

    def text(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, REDACTED)
        return text

    def data(self, data: bytes) -> bytes:
        for form in self._forms:
            data = data.replace(form.encode("utf-8", "surrogatepass"), REDACTED.encode())
        return data


def shown_url(url: str) -> str:
    """An address without its credentials and without the values of its query: any of them may be a token."""
    return _shown(url, lambda _, __: True)


def shown_template(url: str) -> str:
    """Like `shown_url`, for a template, whose reader must see what it does: only what looks like a token goes."""
    return _shown(url, _is_secret_parameter)


def _shown(url: str, hides: Callable[[str, str], bool]) -> str:
    rest, mark, query = url.partition("#")[0].partition("?")
    scheme, colon, rest = rest.partition("://")
    authority, slash, path = rest.partition("/")
    _, at, host = authority.rpartition("@")
    place = f"{REDACTED}@{host}" if at else authority
    pairs = "&".join(_shown_pair(pair, hides) for pair in query.split("&"))
    return f"{scheme}{colon}{place}{slash}{path}{mark}{pairs}"


def _shown_pair(pair: str, hides: Callable[[str, str], bool]) -> str:
    name, equals, value = pair.partition("=") if "=" in pair else ("", "", pair)
    if not value or _PLACEHOLDERS.fullmatch(value) or not hides(name, value):
        return pair
    return f"{name}{equals}{REDACTED}"


def _is_secret_parameter(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name) or _RANDOM.fullmatch(value))


def _of_headers(headers: Mapping[str, str]) -> Iterator[str]:
    for name, value in headers.items():
        if name.lower() in _PLAIN_HEADERS or name == SEALED_URL:
            continue
        named = _SECRET_NAME.search(name) is not None
        least = _MIN_HEADER_CHARS if named else _MIN_OTHER_CHARS
        words = re.split(r"[\s;,]+", value.strip())
        if len(words) > 1 and "=" not in words[0]:
            scheme, *words = words
            if scheme.lower() == "basic":
                words += _basic(words[0])
        pieces = [value, *words] if named else [value]
        pieces += [piece.partition("=")[2].strip('"') for piece in pieces if "=" in piece.rstrip("=")]
        yield from (piece for piece in pieces if len(piece) >= least)


def _basic(encoded: str) -> list[str]:
    """The user and password of HTTP Basic together, and the password alone."""
    try:
        decoded = base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, ValueError):
        return []
    return [decoded, decoded.partition(":")[2]]


def _of_url(url: str) -> Iterator[str]:
    rest, _, query = url.partition("#")[0].partition("?")
    credentials, at, _ = rest.partition("://")[2].partition("/")[0].rpartition("@")
    if at:
        user, colon, password = credentials.partition(":")
        # A token may be given in place of the user.
        yield from (one for one in (_unescaped(password if colon else user), credentials) if len(one) > 3)
    for pair in query.split("&"):
        name, value = (_unescaped(part.replace("+", " ")) for part in pair.partition("=")[::2])
        least = _MIN_HEADER_CHARS if _SECRET_NAME.search(name) else _MIN_OTHER_CHARS
        if len(value) >= least and _is_secret_parameter(name, value):
            yield value


def _unescaped(text: str) -> str:
    try:
        return decoded(text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
    except ValueError:  # it cannot have been meant as an escaped text
        return text


def _forms(secret: str) -> set[str]:
    """How a secret may be spelled when it comes back."""
    data = secret.encode("utf-8", "surrogatepass")
    html = secret.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    in_json = json.dumps(secret)[1:-1]
    return {
        secret,
        in_json,
        json.dumps(secret, ensure_ascii=False)[1:-1],
        in_json.replace("/", "\\/"),  # as PHP writes it
        json.dumps(in_json)[1:-1],  # JSON inside of JSON
        "".join([f"\\u{ord(char):04x}" for char in secret]),
        quote(data, safe=""),
        quote_plus(data),
        "".join([f"%{byte:02X}" for byte in data]),
        data.hex(),
        data.hex().upper(),
        html,
        base64.b64encode(data).decode().rstrip("="),
        base64.urlsafe_b64encode(data).decode().rstrip("="),
    }

"""Redacts secrets from text.

Secrets that are sent may come back: peers repeat headers in their errors, and addresses contain tokens. Everything that
a peer returns goes through a `Redactor` built from what it was sent, before it is read, stored or logged.
"""

from __future__ import annotations

import base64
import binascii
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, zip_longest
from typing import Final

from weftline.text.percent import decoded
from weftline.text.spellings import CHARS_PER_CHAR, MAX_NESTING, Needle, Span, spans_of

REDACTED: Final = "[redacted]"
SEALED_URL: Final = ":url"
"""The name under which a tool's whole address is stored with its secret headers, if it contains a secret.

No header can have this name.
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
"""Redacting a shorter declared secret would remove half of every text."""
_MIN_HEADER_CHARS, _MIN_OTHER_CHARS = 4, 8
"""The minimum length in a header or parameter whose name suggests a secret, and in any other."""
_MAX_SECRETS = 160
"""For one request: the values of its headers first, then their parts."""
_LIGHT_CHARS = 2048
"""Enough for any usual token."""


class Redactor:
    """Redacts these secrets wherever they appear, however they are encoded; see `weftline.text.spellings`.

    What to look for is computed on first use, as most secrets are never repeated.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        kept = [secret for secret in secrets if len(secret) >= _MIN_SECRET_CHARS]
        self._secrets: Callable[[], Iterable[str]] = lambda: kept
        self._chars = sum([len(secret) for secret in kept])

    @classmethod
    def of_request(cls, url: str, headers: Mapping[str, str], *, secrets: Iterable[str] = ()) -> Redactor:
        """Returns a redactor for a request: its headers, the secrets in its address, and declared ones."""
        redactor = cls(secrets)
        declared, values = redactor._secrets, dict(headers)
        redactor._secrets = lambda: [*declared(), *islice(dict.fromkeys(_of_request(url, values)), _MAX_SECRETS)]
        redactor._chars += len(url) + sum([len(value) for value in values.values()])
        return redactor

    @classmethod
    def of_environment(cls, env: Mapping[str, str]) -> Redactor:
        """Returns a redactor for a program's environment variables whose names suggest secrets."""
        return cls(
            [value for name, value in env.items() if _SECRET_NAME.search(name) and len(value) >= _MIN_HEADER_CHARS]
        )

    def __or__(self, other: Redactor) -> Redactor:
        """Returns a redactor for the secrets of both."""
        both = Redactor()
        both._secrets = lambda: [*self._found, *other._found]
        both._chars = self._chars + other._chars
        both._found = list(dict.fromkeys([*self._found, *other._found]))
        both._needles = [*self._needles, *other._needles]
        return both

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def secrets(self) -> Sequence[str]:
        """The secrets that it looks for."""
        return self._found

    @property
    def heavy(self) -> bool:
        """True if it has so much to look for that it must not run on the event loop."""
        return self._chars > _LIGHT_CHARS

    @property
    def longest(self) -> int:
        """The length in characters of the longest secret, in any encoding."""
        return CHARS_PER_CHAR * max(map(len, self._found), default=0)

    def prepare(self) -> None:
        """Computes what to look for, if necessary."""
        _ = self._needles

    @cached_property
    def _found(self) -> list[str]:
        return list(dict.fromkeys([secret for secret in self._secrets() if len(secret) >= _MIN_SECRET_CHARS]))

    @cached_property
    def _needles(self) -> list[Needle]:
        return [Needle.of(secret) for secret in self._found]

    @cached_property
    def _data_needles(self) -> list[Needle]:
        return [Needle.of(secret, latin=True) for secret in self._found]

    def text(self, text: str) -> str:
        return self.texts([text])[0]

    def texts(self, texts: Sequence[str]) -> list[str]:
        """Redacts texts that are read together: a secret may begin in one and end in the next."""
        if not self or not any(texts):
            return list(texts)
        joined = texts[0] if len(texts) == 1 else "\n".join(texts)
        spans = spans_of(self._needles, joined)
        if not spans:
            return list(texts)
        redacted: list[str] = []
        begin = 0
        for text in texts:
            redacted.append(_redacted(text, spans, begin))
            begin += len(text) + 1
        return redacted

    def data(self, data: bytes) -> bytes:
        if not self:
            return data
        text = data.decode("latin-1")
        # Images, sounds and archives are full of apparent escapes, but nobody reads them as text.
        nesting = 0 if b"\0" in data else MAX_NESTING
        spans = spans_of(self._data_needles, text, nesting=nesting, latin=True)
        return _redacted(text, spans, 0).encode("latin-1") if spans else data


def _redacted(text: str, spans: Sequence[Span], begin: int) -> str:
    """Returns the text, which begins at `begin` of what was searched, with a mark where each secret begins."""
    pieces: list[str] = []
    at = 0
    for start, end in spans[max(0, bisect_left(spans, (begin, 0)) - 1) :]:
        start, end = start - begin, end - begin
        if start >= len(text):
            break
        if end <= 0:
            continue
        pieces += (text[at : max(start, 0)], REDACTED if start >= 0 else "")
        at = min(end, len(text))
    return "".join([*pieces, text[at:]])


def redact_url(url: str) -> str:
    """Returns an address without its credentials and the values of its query, as any of them may be a token."""
    return _redact_address(url, lambda _, __: True)


def redact_template(url: str) -> str:
    """Like `redact_url`, for a template, whose reader must see what it does: only apparent tokens are redacted."""
    return _redact_address(url, _is_secret_parameter)


def _redact_address(url: str, hides: Callable[[str, str], bool]) -> str:
    rest, mark, query = url.partition("#")[0].partition("?")
    scheme, colon, rest = rest.partition("://")
    authority, slash, path = rest.partition("/")
    _, at, host = authority.rpartition("@")
    place = f"{REDACTED}@{host}" if at else authority
    pairs = "&".join(_redact_pair(pair, hides) for pair in query.split("&"))
    return f"{scheme}{colon}{place}{slash}{path}{mark}{pairs}"


def _redact_pair(pair: str, hides: Callable[[str, str], bool]) -> str:
    name, equals, value = pair.partition("=") if "=" in pair else ("", "", pair)
    if not value or _PLACEHOLDERS.fullmatch(value) or not hides(name, value):
        return pair
    return f"{name}{equals}{REDACTED}"


def _is_secret_parameter(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name) or _RANDOM.fullmatch(value))


def _of_request(url: str, headers: Mapping[str, str]) -> Iterator[str]:
    sent = [(name, value) for name, value in headers.items() if name.lower() not in _PLAIN_HEADERS | {SEALED_URL}]
    yield from _of_url(url)
    yield from (value for name, value in sent if len(value) >= _min_chars(name))
    yield from _of_headers(sent)


def _min_chars(name: str) -> int:
    return _MIN_HEADER_CHARS if _SECRET_NAME.search(name) else _MIN_OTHER_CHARS


def _of_headers(headers: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yields the parts of all headers in turns, so that one with many parts does not use up the limit."""
    for row in zip_longest(*[_of_header(value, min_chars=_min_chars(name)) for name, value in headers], fillvalue=""):
        yield from (piece for piece in row if piece)


def _of_header(value: str, *, min_chars: int) -> Iterator[str]:
    words = re.split(r"[\s;,]+", value.strip())
    if len(words) > 1 and "=" not in words[0]:
        scheme, *words = words
        if scheme.lower() == "basic":
            words += _basic(words[0])
    for piece in [value, *words] if min_chars == _MIN_HEADER_CHARS else [value]:
        assigned = piece.partition("=")[2].strip('"') if "=" in piece.rstrip("=") else ""
        yield from (one for one in (piece, assigned) if len(one) >= min_chars)


def _basic(encoded: str) -> list[str]:
    """Returns user and password of HTTP Basic together, and the password alone."""
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
        # A token may be given instead of the user.
        yield from (one for one in (_unescaped(password if colon else user), credentials) if len(one) > 3)
    for pair in query.split("&"):
        name, value = (_unescaped(part.replace("+", " ")) for part in pair.partition("=")[::2])
        least = _MIN_HEADER_CHARS if _SECRET_NAME.search(name) else _MIN_OTHER_CHARS
        if len(value) >= least and _is_secret_parameter(name, value):
            yield value


def _unescaped(text: str) -> str:
    try:
        return decoded(text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
    except ValueError:  # not an escaped text
        return text

"""Estimates what parsing a JSON text would cost, without parsing it.

16 MB of `[[],[],…` are five million lists, and the event loop is blocked while they are created; counting them takes a
hundredth of that time. Long integers take quadratic time: 16 MB of them take seconds. A number at the limits of a
double (`1e300`, `5e-324`) takes a hundred times as long as any other: 1 MB of them takes seconds too.
"""

from __future__ import annotations

MAX_JSON_VALUES = 200_000
"""For one untrusted text, including field names. Parsing takes about 50 ms."""
LONG_NUMBER_DIGITS = 400
MAX_LONG_NUMBERS = 100
"""How many numbers with more digits than that a text may have. A very long one counts once per 400 digits."""
MAX_LONG_EXPONENTS = 1_000
"""How many numbers with an exponent of three digits or more a text may have. Parsing takes about 10 ms."""

_UNIT = b"0" * (LONG_NUMBER_DIGITS + 1)
_STRIDE = LONG_NUMBER_DIGITS // 2
_NEVER_LONG_BYTES = len(_UNIT) * MAX_LONG_NUMBERS
SMALL_BYTES = min(_NEVER_LONG_BYTES, len(b"1e300,") * MAX_LONG_EXPONENTS)
"""A shorter text has too much of nothing."""
_DIGITS_TO_ZEROS = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))
_LONG_EXPONENT = b"0e000"
_NUMBERS_ALIKE = bytes(0x65 if byte in b"eE" else zero for byte, zero in enumerate(_DIGITS_TO_ZEROS))
"""Makes every exponent of three digits a `_LONG_EXPONENT`, without its sign: a quarter of the cost of a pattern."""
_CHUNK_BYTES = 256 * 1024
"""How much is scanned at once; other threads run in between."""


def excess(text: bytes, max_values: int = MAX_JSON_VALUES) -> str:
    """Returns what a JSON text has too much of, to follow "has"; empty if it may be parsed.

    For text that is not JSON, the result may be either.
    """
    if len(text) < SMALL_BYTES and len(text) < max_values:
        return ""  # nearly every text, and every piece of a stream
    if has_more_values(text, max_values):
        return f"more than {max_values:,} JSON values"
    if long_numbers(text) > MAX_LONG_NUMBERS:
        outside = _outside_of_strings(text, max_values)
        if outside is None or long_numbers(outside) > MAX_LONG_NUMBERS:
            return f"too many numbers of more than {LONG_NUMBER_DIGITS} digits"
    if _has_more_exponents(text):
        outside = _outside_of_strings(text, max_values)
        if outside is None or _has_more_exponents(outside):
            return f"more than {MAX_LONG_EXPONENTS:,} numbers with an exponent of three digits"
    return ""


def is_modest(text: str) -> bool:
    """Returns True if an untrusted text inside another may be parsed as JSON."""
    return not excess(text.encode(errors="replace"))


def has_more_values(text: bytes, max_values: int = MAX_JSON_VALUES) -> bool:
    """Returns True if a JSON text has more than `max_values` values. For text that is not JSON, the result may be
    either.
    """
    # Each value except the first follows one of these; most texts have few, even inside their strings.
    if len(text) < max_values or _separators(text) < max_values:
        return False
    outside = _outside_of_strings(text, max_values)
    return outside is None or _separators(outside) >= max_values


def long_numbers(text: bytes) -> int:
    """Returns about how many long numbers a text has, including those in its strings; see `MAX_LONG_NUMBERS`."""
    return _units(text) if len(text) > _NEVER_LONG_BYTES else 0


class LongNumbers:
    """Like `long_numbers`, for a text that comes in pieces."""

    __slots__ = ("_tail", "count")

    def __init__(self) -> None:
        self.count = 0
        self._tail = b""

    def feed(self, piece: bytes) -> None:
        text = self._tail + piece
        self.count += _units(text)
        self._tail = text[-LONG_NUMBER_DIGITS:]


def _units(text: bytes) -> int:
    # A run of this many digits covers two consecutive sampled bytes.
    if b"00" not in text[::_STRIDE].translate(_DIGITS_TO_ZEROS):
        return 0
    return sum(
        [
            text[at : at + _CHUNK_BYTES].translate(_DIGITS_TO_ZEROS).count(_UNIT)
            for at in range(0, len(text), _CHUNK_BYTES)
        ]
    )


def _has_more_exponents(text: bytes) -> bool:
    if text.count(b"e") + text.count(b"E") <= MAX_LONG_EXPONENTS:
        return False
    count = 0
    for at in range(0, len(text), _CHUNK_BYTES):
        count += text[at : at + _CHUNK_BYTES].translate(_NUMBERS_ALIKE, b"+-").count(_LONG_EXPONENT)
        if count > MAX_LONG_EXPONENTS:
            return True
    return False


def _outside_of_strings(text: bytes, max_values: int) -> bytes | None:
    """Returns the text without its strings; None if there are more than `max_values` strings."""
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text
    return None if bare.count(b'"') > 2 * max_values else b'"'.join(bare.split(b'"')[::2])


def _separators(text: bytes) -> int:
    return text.count(b",") + text.count(b":") + text.count(b"[") + text.count(b"{")

"""What a JSON text may have, counted without reading it."""

from __future__ import annotations

import pytest

from weftline.text.json_size import LONG_NUMBER_DIGITS, MAX_LONG_EXPONENTS, MAX_LONG_NUMBERS, LongNumbers, excess

LONG = b"9" * (LONG_NUMBER_DIGITS + 1)
SHORT = b"9" * LONG_NUMBER_DIGITS


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b",".join([LONG] * MAX_LONG_NUMBERS) + b"]",
        b"[" + b",".join([SHORT] * 10_000) + b"]",
        b'["' + LONG * 1_000 + b'"]',
        b'["\\"' + LONG * 1_000 + b'\\\\",1]',
        b'{"' + LONG * 1_000 + b'":"' + LONG * 1_000 + b'"}',
        b"[" + b"1," * 100_000 + b"1]",
        b"[" + b",".join([b"1e300"] * MAX_LONG_EXPONENTS) + b"]",
        b"[" + b",".join([b"1.5e-12"] * 100_000) + b"]",
        b'["' + b"1e300," * 100_000 + b'",1e300]',
    ],
)
def test_cheap_schema_is_read(text: bytes) -> None:
    assert excess(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b",".join([LONG] * (MAX_LONG_NUMBERS + 1)) + b"]",
        b"[" + b",".join([b"-" + b"9" * 4_290] * 20) + b"]",
        b'["a","\\"",' + b", ".join([LONG] * (MAX_LONG_NUMBERS + 1)) + b',"b"]',
        b"[" + b",".join([LONG] * 200) + b'"' * 500_000,
    ],
)
def test_long_numbers_are_counted_outside_of_strings(text: bytes) -> None:
    assert excess(text) == "too many numbers of more than 400 digits"


@pytest.mark.parametrize("number", [b"1e300", b"5e-324", b"1E+308", b"0.1e0000300"])
def test_numbers_at_edge_of_double_are_counted_outside_of_strings(number: bytes) -> None:
    text = b'["a","\\"e300",' + b",".join([number] * (MAX_LONG_EXPONENTS + 1)) + b"]"
    assert excess(text) == "more than 1,000 numbers with an exponent of three digits"


@pytest.mark.parametrize("size", [1, 399, 400, 401, 5_000])
def test_long_numbers_are_found_in_any_pieces(size: int) -> None:
    text = b"x" * 77 + b",".join([b"9" * 4_290] * 20)
    numbers = LongNumbers()
    for at in range(0, len(text), size):
        numbers.feed(text[at : at + size])
    assert numbers.count > MAX_LONG_NUMBERS
    short = LongNumbers()
    for _ in range(1_000):
        short.feed(SHORT + b",")
    assert short.count == 0

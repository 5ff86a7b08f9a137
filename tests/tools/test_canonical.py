import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.text.canonical import MAX_DEPTH, NotCanonical, canonical, canonical_value, digest, parse

VECTORS = [
    ("{}", b"{}"),
    (' { "b" : 1 , "a" : [ true , false , null ] } ', b'{"a":[true,false,null],"b":1}'),
    ('{"a":1,"a":2}', b'{"a":2}'),
    (
        '{"\\ud83d\\ude00":1,"\uffff":2,"é":3,"z":4,"a\\"":5,"a!":6,"":7}',
        '{"":7,"a!":6,"a\\"":5,"z":4,"é":3,"\uffff":2,"😀":1}',
    ),
    ('"\\u0041\\/\\u2028\\u007f"', '"A/\u2028\x7f"'),
    ('"\\u0000\\u001f\\b\\f\\n\\r\\t\\\\"', b'"\\u0000\\u001f\\b\\f\\n\\r\\t\\\\"'),
    ("9007199254740993", b"9007199254740993"),
    ("123456789012345678901234567890", b"123456789012345678901234567890"),
    ("-18446744073709551617", b"-18446744073709551617"),
    ("1", b"1"),
    ("1.0", b"1.0"),
    ("1E2", b"100.0"),
    ("-0", b"0"),
    ("0.0", b"0.0"),
    ("-0.0", b"-0.0"),
    ("0.10", b"0.1"),
    ("1e15", b"1000000000000000.0"),
    ("1e16", b"1e16"),
    ("100000000000000000000000.0", b"1e23"),
    ("0.00001", b"0.00001"),
    ("0.000001", b"1e-6"),
    ("5e-324", b"5e-324"),
    ("1.7976931348623157e308", b"1.7976931348623157e308"),
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(("text", "expected"), VECTORS)
def test_the_canonical_form_is_pinned_by_vectors(text: str, expected: bytes | str) -> None:
    wanted = expected if isinstance(expected, bytes) else expected.encode()
    assert canonical(text) == wanted
    assert canonical(text.encode()) == wanted


def test_the_digest_is_pinned() -> None:
    assert digest(b"{}") == "c1:2afb9b83f9314e5d029766197f539792"
    assert digest(canonical('{"a":1}')) != digest(canonical('{"a":1.0}'))


@given(json_values)
def test_canonical_form_is_stable_and_keeps_the_value(value: object) -> None:
    data = canonical_value(value)
    assert canonical(data) == data
    assert parse(data) == value


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_key_order_does_not_matter(value: dict[str, object]) -> None:
    backwards = dict(reversed(value.items()))
    assert canonical_value(value) == canonical_value(backwards)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "nul", "NaN", "Infinity", "-Infinity", "[1,]", "{} x", "01", "'a'", "{1:2}", "1e400", '"\x01"'),
        *('"\\ud800"', '"\\ud800 and more"', '"\\udc00"', '{"\\ud800":1}', '"\ud800"', "1" * 5000),
    ],
)
def test_text_that_is_refused(text: str) -> None:
    with pytest.raises(NotCanonical):
        canonical(text)


def test_bytes_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(NotCanonical):
        canonical(b'"\xff"')


@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, math.inf, -math.inf, {1: 2}, {None: 1}, {True: 1}, [{"a": {2.5: 1}}], b"x", object(), {1}),
        *("\ud800", {"\udfff": 1}, [10**5000]),
    ],
)
def test_values_that_are_refused(value: object) -> None:
    with pytest.raises(NotCanonical):
        canonical_value(value)


def nested(levels: int) -> object:
    value: object = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def test_nesting_is_limited_to_a_hundred_levels() -> None:
    assert MAX_DEPTH == 100
    deepest = canonical_value(nested(100))
    assert canonical(deepest) == deepest
    with pytest.raises(NotCanonical):
        canonical_value(nested(101))
    with pytest.raises(NotCanonical):
        canonical("[" * 101 + "]" * 101)
    with pytest.raises(NotCanonical):
        canonical("[" * 100_000 + "]" * 100_000)


def test_many_brackets_that_are_not_nested_are_fine() -> None:
    text = "[" + ",".join(["[]"] * 500) + "]"
    assert canonical(text) == text.encode()
    assert canonical('"' + "[" * 500 + '"') == b'"' + b"[" * 500 + b'"'


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(NotCanonical):
        canonical_value(loop)


def test_tuples_count_as_lists() -> None:
    assert canonical_value({"b": (1, 2.5), "a": None}) == b'{"a":null,"b":[1,2.5]}'

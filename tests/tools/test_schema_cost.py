"""Schemas are measured as if their references were written out, without doing so."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.text.schema_cost import MAX_SCHEMA_VALUES, TooCostly, measured, refusal


def twice_the_next(levels: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {
        f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": True}}


def written_out(value: Any, root: Any) -> int:
    """The same number, the slow way."""
    if isinstance(value, list):
        return 1 + sum(written_out(item, root) for item in value)  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(value, dict):
        return 1
    below = sum(written_out(item, root) for item in value.values())  # pyright: ignore[reportUnknownVariableType]
    reference: Any = value.get("$ref")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    target = root["$defs"][reference.rpartition("/")[2]] if isinstance(reference, str) else None
    return 1 + below + (written_out(target, root) if target is not None else 0)


@pytest.mark.parametrize("levels", range(8))
def test_references_count_each_time(levels: int) -> None:
    schema = twice_the_next(levels)
    cost = measured(schema)
    assert cost.values == written_out(schema, schema) and cost.bounded


def test_a_billion_subschemas_are_not_counted_one_by_one() -> None:
    for levels in (30, 60):
        with pytest.raises(TooCostly, match=str(MAX_SCHEMA_VALUES)):
            measured(twice_the_next(levels))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"properties": {"child": {"$ref": "#"}}},
        {"$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
        {"$ref": "#somewhere", "$defs": {"x": {"$anchor": "somewhere"}}},
        {"$ref": "https://x.example/other"},
        {"$ref": "#/$defs/missing"},
        {"$dynamicRef": "#x"},
        {"anyOf": [{"type": "object"}], "unevaluatedProperties": False},
        {"properties": {"a": {"$id": "https://x.example/inner", "$ref": "#/$defs/b"}}, "$defs": {"b": {}}},
    ],
)
def test_unbounded_result_says_that_it_has_no_bound(schema: dict[str, Any]) -> None:
    assert not measured(schema).bounded


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"id": {"type": "string"}, "$ref": {"type": "string"}}},
        {"$id": "https://x.example/root", "$ref": "#/$defs/a~1b/0", "$defs": {"a/b": [{"type": "null"}]}},
        {"properties": {"a": {"$ref": "#/$defs/x%20y"}}, "$defs": {"x y": {}}},
    ],
)
def test_ordinary_schemas_have_a_bound(schema: dict[str, Any]) -> None:
    assert measured(schema).bounded


def test_repetitions_inside_of_each_other_multiply() -> None:
    assert measured({"pattern": "a{100}"}).pattern_states < 1_000
    assert measured({"pattern": "((a{100}){100}){1,100}"}).pattern_states > 1_000_000
    assert measured({"patternProperties": {"(x{1000}){1000}": {}}}).pattern_states > 1_000_000


_schemas = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["$ref", "$defs", "anyOf", "items", "properties", "a", "pattern", "$id"]), inner, max_size=4
        )
        | st.fixed_dictionaries({"$ref": st.sampled_from(["#", "#/$defs/a", "#/anyOf/0", "#/a/items", "#//", "#/%"])})
    ),
    max_leaves=30,
)


@given(_schemas)
def test_whatever_is_sent_is_measured_or_refused(schema: Any) -> None:
    problem = refusal(schema, encoded=msgspec.json.encode(schema))
    try:
        cost = measured(schema)
    except TooCostly:
        assert problem is not None
    else:
        assert problem is None and cost.values >= 1 and cost.depth >= 1

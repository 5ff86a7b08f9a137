"""Tool names on their way to a model and back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.providers.base import ProviderError
from weftline.providers.names import NameMap, repaired


def test_a_name_that_is_allowed_is_sent_as_it_is() -> None:
    names = NameMap(["read_file", "a-b-1"])
    assert [names.out("read_file"), names.out("a-b-1")] == ["read_file", "a-b-1"]


@pytest.mark.requirement("provider.request.tool_names")
def test_a_repaired_name_comes_back_as_the_original() -> None:
    original = "files.read/über alles"
    names = NameMap([original])
    sent = names.out(original)
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", sent)
    assert names.back(sent) == original


def test_long_names_with_the_same_beginning_stay_apart() -> None:
    first, second = "tool_" * 20 + "a", "tool_" * 20 + "b"
    names = NameMap([first, second])
    assert names.out(first) != names.out(second)
    assert len(names.out(first)) == 64
    assert names.back(names.out(second)) == second


@pytest.mark.requirement("provider.request.tool_names")
def test_tools_with_equal_sent_names_are_refused() -> None:
    with pytest.raises(ProviderError) as caught:
        NameMap(["a.b", "a_b"])
    assert caught.value.cls == "invalid_request"
    assert caught.value.code == "tool_name_collision"


def test_the_same_tool_twice_is_no_collision() -> None:
    assert NameMap(["a.b", "a.b"]).out("a.b") == "a_b"


def test_a_tool_that_is_gone_is_still_named_as_before() -> None:
    assert NameMap([]).out("files.read") == NameMap(["files.read"]).out("files.read")


def test_name_that_was_never_sent_comes_back_as_it_is() -> None:
    assert NameMap(["a"]).back("invented") == "invented"


def test_a_family_may_have_rules_of_its_own() -> None:
    names = NameMap(["1.a", "b:c"], allowed=r"[a-zA-Z0-9_.:]", limit=10, first=r"[a-zA-Z_]")
    assert [names.out("1.a"), names.out("b:c"), names.back("_1.a")] == ["_1.a", "b:c", "1.a"]


@given(st.text(max_size=200))
def test_every_name_becomes_an_allowed_one(name: str) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", repaired(name))


@given(st.lists(st.text(max_size=80), max_size=8))
def test_a_map_that_was_not_refused_leads_back(names: list[str]) -> None:
    try:
        mapped = NameMap(names)
    except ProviderError:
        return
    assert [mapped.back(mapped.out(name)) for name in names] == names

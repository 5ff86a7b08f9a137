import msgspec
import pytest
from msgspec import Raw

from weftline.tools.arguments import MAX_ISSUES, InvalidArguments, object_args
from weftline.tools.schema import ArgsValidator, object_schema

PERSON = (
    b'{"type":"object","properties":{"name":{"type":"string","minLength":1},"tags":{"type":"array","items":'
    b'{"type":"string"}},"a/b":{"maximum":3}},"required":["name"],"additionalProperties":false}'
)


def test_arguments_that_fit_have_no_issues() -> None:
    assert ArgsValidator.of(PERSON).validate(b'{"name":"Ada","tags":["x"]}') == ()


def test_every_violation_is_an_issue_with_pointer_message_and_keyword() -> None:
    issues = ArgsValidator.of(PERSON).validate(b'{"tags":["x",1],"a/b":4,"more":true}')
    assert {(issue.path, issue.constraint) for issue in issues} == {
        ("", "required"),
        ("", "additionalProperties"),
        ("/tags/1", "type"),
        ("/a~1b", "maximum"),
    }
    assert all(issue.message for issue in issues)


def test_integers_beyond_64_bits_are_compared_exactly() -> None:
    validator = ArgsValidator.of(b'{"properties":{"n":{"type":"integer","maximum":18446744073709551616}}}')
    assert validator.validate(b'{"n":18446744073709551616}') == ()
    assert validator.validate(b'{"n":18446744073709551617}') != ()


def test_the_list_of_issues_and_their_messages_are_bounded() -> None:
    validator = ArgsValidator.of(b'{"additionalProperties":{"type":"integer"}}')
    issues = validator.validate(msgspec.json.encode({f"k{n}": "x" * 5000 for n in range(200)}))
    assert len(issues) == MAX_ISSUES
    assert max(len(issue.message) for issue in issues) <= 300


@pytest.mark.parametrize(
    "schema",
    [
        b'{"type":"objekt"}',
        b'{"properties":{"a":{"pattern":"("}}}',
        b'{"$ref":"http://127.0.0.1:9/schema.json"}',
        b'{"properties":{"a":{"$ref":"file:///etc/hostname"}}}',
        b'{"$ref":"#/$defs/missing"}',
        b'{"$schema":"http://127.0.0.1:9/own","type":"object"}',
        b"[]",
        b"not json",
        b'{"a":' * 500 + b"1" + b"}" * 500,
    ],
)
def test_a_schema_that_does_not_compile_offline_is_not_enforced(schema: bytes) -> None:
    validator = ArgsValidator.of(schema)
    assert not validator.enforced
    assert validator.validate(b'{"a":1}') == ()


@pytest.mark.parametrize("schema", [b'{"$ref":"#"}', b'{"properties":{"a":{"$ref":"#"}},"type":"object"}'])
def test_a_schema_that_refers_to_itself_ends(schema: bytes) -> None:
    assert ArgsValidator.of(schema).validate(b'{"a":' * 90 + b"{}" + b"}" * 90) == ()


def test_a_schema_is_compiled_once() -> None:
    assert ArgsValidator.of(PERSON) is ArgsValidator.of(Raw(PERSON))


@pytest.mark.parametrize(
    "schema",
    [
        b'{"type":"object","properties":{}}',
        b'{ "title":"", "type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"enum": [1]}} }',
    ],
)
def test_an_object_schema_with_properties_is_kept_byte_for_byte(schema: bytes) -> None:
    assert bytes(object_schema(Raw(schema))) == schema


@pytest.mark.parametrize(
    "schema",
    [
        None,
        b"null",
        b"true",
        b"[]",
        b"{}",
        b'{"type":"string"}',
        b'{"type":"object"}',
        b'{"properties":{"a":{}}}',
        b"x",
    ],
)
def test_any_other_root_becomes_the_empty_object_schema(schema: bytes | None) -> None:
    replaced = object_schema(None if schema is None else Raw(schema))
    assert msgspec.json.decode(replaced) == {"type": "object", "properties": {}}


@pytest.mark.parametrize("text", ["[1]", "1", "null", '"x"', "{", '{"a":NaN}', '{"a":"\\ud800"}', "[" * 5000])
def test_arguments_that_are_no_json_object_are_refused(text: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        object_args(text)
    assert caught.value.issues


@pytest.mark.parametrize("text", ["", " \n", "{}", " { } "])
def test_no_text_at_all_stands_for_no_arguments(text: str) -> None:
    assert object_args(text) == ({}, b"{}")

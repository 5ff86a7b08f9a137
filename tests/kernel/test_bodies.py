"""The content beside the facts: arguments are durable with their turn, and every entry is at most one event."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from msgspec import UNSET, Raw

from weftline.events.frames import payload_of
from weftline.kernel import bodies
from weftline.kernel.entries import AskedCall, TurnCompleted
from weftline.messages import Assistant, Text, ToolCall
from weftline.text.canonical import digest

from .histories import History, bring_to_its_end, histories, lived
from .world import Ask, World, call


def asking(*args: str) -> Assistant:
    return Assistant((Text("Let me see."), *(ToolCall(f"c{n}", "look", each) for n, each in enumerate(args))))


def turn_of(message: Assistant, args: list[bytes], invalid: tuple[str, ...] = ()) -> bodies.TurnBody:
    texts = invalid or ("",) * len(args)
    made = zip(message.calls, args, texts, strict=True)
    return bodies.turn_body(message, [bodies.turn_call(call.args, args=one, invalid=text) for call, one, text in made])


def stored(body: bodies.TurnBody) -> bodies.TurnBody:
    return bodies.decode_turn(bodies.encode(body))


def test_final_arguments_that_are_models_own_text_are_stored_once() -> None:
    body = turn_of(asking('{"a":1}', "{}"), [b'{"a":1}', b"{}"])
    assert body.calls == ()
    assert bodies.encode(body).count(b"{}") == 1
    assert bodies.turn_args(stored(body)) == [b'{"a":1}', b"{}"]


def test_final_arguments_come_back_byte_for_byte() -> None:
    final = [b'{"a":1,"b":1e2}', b'{"a":1}', '{"ü":"\u2028"}'.encode()]
    body = stored(turn_of(asking('{"a": 1}', '{"a":1}', "not JSON"), final))
    assert bodies.turn_args(body) == final
    assert [one.args is UNSET for one in body.calls] == [False, True, False]


def test_invalid_argument_text_stays_with_its_turn() -> None:
    body = stored(turn_of(asking("{}", "{}"), [b"{}", b"{}"], ("", "a is missing")))
    assert [one.invalid for one in body.calls] == ["", "a is missing"]
    assert bodies.turn_args(body) == [b"{}", b"{}"]


def test_every_call_needs_its_arguments() -> None:
    body = bodies.TurnBody(asking("{}", "{}"), (bodies.TurnCall(Raw(b"{}")),))
    with pytest.raises(ValueError):
        bodies.turn_args(body)


def test_unpaired_surrogate_is_never_taken_as_final_arguments() -> None:
    body = turn_of(asking('"\ud800"'), [b'"?"'])
    assert body.calls == (bodies.TurnCall(Raw(b'"?"')),)


def test_created_run_gives_back_what_was_sent_byte_for_byte() -> None:
    sent = b'{"prompt" : "hi",\t"x": 1.0}'
    body = bodies.decode_created(bodies.encode(bodies.CreatedBody(Raw(b'{"v":1}'), Raw(sent))))
    assert (bytes(body.plan), body.sent is not UNSET and bytes(body.sent)) == (b'{"v":1}', sent)
    assert bodies.decode_created(b'{"plan":{}}').sent is UNSET


def test_a_body_with_a_field_more_can_still_be_read() -> None:
    assert bodies.decode_text(b'{"text":"x","newer":1}') == bodies.TextBody("x")


@given(histories)
def test_call_digest_is_that_of_its_stored_bytes(history: History) -> None:
    for entry in lived(history).entries:
        if isinstance(entry.head, TurnCompleted):
            args = bodies.turn_args(bodies.decode_turn(entry.body))
            assert [digest(each) for each in args] == [one.digest for one in entry.head.calls]


@given(histories)
def test_every_entry_of_a_history_is_at_most_one_event(history: History) -> None:
    """K25"""
    world = lived(history)
    bring_to_its_end(world)
    shown = [payload_of(entry.head, entry.body, run_id="run_1") for entry in world.entries]
    events = [event for event in shown if event is not None]
    assert events[0][0] == "started"
    assert [name for name, _ in events if name in ("result", "error", "cancelled")] == [events[-1][0]]
    assert all(isinstance(json.loads(payload), dict) for _, payload in events)


def test_turn_stopped_before_its_calls_can_be_resumed() -> None:
    world = World()
    world.auto = False
    world.reply(call(Ask("pay", {"amount": 1})))
    last = world.entries[-1]
    assert isinstance(last.head, TurnCompleted)
    assert bodies.turn_args(bodies.decode_turn(last.body)) == [b'{"amount":1}']
    assert last.head.calls == (AskedCall("c0-0", "pay", digest(b'{"amount":1}')),)


def test_a_body_of_text_is_plain_json() -> None:
    assert msgspec.json.decode(bodies.encode(bodies.TextBody("x"))) == {"text": "x"}

"""What damage is looked for in: every kind of entry that has a body, and every kind of observation."""

from __future__ import annotations

from weftline.events.frames import OBSERVED
from weftline.events.project import HIDDEN
from weftline.kernel.damage import BODIES, OBSERVATIONS, fact_is_readable, observations_are_readable
from weftline.kernel.entries import FACTS


def test_every_body_is_looked_at() -> None:
    assert BODIES.keys() == {kind for kind, fact in FACTS.items() if "Body:" in (fact.__doc__ or "")}
    assert OBSERVATIONS.keys() == OBSERVED.keys() | HIDDEN


def test_entry_is_readable_if_kind_and_body_match() -> None:
    head = b'{"type":"run.ended","status":"succeeded"}'
    assert fact_is_readable("run.ended", head, b'{"text":"hi"}')
    assert not fact_is_readable("run.paused", head, b"")
    assert not fact_is_readable("run.ended", head, b'{"text":1}')
    assert not fact_is_readable("run.ended", head[:-1], b"")
    assert not fact_is_readable("run.unknown", b'{"type":"run.unknown"}', b"")


def test_observations_are_readable_if_all_of_them_are() -> None:
    body = b'{"text":"a","turn":0,"attempt":1}'
    assert observations_are_readable("delta.text", body, 1)
    assert observations_are_readable("delta.text", body + b"\n" + body, 2)
    assert not observations_are_readable("delta.text", body, 2)
    assert not observations_are_readable("delta.text", body + b"\n" + body[1:], 2)
    assert not observations_are_readable("delta.unknown", body, 1)

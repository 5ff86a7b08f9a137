"""The events of a run, filtered by a profile and merged with its details."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, TypeAlias, get_args

from weftline.agent.events.projection import events_of
from weftline.details import AnyDetail, PhaseChanged, UsageRecorded
from weftline.details.projection import DetailProjection, comes_after
from weftline.errors import InvalidRequest
from weftline.events import AnyEvent, Event, RunEnded
from weftline.kernel.damage import UNREADABLE
from weftline.runtime.decoding import facts_in, require_skippable
from weftline.runtime.engine import EntryBatch
from weftline.store.rows import Item
from weftline.text.suggestions import did_you_mean

if TYPE_CHECKING:
    from weftline.kernel.entries import Fact

Profile: TypeAlias = str | Collection[type[Event]]
"""`default`, `all`, `metrics`, or the classes of the events that are wanted."""
_KNOWN: tuple[type[Event], ...] = (*get_args(AnyEvent), *get_args(AnyDetail))
_NAMED: dict[str, frozenset[type[Event]]] = {
    "default": frozenset(get_args(AnyEvent)),
    "all": frozenset(_KNOWN),
    "metrics": frozenset({UsageRecorded, PhaseChanged}),
}


def classes_of(profile: Profile) -> frozenset[type[Event]]:
    """Returns the event classes of a profile, which always include the end of the run.

    Raises `InvalidRequest` for an unknown profile or class.
    """
    if isinstance(profile, str):
        if profile not in _NAMED:
            near = did_you_mean(profile, _NAMED)
            raise InvalidRequest(f"{profile!r} is not a profile: {', '.join(_NAMED)}, or classes of events.{near}")
        return _NAMED[profile] | {RunEnded}
    unknown = [one for one in profile if one not in _KNOWN]
    if unknown or not profile:
        named = ", ".join([repr(one) for one in unknown]) or "An empty list"
        raise InvalidRequest(f"{named}: a profile is a list of event classes, of weftline.events and weftline.details.")
    return frozenset(profile) | {RunEnded}


def profiled_events(
    batch: EntryBatch, projection: DetailProjection, classes: frozenset[type[Event]]
) -> Iterator[AnyEvent | AnyDetail]:
    """Yields the events of a batch that have these classes. Most details come before the event of the same entry."""
    plain = {event.seq: event for event in events_of(batch)}
    facts = facts_in(batch)
    for item in batch.items:
        head = None
        try:
            head = next(facts) if item.head else None
            found = list(_details(item, head, projection))
        except UNREADABLE:
            require_skippable(batch, item)
            found: list[tuple[int, list[AnyDetail]]] = [(seq, []) for seq in range(item.seq, item.last_seq + 1)]
        for seq, details in found:
            if not batch.after < seq <= batch.last_seq:
                continue
            event = plain.get(seq)
            later = [] if head is None else [detail for detail in details if comes_after(detail, head)]
            earlier = [detail for detail in details if detail not in later]
            both = [*earlier, *later] if event is None else [*earlier, event, *later]
            yield from [one for one in both if type(one) in classes]


def _details(item: Item, head: Fact | None, projection: DetailProjection) -> Iterator[tuple[int, list[AnyDetail]]]:
    if head is not None:
        yield item.seq, projection.of_fact(head, item.body, seq=item.seq, at=item.at)
        return
    for seq, body in enumerate(item.body.split(b"\n"), item.seq):
        yield seq, projection.of_observation(item.kind, body, seq=seq, at=item.at)

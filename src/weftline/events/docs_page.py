"""The tables of docs/events.md. A test checks them; `python -m weftline.events.docs_page docs/events.md` writes
them.
"""

from __future__ import annotations

import re
import sys
from inspect import cleandoc
from pathlib import Path
from typing import Any, get_args, get_type_hints

from msgspec import Struct

from weftline.events.classes import AnyEvent, Event, RunEnded, TextDelta, ThinkingDelta
from weftline.events.details import AnyDetail, Detail
from weftline.events.project import OBSERVED, OF_FACTS
from weftline.events.wire import ROWS_OF, type_of, wire_name
from weftline.kernel.entries import KIND
from weftline.kernel.notes import TEXT_DELTA, THINKING_DELTA

_TABLE = re.compile(r"(<!-- table -->\n).*?(<!-- /table -->)", re.DOTALL)
_DETAILS = re.compile(r"(<!-- details -->\n).*?(<!-- /details -->)", re.DOTALL)


class Names(Struct, frozen=True):
    """An event's names elsewhere: its types on the wire, and the kinds of entries that it is made from."""

    wire: tuple[str, ...]
    log: tuple[str, ...]


def names_of(event: type[Event]) -> Names:
    """Returns an event's names, from the table of the wire and from what the projection's functions return."""
    made: dict[str, Any] = {KIND[fact]: get_type_hints(of_fact)["return"] for fact, of_fact in OF_FACTS.items()}
    made |= {kind: get_type_hints(of_kind).get("return") for kind, of_kind in OBSERVED.items()}
    made |= {TEXT_DELTA: TextDelta, THINKING_DELTA: ThinkingDelta}  # which are decoded as they are
    wire = ("result", "error", "cancelled") if event is RunEnded else [row.type for row in ROWS_OF[event]]
    log = [kind for kind, classes in made.items() if event in (classes, *get_args(classes))]
    return Names(tuple(dict.fromkeys(wire)), tuple(log))


def table() -> str:
    """One row for each event."""
    rows = ["| class | fields | wire | log | meaning |", "|---|---|---|---|---|"]
    return "\n".join([*rows, *[_row(event) for event in get_args(AnyEvent)]]) + "\n"


def _row(event: type[Event]) -> str:
    names = names_of(event)
    fields = [name for name in event.__struct_fields__ if name not in Event.__struct_fields__]
    meaning = " ".join(cleandoc(event.__doc__ or "").split())
    return f"| `{event.__name__}` | {_listed(fields)} | {_listed(names.wire)} | {_listed(names.log)} | {meaning} |"


def details_table() -> str:
    """One row for each detail, with its fields as they are on the wire."""
    rows = ["| type | fields | class | meaning |", "|---|---|---|---|"]
    return "\n".join([*rows, *[_detail_row(detail) for detail in get_args(AnyDetail)]]) + "\n"


def _detail_row(detail: type[AnyDetail]) -> str:
    fields = [wire_name(name) for name in detail.__struct_fields__ if name not in Detail.__struct_fields__]
    meaning = " ".join(cleandoc(detail.__doc__ or "").split())
    return f"| `{type_of(detail)}` | {_listed(fields)} | `{detail.__name__}` | {meaning} |"


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join([f"`{name}`" for name in names])


if __name__ == "__main__":
    page = Path(sys.argv[1])
    text = _TABLE.sub(lambda found: found[1] + table() + found[2], page.read_text(encoding="utf-8"))
    page.write_text(_DETAILS.sub(lambda found: found[1] + details_table() + found[2], text), encoding="utf-8")

"""What a run is asked to do, and what its clients do meanwhile, all from the seed and the order's number."""

from __future__ import annotations

import re
from random import Random
from typing import Literal

from msgspec import Struct

_ORDER = re.compile(r"order (\d+)")


class Call(Struct, frozen=True):
    tool: str
    """One of the server's tools, or `ask`, which clients answer."""
    ms: int
    """How long the tool takes."""


class Turn(Struct, frozen=True):
    calls: tuple[Call, ...]
    pieces: int
    """How many pieces the text is streamed in."""
    pace_ms: int
    fails: Literal["", "refused", "cut"] = ""
    """How the first request of the turn goes wrong."""


class Order(Struct, frozen=True):
    number: int
    turns: tuple[Turn, ...]
    followers: int
    answerers: int
    """How many clients answer each call, each with its own text."""
    create_twice: bool
    patience: int
    """Frames after which a follower drops its connection."""
    slow: bool
    cancel_after: int
    """Frames after which a client cancels the run; 0 for never."""

    @property
    def prompt(self) -> str:
        return f"order {self.number}"


def order(seed: int, number: int) -> Order:
    random = Random(f"{seed}/order/{number}")
    turns = [_turn(random) for _ in range(random.randint(0, 4))]
    return Order(
        number=number,
        turns=(*turns, Turn((), *_stream(random))),
        followers=random.choice((1, 1, 2, 3)),
        answerers=random.choice((1, 2, 3)),
        create_twice=random.random() < 0.2,
        patience=random.choice((3, 20, 1_000_000)),
        slow=random.random() < 0.1,
        cancel_after=random.randint(1, 30) if random.random() < 0.12 else 0,
    )


def number_in(text: str) -> int | None:
    found = _ORDER.fullmatch(text)
    return int(found[1]) if found else None


def _turn(random: Random) -> Turn:
    kind = random.random()
    tools = ("ask",) if kind < 0.3 else ("look",) if kind < 0.4 else ("look", "put", "pay", "book", "ask")
    calls = [Call(random.choice(tools), random.choice((0, 0, 10, 100, 400))) for _ in range(random.randint(1, 4))]
    fails = random.choices(("", "refused", "cut"), (16, 1, 1))[0]
    return Turn(tuple(calls), *_stream(random), fails)


def _stream(random: Random) -> tuple[int, int]:
    """How many pieces, and how many milliseconds between them: short, long, or a flood."""
    return random.choice(((1, 0), (10, 5), (40, 20), (600, 0), (15, 100)))

"""What each side of a run with two sides reads: its own messages as they are, the other's as a user's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

from weftline import prompts
from weftline.kernel.seats import SeatRule, SeatTaken
from weftline.messages import Assistant, Message, Text, User

Side = Literal["a", "b"]


class SideTurn(Struct, gc=False):
    """A side turn. Its messages begin at the position `at`; `said` is what a tool made of it, if one ended it."""

    at: int
    side: Side
    said: str = ""


class Sides(Struct, eq=False, gc=False):
    """Who has said which messages of a conversation. Before the first side turn are its history and its input."""

    turns: list[SideTurn] = []

    @property
    def side(self) -> Side:
        """The side that speaks."""
        return self.turns[-1].side if self.turns else "a"

    @property
    def are_two(self) -> bool:
        return any(turn.side == "b" for turn in self.turns)

    def take(self, head: SeatTaken, said: str, *, at: int) -> None:
        """Begins a side turn; `said` is what a call has made of the one before."""
        if self.turns:
            self.turns[-1].said = said
        self.turns.append(SideTurn(at, head.side))

    def seen_by_speaker(self, rules: Sequence[SeatRule], messages: Sequence[Message]) -> Sequence[Message]:
        """The messages for the model of the seat that speaks; the same ones if no two sides do in the run."""
        if not self.turns or all(rule.side == "a" for rule in rules):
            return messages
        return self.seen_by(self.turns[-1].side, messages)

    def seen_by(self, side: Side, messages: Sequence[Message]) -> list[Message]:
        """The messages for a side's model. Neither calls nor results of the other side are among them, and the side
        always has something to answer."""
        seen: list[Message] = []
        first = self.turns[0].at if self.turns else len(messages)
        for message in messages[:first]:
            seen += [message] if side == "a" else _swapped(message)
        for index, turn in enumerate(self.turns):
            end = self.turns[index + 1].at if index + 1 < len(self.turns) else len(messages)
            own = messages[turn.at : end]
            if turn.side != side:
                seen += _of_other(own, turn.said)
                continue
            if not seen:
                seen.append(User.of(prompts.seats.BEGIN, injected=True))
            elif isinstance(seen[-1], Assistant):
                seen.append(User.of(prompts.seats.NOTHING_SAID, injected=True))
            seen += own
        if seen and isinstance(seen[0], Assistant):
            seen.insert(0, User.of(prompts.seats.BEGIN, injected=True))
        return seen

    def remove(self, positions: Sequence[int]) -> None:
        """Messages at these positions are gone."""
        for turn in self.turns:
            turn.at -= sum([at < turn.at for at in positions])

    def as_kept(self, messages: Sequence[Message], start: int) -> list[Message]:
        """The messages from `start` on as the thread keeps them: side a as it is, side b as a user."""
        first = self.turns[0].at if self.turns else len(messages)
        kept = list(messages[start:first])
        for index, turn in enumerate(self.turns):
            end = self.turns[index + 1].at if index + 1 < len(self.turns) else len(messages)
            own = messages[turn.at : end]
            kept += own if turn.side == "a" else _of_other(own, turn.said)
        return kept


def _of_other(messages: Iterable[Message], said: str) -> list[Message]:
    """The messages of the other side, as a user's."""
    seen: list[Message] = []
    for message in messages:
        match message:
            case Assistant() if message.text:
                seen.append(User.of(message.text))
            case User() if not message.injected:
                seen.append(message)
            case _:
                pass
    return [*seen, User.of(said)] if said else seen


def _swapped(message: Message) -> list[Message]:
    """A message from before the run as side b sees it."""
    match message:
        case Assistant() if message.text:
            return [User.of(message.text)]
        case User() if not message.injected and message.text:
            return [Assistant((Text(message.text),))]
        case _:
            return []

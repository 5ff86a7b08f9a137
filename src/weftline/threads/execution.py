"""The run that a thread is in, as tools and hooks see it: how far it is, and what they can ask of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from weftline.errors import invalid_field
from weftline.kernel.bodies import encode
from weftline.kernel.seats import RunStopped, SeatForced
from weftline.kernel.state import Seats
from weftline.messages import Message, ToolResults
from weftline.runtime.agent_code.code import Inside
from weftline.store.records.thread_messages import MessageRow
from weftline.threads.thread import AttachmentRef, Side, ThreadMessage
from weftline.workspace.thread_messages import said

if TYPE_CHECKING:
    from weftline.threads.speakers import Speaker


class Execution:
    """Implements `weftline.threads.ExecutionState`. `caller` is the tool or hook that it is for."""

    def __init__(
        self, inside: Inside, flow_id: str, speaker: Speaker, *, caller: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._inside = inside
        self._speaker = speaker
        self._caller = caller
        self._loop = loop
        self.flow_id = flow_id
        """The id of the run."""

    @property
    def _seats(self) -> Seats:
        return self._inside.now.seats or Seats()

    @property
    def current_side(self) -> Side:
        rules = self._inside.now.limits.seats
        return rules[self._seats.index].side if rules else "a"

    @property
    def step_count(self) -> int:
        return self._seats.of_a + self._seats.of_b

    @property
    def side_a_step_count(self) -> int:
        return self._seats.of_a

    @property
    def side_b_step_count(self) -> int:
        return self._seats.of_b

    @property
    def turn_count(self) -> int:
        return self._seats.taken

    @property
    def stopped(self) -> bool:
        return self._seats.stopped

    @property
    def stopped_by(self) -> str:
        return self._seats.stopped_by

    @property
    def message_history(self) -> tuple[ThreadMessage, ...]:
        """What has been said, as the run has it in memory. Its messages have no ids."""
        return tuple([shown for message in self._inside.messages for shown in _shown(message)])

    @property
    def prompt_path(self) -> tuple[str, ...]:
        return (*self._speaker.above, self._speaker.prompt.name)

    @property
    def abort_signal(self) -> asyncio.Event:
        return self._inside.aborted

    def stop(self) -> None:
        self._ask(RunStopped(self._caller))

    def force_turn(self, side: Side) -> None:
        rules = self._inside.now.limits.seats
        found = [index for index, rule in enumerate(rules) if rule.side == side]
        if not found:
            sides = sorted({rule.side for rule in rules}) or ["a"]
            raise invalid_field("side", f"must be one that the agent has ({', '.join(sides)}), not {side!r}.")
        self._ask(SeatForced(found[0], self._caller))

    def _ask(self, head: RunStopped | SeatForced) -> None:
        async def ask() -> None:
            self._inside.ask(head)

        try:
            asyncio.get_running_loop()
        except RuntimeError:  # a plain function, in a thread of its own
            asyncio.run_coroutine_threadsafe(ask(), self._loop).result()
        else:
            self._inside.ask(head)


def _shown(message: Message) -> list[ThreadMessage]:
    """A message as it is listed, results one by one."""
    parts = [ToolResults((one,)) for one in message.results] if isinstance(message, ToolResults) else [message]
    shown: list[ThreadMessage] = []
    for part in parts:
        fields = said(_row(part)).fields
        fields["attachments"] = tuple([AttachmentRef(**asdict(one)) for one in fields["attachments"]])
        fields["id"] = ""
        shown.append(ThreadMessage(**fields))
    return shown


def _row(message: Message) -> MessageRow:
    return MessageRow(
        pos=0,
        run=0,
        message=encode(message),
        id=None,
        depth=0,
        parent=None,
        silent=False,
        status="completed",
        tool_status=None,
        metadata="{}",
        created_at=None,
        sent_at=None,
        asked_by=None,
    )

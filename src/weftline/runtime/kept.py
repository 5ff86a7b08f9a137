"""The messages that a run adds to its thread as soon as there are any, if its thread keeps all of them.

Their ids are known before they exist: they are made of the run, the turn, and the place of a call in it. What an answer
is listed as while it is given stays its id. Results are rows of their own, in the order in which they arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from weftline.kernel import bodies
from weftline.kernel.entries import TurnCompleted
from weftline.messages import Assistant, Message, Text, ToolResult, ToolResults, User
from weftline.store.rows import KeptMessage


class KeptMessages(Struct, eq=False, gc=False):
    """Collects them as the conversation takes in facts; each append takes what is new.

    A run that is loaded from its log makes them again, which are stored already: `forget`.
    """

    _new: list[KeptMessage] = []
    """Those that are not appended yet; the run's own id is not in theirs."""
    cut_off: str = ""
    """The text of an answer that was under way when the run was ended."""
    _others: int = 0
    """How many there have been that are neither answers nor results."""

    def pop(self, run: str, *, at: int) -> list[KeptMessage]:
        """Returns what is new of the run with this unique id."""
        if not self._new:
            return self._new
        new, self._new = self._new, []
        own = message_id(run)
        return [
            replace(
                one,
                id=own + one.id,
                asked_by=None if one.asked_by is None else own + one.asked_by,
                created_at=at,
                sent_at=None if one.sent_at is None else at - one.sent_at,
            )
            for one in new
        ]

    def forget(self) -> None:
        self._new = []

    def add(self, message: Message) -> str:
        """Returns what its id has besides that of the run."""
        self._others += 1
        role = "user" if isinstance(message, User) else "assistant" if isinstance(message, Assistant) else "system"
        silent = isinstance(message, User) and message.injected
        self._new.append(KeptMessage(f"_m{self._others}", role, bodies.encode(message), 0, silent=silent))
        return f"_m{self._others}"

    def answer(self, message: Assistant, head: TurnCompleted) -> str:
        """Returns what its id has besides that of the run."""
        encoded = bodies.encode(message)
        self._new.append(KeptMessage(f"_{head.turn}", "assistant", encoded, 0, head.active_us, calls=len(head.calls)))
        return f"_{head.turn}"

    def fail(self, text: str, *, turn: int) -> None:
        """Adds the answer that was cut off when the run ended. Models do not read it."""
        text = self.cut_off or text
        if text:
            message = bodies.encode(Assistant((Text(text),)))
            self._new.append(KeptMessage(f"_{turn}", "assistant", message, 0, status="failed"))

    def result(self, result: ToolResult, *, turn: int, index: int, files: Sequence[Any] = ()) -> None:
        """Adds a result. `files` has the list of those that it names, if it names any."""
        message = bodies.encode(ToolResults((result,)))
        status = "error" if result.is_error else "success"
        self._new.append(
            KeptMessage(
                f"_{turn}_{index}",
                "tool",
                message,
                0,
                tool_status=status,
                asked_by=f"_{turn}",
                place=index,
                metadata=bodies.encode({"attachments": files[0]}).decode() if files else "{}",
            )
        )


def message_id(run: str) -> str:
    """The beginning of the ids of a run's messages: they are those of the run, its turn, and the call's place in it."""
    return f"msg_{run.removeprefix('run_')}"

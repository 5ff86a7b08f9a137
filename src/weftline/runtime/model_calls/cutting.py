"""Which messages a summary can replace, and what is left then. Pure functions of a list of messages.

0 ───────────────── upto ──────────── end
│ summarized, but   │ the latest turns,
│ for what is kept  │ as they are
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from msgspec import Struct

from weftline import prompts
from weftline.kernel.bodies import SummaryBody
from weftline.kernel.context import Cause
from weftline.messages import Assistant, Message, System, Text, Thinking, ToolCall, ToolResults, User
from weftline.plan import RunPlan

_OTHER_PART_BYTES = 100
"""An image or a file counts as little more than its name, because its cost depends on the model."""


class Cut(Struct, frozen=True):
    """A summary replaces the messages before `upto`, except those at the positions `kept`."""

    upto: int
    kept: tuple[int, ...]

    def left_out(self, position: int) -> bool:
        return position < self.upto and position not in self.kept


class Span(Struct, frozen=True):
    """The part to be cut, and the part that must be kept in any case."""

    messages: Sequence[Message]
    own: range
    """The positions of the run's own input, which is kept as it was written."""
    keep_calls: Collection[str] = ()
    """Calls whose results are kept, with their whole turns."""
    before: Cut | None = None
    """What was cut already."""

    def fresh(self, cut: Cut) -> list[int]:
        """The positions that this cut leaves out and the one before it did not."""
        before = self.before
        return [
            position
            for position in range(min(cut.upto, len(self.messages)))
            if cut.left_out(position) and (before is None or not before.left_out(position))
        ]

    def size(self, cut: Cut | None) -> int:
        """The bytes of the messages that are left, without the summary."""
        return sum([message_bytes(one) for at, one in enumerate(self.messages) if cut is None or not cut.left_out(at)])


def new_cut(span: Span, *, keep_turns: int, cause: Cause) -> Cut | None:
    """Returns the cut for a new summary; None if it would replace nothing.

    If the model has rejected the request, only as few turns are kept as it takes to halve it, and in the end not even
    the first message: the conversation has to continue somehow.
    """
    if cause == "size":
        cut = _cut(span, turns=keep_turns)
        return cut if span.fresh(cut) else None
    enough = span.size(span.before) // 2
    smallest: Cut | None = None
    for cut in (*[_cut(span, turns=turns) for turns in range(keep_turns, -1, -1)], _cut(span, turns=0, first=False)):
        if span.fresh(cut):
            smallest = cut
            if span.size(cut) <= enough:
                break
    return smallest


def _cut(span: Span, *, turns: int, first: bool = True) -> Cut:
    upto = _start_of(span.messages, turns)
    if span.before is not None:
        upto = max(upto, span.before.upto)
    pinned = _pinned(span, first=first)
    return Cut(upto, tuple(sorted({at for at in pinned if at < upto})))


def _start_of(messages: Sequence[Message], turns: int) -> int:
    """Where the last `turns` turns begin, including what the model was told before them; 0 if there are fewer."""
    starts = [at for at, message in enumerate(messages) if isinstance(message, Assistant)]
    if turns > len(starts):
        return 0
    start = starts[-turns] if turns else len(messages)
    while start > 0 and isinstance(messages[start - 1], User):
        start -= 1
    while 0 < start < len(messages) and isinstance(messages[start], ToolResults):
        start -= 1  # results stay with their calls
    return start


def _pinned(span: Span, *, first: bool) -> set[int]:
    messages = span.messages
    pinned = set(span.own)
    for at, message in enumerate(messages):
        if not isinstance(message, System):
            break
        pinned.add(at)
    if first:
        pinned.update([at for at, message in enumerate(messages) if isinstance(message, User)][:1])
    for at, message in enumerate(messages):
        if isinstance(message, ToolResults) and any(one.id in span.keep_calls for one in message.results):
            pinned.add(at)
    return _with_counterparts(messages, pinned)


def _with_counterparts(messages: Sequence[Message], positions: set[int]) -> set[int]:
    """These positions, and those of the calls or results that belong to them."""
    whole = set(positions)
    for at in positions:
        if isinstance(messages[at], ToolResults) and at and isinstance(messages[at - 1], Assistant):
            whole.add(at - 1)
        if isinstance(messages[at], Assistant) and at + 1 < len(messages) and isinstance(messages[at + 1], ToolResults):
            whole.add(at + 1)
    return whole


def with_summary(messages: Sequence[Message], upto: int, summary: SummaryBody) -> list[Message]:
    """The messages with the summary in place of those that it replaces."""
    cut = Cut(upto, summary.kept)
    visible: list[Message] = []
    placed = False
    for at, message in enumerate(messages):
        if not cut.left_out(at):
            visible.append(message)
        elif not placed:
            placed = True
            visible.append(User.of(prompts.compaction.summary(summary.text), injected=True))
    return visible


def message_bytes(message: Message) -> int:
    """Roughly what a model reads of a message."""
    match message:
        case User():
            if len(message.parts) == 1 and isinstance(only := message.parts[0], Text):
                return text_bytes(only.text)
            return sum([text_bytes(one.text) if isinstance(one, Text) else _OTHER_PART_BYTES for one in message.parts])
        case System():
            return text_bytes(message.content)
        case ToolResults():
            return sum([text_bytes(result.text) for result in message.results])
        case Assistant():
            size = 0
            for part in message.parts:
                if isinstance(part, ToolCall):
                    size += len(part.name) + text_bytes(part.args)
                else:
                    size += text_bytes(part.text) if isinstance(part, Text | Thinking) else _OTHER_PART_BYTES
            return size


def input_bytes(plan: RunPlan, *, messages: Sequence[Message] | None = None, system: str | None = None) -> int:
    """Roughly the bytes of a plan that a model reads, besides its tools; with `messages` in place of its own."""
    system = system or plan.system
    size = text_bytes(system) if system else 0
    for message in plan.messages if messages is None else messages:
        size += message_bytes(message)
    return size if plan.output_schema is None else size + memoryview(plan.output_schema.schema).nbytes


def text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


# What the model that writes the summary reads

_LIMITS = (20_000, 5_000, 2_000, 500, 200)
"""How many characters of each line are included; the largest limit that fits is used."""


def transcript(messages: Sequence[Message], *, summary: str = "", max_bytes: int) -> str:
    """The messages as a text of at most about `max_bytes`: long ones are cut in the middle, and then the list itself.

    `summary` is the summary of what came before them.
    """
    lines = [line for message in messages for line in _lines(message)]
    if summary:
        lines.insert(0, prompts.compaction.earlier_summary(summary))
    for limit in _LIMITS:
        short = [_clipped(line, limit) for line in lines]
        if sum([text_bytes(line) + 1 for line in short]) <= max_bytes:
            return "\n".join(short)
    return "\n".join(_without_middle([_clipped(line, _LIMITS[-1]) for line in lines], max_bytes))


def _lines(message: Message) -> list[str]:
    match message:
        case System():
            return [prompts.compaction.instructions(message.content)]
        case User():
            texts = [
                one.text if isinstance(one, Text) else prompts.compaction.attachment(one.media_type)
                for one in message.parts
            ]
            render: Callable[[str], str] = (
                prompts.compaction.runtime_note if message.injected else prompts.compaction.user_message
            )
            return [render("\n".join(texts))]
        case Assistant():
            lines = [prompts.compaction.assistant_message(message.text)] if message.text else []
            return lines + [prompts.compaction.assistant_called(call.name, call.args) for call in message.calls]
        case ToolResults():
            return [
                prompts.compaction.tool_returned(one.name, one.text, is_error=one.is_error) for one in message.results
            ]


def _clipped(line: str, limit: int) -> str:
    if len(line) <= limit:
        return line
    head = limit * 2 // 3
    tail = limit - head
    return line[:head] + prompts.compaction.cut_out(len(line) - limit) + line[-tail:]


def _without_middle(lines: list[str], max_bytes: int) -> list[str]:
    """The first lines and the last ones, which matter more than what is between them."""
    budget = max_bytes - 100
    first: list[str] = []
    last: list[str] = []
    left = list(lines)
    while left:
        from_the_end = len(last) <= 3 * len(first)
        line = left[-1] if from_the_end else left[0]
        budget -= text_bytes(line) + 1
        if budget < 0:
            break
        if from_the_end:
            last.insert(0, left.pop())
        else:
            first.append(left.pop(0))
    return [*first, prompts.compaction.lines_left_out(len(left)), *last] if left else lines

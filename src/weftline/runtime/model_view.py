"""The conversation as models read it: its messages, with a summary in place of older ones, and with their blobs."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from weftline import prompts
from weftline.kernel.bodies import SummaryBody
from weftline.kernel.context import ContextCompacted
from weftline.messages import Image, Message, Text, UserPart
from weftline.providers.calls import warn_unread
from weftline.runtime.message_parts import with_parts
from weftline.runtime.model_calls.cutting import Cut, with_summary


class ModelView(Struct, eq=False, gc=False):
    messages: list[Message] = []
    """Those of the conversation: the same list, which grows."""
    compacted: tuple[ContextCompacted, SummaryBody] | None = None
    """The summary in force."""
    contents: dict[str, str] = {}
    """The contents of the blobs that messages refer to, in base64, by id."""
    _native: dict[str, list[bytes | None]] = {}
    """Each message as encoded for the model that was called last, by that model."""
    _visible: list[Message] | None = None
    """The messages with the summary."""
    _changed: dict[bool, list[Message]] = {}
    """The messages with their blobs filled in, by whether notes replace images."""

    @property
    def visible(self) -> list[Message]:
        """The messages that a request is built from. The same list, which grows, until a summary is made or undone."""
        if self.compacted is None:
            return self.messages
        if self._visible is None:
            head, body = self.compacted
            self._visible = with_summary(self.messages, head.upto, body)
        return self._visible

    @property
    def cut(self) -> Cut | None:
        """Which messages the current summary replaces."""
        return None if self.compacted is None else Cut(self.compacted[0].upto, self.compacted[1].kept)

    def for_model(self, *, vision: bool | None) -> list[Message]:
        """The messages for a model. If the model is known to have no vision, a note replaces each image."""
        in_words = vision is False
        if not in_words and not self.contents:
            return self.visible
        changed = self._changed.setdefault(in_words, [])
        change = self._in_words if in_words else self._filled
        changed += [with_parts(message, change) for message in self.visible[len(changed) :]]
        return changed

    def native(self, model: str) -> list[bytes | None]:
        """The messages encoded for a model so far; its provider adds those that are missing."""
        if model not in self._native:
            self._native = {model: []}
        return self._native[model]

    def add(self, message: Message) -> None:
        """Adds a message that was added to the conversation."""
        if self._visible is not None:
            self._visible.append(message)

    def compact(self, compacted: tuple[ContextCompacted, SummaryBody] | None) -> None:
        """Puts a summary in force, or none."""
        self.compacted = compacted
        self.reset()

    def reset(self) -> None:
        """Creates new lists: callers that keep something per list of messages rely on the list only growing."""
        self._visible = None
        self._native = {}
        self._changed = {}

    def _filled(self, part: UserPart) -> UserPart:
        if isinstance(part, Text) or part.blob is None:
            return part
        content = self.contents.get(part.blob)
        return Text(prompts.models.lost_attachment(part.media_type)) if not content else replace(part, data=content)

    def _in_words(self, part: UserPart) -> UserPart:
        if not isinstance(part, Image):
            return self._filled(part)
        warn_unread(part.media_type)
        return Text(prompts.models.unseen_image(part.media_type))

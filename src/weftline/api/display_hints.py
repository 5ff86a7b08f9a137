"""The operator's own display hints for calls, which streams use instead of the tools'. The log is not changed."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from msgspec import Raw
from msgspec.json import decode, encode

from weftline.kernel import bodies
from weftline.kernel.control import CallUnclaimed
from weftline.kernel.entries import CallOpened, Fact
from weftline.tools.titles import hint_from

logger = logging.getLogger(__name__)


class DisplayHints:
    """Display hints. `templates` by tool, with arguments in braces."""

    def __init__(self, templates: Mapping[str, str]) -> None:
        self._templates = dict(templates)

    def __bool__(self) -> bool:
        return bool(self._templates)

    def with_hint(self, head: Fact, body: bytes, event: tuple[str, bytes]) -> tuple[str, bytes]:
        """Returns an entry's event with the operator's hint. If the template fails, the event is unchanged."""
        if not isinstance(head, CallOpened | CallUnclaimed) or head.name not in self._templates:
            return event
        hint = hint_from(self._templates[head.name], bytes(bodies.decode_opened(body).args), tool=head.name)
        name, payload = event
        fields: dict[str, Raw] = decode(payload, type=dict[str, Raw])
        if not hint or "displayHint" not in fields:
            return event
        return name, encode(fields | {"displayHint": Raw(encode(hint))})

"""The server's log: our own lines at the configured level, and only warnings and errors from libraries.

A library tells at INFO what it was asked to do, addresses with their tokens and all. Whatever is logged by anybody has
such addresses, and credentials of our own, blacked out.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TextIO

from weftline.redaction import REDACTED, shown_url

_URL = re.compile(r"""https?://[^\s"'<>]+""", re.IGNORECASE)
_CREDENTIAL = re.compile(r"\b(weft_|whsec_|mantyx_(?:at|rt|ac|oas)_)[A-Za-z0-9_-]{8,}")
_UNHEARD = ("mcp.client",)
"""What these report is told to the model and by a line of our own; their tracebacks hold what a peer has said."""


def configure_logs(level: str, *, stream: TextIO | None = None) -> None:
    """Logs to stderr. `level` is for our own loggers; those of libraries speak from WARNING on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    for former in root.handlers[:]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("weftline").setLevel(level.upper())
    for name in _UNHEARD:
        logging.getLogger(name).setLevel(logging.CRITICAL)


class RedactingFormatter(logging.Formatter):
    """Blackens the record as a whole, its traceback too."""

    def format(self, record: logging.LogRecord) -> str:
        text = _URL.sub(lambda match: shown_url(match[0]), super().format(record))
        return _CREDENTIAL.sub(rf"\1{REDACTED}", text)

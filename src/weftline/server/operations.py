"""The operations of administration by name, for the command line and for the owner's control socket."""

from __future__ import annotations

from weftline.server.control import Operation
from weftline.store.sqlite import accounts

OPERATIONS: dict[str, Operation] = {
    "keys.create": accounts.create_api_key,
}

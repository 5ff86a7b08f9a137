"""The state that the tools and hooks of a run share: JSON values by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import decode

from weftline.text.canonical import canonical_value

_NOTHING: dict[str, Any] = {}


class SharedState(Struct, eq=False, gc=False):
    values: dict[str, Any] = {}
    unsaved: dict[str, Any] = {}
    """Changes by hooks that no entry contains yet; None marks a removed key."""

    def changes(self, own: Mapping[str, Any] = _NOTHING) -> Raw | UnsetType:
        """The changes to record in an entry: those by hooks, followed by a call's own. Raises `NotCanonical` for values
        that are not JSON.
        """
        changed = {**self.unsaved, **own} if self.unsaved else own
        return Raw(canonical_value(dict(changed))) if changed else UNSET

    def apply(self, changes: Raw) -> None:
        """Takes in the changes that an entry contains."""
        for key, value in decode(changes, type=dict[str, Any]).items():
            if key in self.unsaved and self.unsaved[key] == value:
                del self.unsaved[key]
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value

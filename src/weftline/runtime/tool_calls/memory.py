"""The state that the tools of a run keep between calls, as one call sees it."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from msgspec import UNSET, Raw, UnsetType

from weftline.text.canonical import canonical_value


class RunMemory(MutableMapping[str, Any]):
    """Reads the run's state and collects the changes separately, to be stored with the call's result.

    A value is changed by assigning it; changes inside a value are not noticed.
    """

    def __init__(self, known: dict[str, Any]) -> None:
        self._known = known
        self._changed: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        value = self._changed[key] if key in self._changed else self._known[key]
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        self._changed[key] = value

    def __delitem__(self, key: str) -> None:
        self[key]  # an unknown key is a KeyError
        self._changed[key] = None

    def __iter__(self) -> Iterator[str]:
        kept = [key for key in self._known if key not in self._changed]
        return iter(kept + [key for key, value in self._changed.items() if value is not None])

    def __len__(self) -> int:
        return len(list(iter(self)))

    @property
    def changed(self) -> dict[str, Any]:
        """The changes of the call; None marks a removed key."""
        return self._changed

    def changes(self) -> Raw | UnsetType:
        """`changed`, encoded for the log. Raises `NotCanonical` for values that are not JSON."""
        return Raw(canonical_value(self._changed)) if self._changed else UNSET

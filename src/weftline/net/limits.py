"""Time limits of a request."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace


class TimeLimits(Struct, frozen=True, kw_only=True):
    """Seconds; None means no limit. The defaults are those of the vendors' own clients: 5 to connect, 600 in total."""

    connect_s: float | None = 5.0
    """Until the connection is established: name lookup, every address, TLS."""
    first_byte_s: float | None = 300.0
    """From the start until the head of the response has arrived."""
    idle_s: float | None = 300.0
    """Between two pieces of the body, while a reader waits. A live response never reaches it."""
    total_s: float | None = 600.0
    """From the start to the end of the body."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name} must be a number of seconds above 0, not {seconds!r}")

    def within(self, total_s: float) -> TimeLimits:
        """Returns these limits, with at most `total_s` in total."""
        if self.total_s is not None and self.total_s <= total_s:
            return self
        return replace(self, total_s=total_s)

    @property
    def head_s(self) -> float | None:
        """When the head of the response must have arrived, by whichever limit comes first."""
        if self.first_byte_s is None or self.total_s is None:
            return self.total_s if self.first_byte_s is None else self.first_byte_s
        return min(self.first_byte_s, self.total_s)


DEFAULT_LIMITS = TimeLimits()

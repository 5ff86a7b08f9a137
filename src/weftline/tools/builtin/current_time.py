"""The tool `current_time`, as models do not know the time."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from weftline import prompts
from weftline.tools.base import ToolFailed
from weftline.tools.decorator import tool


@tool(effect="read", blocking=False)
def current_time(timezone: str = "UTC") -> dict[str, str | int]:
    """The current date and time.

    Args:
        timezone: IANA name of the time zone, such as "Europe/Berlin".
    """
    now = datetime.now(UTC)
    if timezone.upper() not in ("UTC", "Z"):
        try:
            now = now.astimezone(ZoneInfo(timezone))
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ToolFailed(prompts.builtin.unknown_time_zone(timezone)) from None
    return {
        "time": now.isoformat(timespec="seconds"),
        "timezone": "UTC" if now.tzinfo is UTC else timezone,
        "weekday": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")[now.weekday()],
        "unix_s": int(now.timestamp()),
    }

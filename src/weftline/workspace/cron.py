"""Cron expressions in a time zone: five fields, read strictly, with bounded work whatever they contain.

On days when clocks change:

* A time that is skipped occurs later by the length of the gap: 02:30 becomes 03:30. Two times that become one occur
  once.
* A time that occurs twice counts the first time. An expression that allows every hour counts both, so that a job that
  runs every ten minutes does not pause for an hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from msgspec import Struct

from weftline.errors import InvalidRequest, invalid_field

MAX_CHARS = 200
_SHORT = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HORIZON_DAYS = 3000
"""29 February may be eight years away. An expression without a time by then never has one."""
_ODD_DAYS = 2
"""How far a clock change can move a time: nowhere by more than a day."""
_NOT_ZONES = ("localtime", "posix/", "posixrules", "right/")
"""Files beside the zones of the database: they describe the machine's own zone, or count leap seconds."""
_MINUTE_US, _HOUR_US = 60_000_000, 3_600_000_000
_LAST_US = 250_000_000_000_000_000
"""In the year 9892, shortly before the end of Python's dates."""


class _Field(Struct, frozen=True):
    name: str
    low: int
    high: int
    words: tuple[str, ...] = ()
    first_word: int = 0


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS, 1),
    _Field("day of week", 0, 7, _DAYS),
)


class Cron(Struct, frozen=True):
    """The times of an expression, all in microseconds since the epoch."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    zone: ZoneInfo

    def next(self, after: int) -> int | None:
        """The first time after that one; None if there is none."""
        if after > _LAST_US:
            return None
        start = self._day(after) - timedelta(days=_ODD_DAYS)
        found: int | None = None
        left = _ODD_DAYS
        for day in (start + timedelta(days=number) for number in range(_HORIZON_DAYS)):
            if found is not None:
                # A clock change may have moved the time that was found past an earlier one of the following days.
                if not left:
                    break
                left -= 1
            for time in self._times(day, since=after + 1, until=_LAST_US if found is None else found):
                if found is None or time < found:
                    found = time
        return found

    def latest(self, *, since: int, until: int, limit: int) -> list[int]:
        """The last `limit` times from `since` to `until`, both included, in order."""
        found: set[int] = set()
        last, first = self._day(min(until, _LAST_US)), self._day(since) - timedelta(days=_ODD_DAYS)
        left = _ODD_DAYS
        for day in (last - timedelta(days=number) for number in range(-_ODD_DAYS, _HORIZON_DAYS)):
            if day < first:
                break
            if len(found) >= limit:
                if not left:
                    break
                left -= 1
            found.update(self._times(day, since=since, until=until))
        return sorted(found)[-limit:]

    def _day(self, time: int) -> date:
        return (_EPOCH + timedelta(microseconds=time)).astimezone(self.zone).date()

    def _is_on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        if len(self.days) < 31 and len(self.weekdays) < 7:
            return in_month or in_week
        return in_month and in_week

    def _times(self, day: date, *, since: int, until: int) -> Iterator[int]:
        """The times of a day that lie in the given range, not always in order."""
        if not self._is_on(day):
            return
        folds = (0, 1) if len(self.hours) == 24 else (0,)
        for hour in self.hours:
            begin = datetime(day.year, day.month, day.day, hour, tzinfo=self.zone)
            end = begin.replace(minute=59)
            if len({moment.replace(fold=fold).utcoffset() for moment in (begin, end) for fold in (0, 1)}) == 1:
                # No clock change in this hour, as in nearly all: one look-up of the zone is enough for its minutes.
                first = _us(begin)
                if first <= until and since < first + _HOUR_US:
                    times = (first + minute * _MINUTE_US for minute in self.minutes)
                    yield from (time for time in times if since <= time <= until)
                continue
            for minute in self.minutes:
                for fold in folds:
                    moment = begin.replace(minute=minute, fold=fold)
                    if since <= (time := _us(moment)) <= until and (not fold or _exists(moment)):
                        yield time


def _us(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(microseconds=1)


def _exists(time: datetime) -> bool:
    """Returns True if clocks ever show this time; they do not show skipped times."""
    back = time.astimezone(UTC).astimezone(time.tzinfo)
    return back.replace(tzinfo=None, fold=0) == time.replace(tzinfo=None, fold=0)


@lru_cache(maxsize=256)
def parse_cron(text: str, timezone: str) -> Cron:
    """Raises `InvalidRequest` that states what is wrong, including for an expression that matches no day."""
    zone = parse_zone(timezone)
    if len(text) > MAX_CHARS:
        raise invalid_field("cron", f"has more than {MAX_CHARS} characters.")
    whole = _SHORT.get(text.strip().lower(), text)
    parts = whole.split()
    if len(parts) != len(_FIELDS):
        raise invalid_field("cron", "needs five fields: minute, hour, day of month, month and day of week.")
    minutes, hours, days, months, weekdays = (_parse(part, of) for part, of in zip(parts, _FIELDS, strict=True))
    cron = Cron(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        frozenset(days),
        frozenset(months),
        frozenset(day % 7 for day in weekdays),
        zone,
    )
    if cron.next(0) is None:
        raise invalid_field("cron", f"{text!r} never occurs.")
    return cron


def parse_zone(name: str) -> ZoneInfo:
    """Raises `InvalidRequest` for a name that this machine has no time zone for."""
    try:
        if 0 < len(name) <= 64 and not name.startswith(_NOT_ZONES):
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        pass
    raise invalid_field("timezone", f"there is no time zone {name[:64]!r}; give a name such as Europe/Berlin or UTC.")


def _parse(text: str, field: _Field) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        if span == "*":
            low, high = field.low, field.high - (field.high == 7)
        else:
            first, dash, last = span.partition("-")
            low = _number(first, field)
            high = _number(last, field) if dash else field.high if slash else low
            if field.high == 7 and high == 0 < low:
                high = 7  # Sunday can also end the week: sat-sun
            if high < low:
                raise _wrong(field, f"{span!r} ends before it begins")
        if slash and not (step.isascii() and step.isdigit() and 1 <= int(step[:9]) <= field.high + 1):
            raise _wrong(field, f"{step!r} is not a step from 1 to {field.high + 1}")
        found.update(range(low, high + 1, int(step) if slash else 1))
    return found


def _number(text: str, field: _Field) -> int:
    if text.lower() in field.words:
        return field.words.index(text.lower()) + field.first_word
    if not (text.isascii() and text.isdigit() and len(text) <= 2 and field.low <= int(text) <= field.high):
        raise _wrong(field, f"{text!r} is not a number from {field.low} to {field.high}")
    return int(text)


def _wrong(field: _Field, problem: str) -> InvalidRequest:
    return invalid_field("cron", f"{field.name}: {problem}.")

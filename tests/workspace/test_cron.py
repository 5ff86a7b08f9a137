"""Cron expressions, against a slow reading of the same rules, and on the days when clocks jump."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weftline.errors import InvalidRequest
from weftline.workspace.cron import Cron, parse_cron

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def us(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


def times(text: str, zone: str, start: datetime, count: int) -> list[str]:
    """The next times, as clocks there show them."""
    cron, at, found = parse_cron(text, zone), us(start), list[str]()
    for _ in range(count):
        following = cron.next(at)
        assert following is not None
        at = following
        shown = (EPOCH + timedelta(microseconds=at)).astimezone(ZoneInfo(zone))
        found.append(shown.strftime("%m-%d %H:%M %z"))
    return found


def slowly(cron: Cron, since: datetime, until: datetime) -> list[int]:
    """Every minute that clocks can show, one by one."""
    found: set[int] = set()
    shown = (since - timedelta(hours=39)).replace(tzinfo=None)
    while shown < (until + timedelta(hours=39)).replace(tzinfo=None):
        restricted = len(cron.days) < 31 and len(cron.weekdays) < 7
        of_month, of_week = shown.day in cron.days, (shown.weekday() + 1) % 7 in cron.weekdays
        day = (of_month or of_week) if restricted else (of_month and of_week)
        if day and shown.month in cron.months and shown.hour in cron.hours and shown.minute in cron.minutes:
            found.add(us(shown.replace(tzinfo=cron.zone)))
            again = shown.replace(tzinfo=cron.zone, fold=1)
            real = again.astimezone(UTC).astimezone(cron.zone).replace(tzinfo=None) == shown
            if len(cron.hours) == 24 and real:
                found.add(us(again))
        shown += MINUTE
    return sorted(time for time in found if us(since) <= time <= us(until))


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda two: f"{min(two)}-{max(two)}")
    stepped = st.tuples(st.one_of(st.just("*"), span), st.integers(1, high)).map(lambda two: f"{two[0]}/{two[1]}")
    return st.lists(st.one_of(st.just("*"), number.map(str), span, stepped), min_size=1, max_size=2).map(",".join)


EXPRESSIONS = st.tuples(field(0, 59), field(0, 23), field(1, 28), st.just("*"), field(0, 7)).map(" ".join)
JUMPS = [
    ("Europe/Berlin", datetime(2027, 3, 28, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2027, 10, 31, tzinfo=UTC)),
    ("Africa/Cairo", datetime(2027, 4, 29, 20, tzinfo=UTC)),  # at midnight
    ("Australia/Lord_Howe", datetime(2027, 4, 3, 12, tzinfo=UTC)),  # by half an hour
    ("Pacific/Apia", datetime(2011, 12, 30, tzinfo=UTC)),  # by a day
]


@settings(max_examples=12)
@given(EXPRESSIONS, st.sampled_from(JUMPS))
def test_the_times_are_those_of_a_slow_reading(text: str, jump: tuple[str, datetime]) -> None:
    zone, around = jump
    cron = parse_cron(text, zone)
    since, until = around - timedelta(hours=14), around + timedelta(hours=14)
    expected = slowly(cron, since, until)
    assert cron.latest(since=us(since), until=us(until), limit=10_000) == expected
    assert cron.latest(since=us(since), until=us(until), limit=3) == expected[-3:]
    pairs = list(zip([us(since) - 1, *expected], expected, strict=False))
    for before, after in pairs[:: len(pairs) // 12 + 1]:
        assert cron.next(before) == after


def test_time_skipped_by_clocks_comes_later_and_once() -> None:
    start = datetime(2027, 3, 27, 12, tzinfo=UTC)
    assert times("30 2 * * *", "Europe/Berlin", start, 2) == ["03-28 03:30 +0200", "03-29 02:30 +0200"]
    assert times("0 2,3 * * *", "Europe/Berlin", start, 2) == ["03-28 03:00 +0200", "03-29 02:00 +0200"]


def test_time_shown_twice_by_clocks_comes_first() -> None:
    start = datetime(2027, 10, 30, 23, 59, tzinfo=UTC)
    assert times("30 2 * * *", "Europe/Berlin", start, 2) == ["10-31 02:30 +0200", "11-01 02:30 +0100"]
    hourly = ["10-31 02:00 +0200", "10-31 02:00 +0100", "10-31 03:00 +0100"]
    assert times("@hourly", "Europe/Berlin", start, 3) == hourly


def test_cron_day_fits_by_number_or_name() -> None:
    start = datetime(2027, 1, 1, tzinfo=UTC)
    assert times("0 9 13 * fri", "UTC", start, 3) == ["01-01 09:00 +0000", "01-08 09:00 +0000", "01-13 09:00 +0000"]
    assert times("0 0 * * 7", "UTC", start, 1) == times("0 0 * * sun", "UTC", start, 1) == ["01-03 00:00 +0000"]
    assert parse_cron("0 0 * * fri-sun", "UTC") == parse_cron("0 0 * * 5-7", "UTC") == parse_cron("0 0 * * 5-0", "UTC")
    assert parse_cron("0 0 * * sun-sun", "UTC") == parse_cron("0 0 * * 0", "UTC")
    far = parse_cron("0 0 29 feb *", "UTC").next(us(datetime(2096, 3, 1, tzinfo=UTC)))
    assert far == us(datetime(2104, 2, 29, tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("* * * *", "five fields"),
        ("60 * * * *", "minute: '60' is not a number from 0 to 59"),
        ("* * 0 * *", "day of month: '0'"),
        ("* 5-2 * * *", "hour: '5-2' ends before it begins"),
        ("* * * * sat-mon", "day of week: 'sat-mon' ends before it begins"),
        ("*/0 * * * *", "'0' is not a step from 1 to 60"),
        ("*/x * * * *", "'x' is not a step"),
        ("* * * foo *", "month: 'foo'"),
        ("0 0 31 2 *", "never occurs"),
        (",".join(["0"] * 200) + " * * * *", "more than 200 characters"),
    ],
)
def test_invalid_expression_is_refused_in_words(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_cron(text, "UTC")
    assert says in refused.value.message


@pytest.mark.parametrize(
    "name",
    ["", "Mars/Olympus", "../../etc/passwd", "/etc/localtime", "x" * 500, "\0", "localtime", "right/Europe/Berlin"],
)
def test_invalid_time_zone_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="there is no time zone"):
        parse_cron("* * * * *", name)

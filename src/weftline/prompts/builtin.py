"""Texts of the tools that come with Weftline: fetching, calculating, the time."""

from __future__ import annotations

FETCH_HTTP_ONLY = "Only http and https addresses can be fetched."
FETCH_START = "start must be 0 or more."
FETCH_TOO_COMPLICATED = "The page is too complicated to be read."
FETCH_REDIRECTS = "The page redirects too often."
CALCULATE_NOT_ARITHMETIC = "That is not an arithmetic expression."
CALCULATE_BY_ZERO = "Division by zero."
CALCULATE_TOO_LARGE = "The result is too large."
CALCULATE_TOO_DEEP = "The expression is nested too deeply."
CALCULATE_NUMBERS_ONLY = "Only numbers can be used in a calculation."


def fetch_not_text(media_type: str) -> str:
    return f"The page is {media_type}, which cannot be shown as text."


def fetch_more(part: str, left: int, *, start: int) -> str:
    return f"{part}\n[{left} more characters; read on with start={start}]"


def calculate_too_long(max_chars: int) -> str:
    return f"The expression is longer than {max_chars} characters."


def calculate_impossible(reason: str) -> str:
    return f"That cannot be calculated: {reason}."


def calculate_unknown(expression: str) -> str:
    return f"This tool cannot evaluate {expression!r}."


def unknown_time_zone(name: str) -> str:
    return f"There is no time zone {name!r}; use an IANA name such as Europe/Berlin."

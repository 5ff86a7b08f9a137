"""Did you mean …?"""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence with the nearest known words, with a leading space; "" if none is near."""
    from difflib import get_close_matches

    by_lower = {one.lower(): one for one in known}
    near = [by_lower[one] for one in get_close_matches(word.lower()[:200], by_lower, n=3)]
    if not near:
        return ""
    *others, last = [repr(one) for one in near]
    return f" Did you mean {', '.join(others)} or {last}?" if others else f" Did you mean {last}?"


def sentence(text: str) -> str:
    """The text with a full stop, unless it has an end of its own: another sentence is to follow."""
    return text if text.endswith((".", "?", "!", "…")) else f"{text}."

"""Did you mean …?"""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Returns a sentence with the nearest known words and a leading space; empty if none is near."""
    from difflib import get_close_matches

    by_lower = {one.lower(): one for one in known}
    near = [by_lower[one] for one in get_close_matches(word.lower()[:200], by_lower, n=3, cutoff=cutoff)]
    if not near:
        return ""
    *others, last = [repr(one) for one in near]
    return f" Did you mean {', '.join(others)} or {last}?" if others else f" Did you mean {last}?"


def sentence(text: str) -> str:
    """Returns the text with a full stop, unless it already ends a sentence, so that another can follow."""
    return text if text.endswith((".", "?", "!", "…")) else f"{text}."

"""Which sampling settings a model accepts, and what is wrong with those that it does not.

A family declares what each of its models accepts (`sampling_limits`); by default, everything is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from weftline.errors import Issue
from weftline.messages import Sampling


def nearest(places: Sequence[int], level: int) -> int:
    """Returns the place nearest to `level`; the lower one on a tie."""
    return min(places, key=lambda place: (abs(place - level), place))


class SamplingLimits(Struct, frozen=True, kw_only=True):
    """Sampling settings that one model accepts."""

    max_temperature: float | None = 2.0
    """None if it accepts no temperature at all."""
    top_p: bool = True
    together: bool = True
    """Whether it accepts temperature and top-p together."""
    max_stops: int | None = None
    """How many stop sequences; 0 for none, None for any number."""
    blank_stops: bool = True
    """Whether a stop sequence may consist of white space."""
    min_output_tokens: int = 1
    max_output_tokens: int | None = None
    condition: str = ""
    """When it refuses temperature and top-p, such as "while it reasons"; empty for always."""


ANYTHING = SamplingLimits()


def issues_of(sampling: Sampling, limits: SamplingLimits, *, model: str) -> list[Issue]:
    """Returns what the model would refuse, by field of `Sampling`."""
    issues: list[Issue] = []
    when = f" {limits.condition}" if limits.condition else ""
    temperature, top_p = sampling.temperature, sampling.top_p
    if temperature is not None:
        if limits.max_temperature is None:
            issues.append(Issue("temperature", f"{model} does not accept a temperature{when}"))
        elif temperature > limits.max_temperature:
            issues.append(Issue("temperature", f"{model} accepts a temperature of at most {limits.max_temperature:g}"))
    if top_p is not None:
        if not limits.top_p:
            issues.append(Issue("top_p", f"{model} does not accept top-p{when}"))
        elif temperature is not None and not limits.together:
            issues.append(Issue("top_p", f"{model} accepts a temperature or top-p, but not both"))
    if sampling.stop:
        issues += _stop_issues(sampling.stop, limits, model)
    maximum, minimum = limits.max_output_tokens, limits.min_output_tokens
    if sampling.max_output_tokens is not None:
        if maximum is not None and sampling.max_output_tokens > maximum:
            issues.append(Issue("max_output_tokens", f"{model} writes at most {maximum:,} tokens"))
        elif sampling.max_output_tokens < minimum:
            issues.append(Issue("max_output_tokens", f"{model} accepts a limit of {minimum} tokens or more"))
    return issues


def _stop_issues(stop: tuple[str, ...], limits: SamplingLimits, model: str) -> list[Issue]:
    if limits.max_stops == 0:
        return [Issue("stop", f"{model} does not accept stop sequences")]
    issues: list[Issue] = []
    if limits.max_stops is not None and len(stop) > limits.max_stops:
        issues.append(Issue("stop", f"{model} accepts at most {limits.max_stops} stop sequences"))
    if not limits.blank_stops:
        blank = [index for index, text in enumerate(stop) if not text.strip()]
        issues += [Issue(f"stop[{index}]", f"{model} does not accept blank stop sequences") for index in blank]
    return issues

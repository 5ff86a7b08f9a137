"""The log's vocabulary for deploys: a run continues with different code.

Three digests identify what a run depends on: its prompt, its tools and its code. They are in its plan;
`weftline.runtime.deploys` compares them with those of the process that takes over the run.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

OnDeploy: TypeAlias = Literal["adopt", "pin", "ask"]
"""What happens to a run whose code has changed: it adopts the new code, waits for the old, or asks a person."""
_STRICTNESS: dict[OnDeploy, int] = {"adopt": 0, "ask": 1, "pin": 2}
Part: TypeAlias = Literal["prompt", "tools", "code"]
PARTS: tuple[Part, ...] = ("prompt", "tools", "code")


def stricter(one: OnDeploy, other: OnDeploy) -> OnDeploy:
    return one if _STRICTNESS[one] >= _STRICTNESS[other] else other


class Digests(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The definitions that a run depends on. Equal ones have equal digests, in every process and on every machine."""

    prompt: str
    tools: str
    """The names, schemas and effects of its tools."""
    code: str
    """The source of its tools and hooks, or the version that the operator assigned to the code."""
    given: bool = False
    """The prompt was given with the run, so no deploy changes it."""


class Change(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The digests of a part before and after a deploy."""

    before: str
    after: str


class DeployAdopted(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False, tag="deploy.adopted"
):
    """From here on the run continues with different code. Body: `RenderedBody`, if its prompt has changed."""

    changed: dict[Part, Change]


def changes(before: Digests, now: Digests) -> dict[Part, Change]:
    """The parts that have changed."""
    found: dict[Part, Change] = {}
    for part in PARTS:
        old, new = getattr(before, part), getattr(now, part)
        if old != new and not (part == "prompt" and before.given):
            found[part] = Change(old, new)
    return found


def adopted(before: Digests, changed: dict[Part, Change]) -> Digests:
    """Returns the digests of a run after it has adopted a deploy."""
    after = {part: changed[part].after if part in changed else getattr(before, part) for part in PARTS}
    return Digests(after["prompt"], after["tools"], after["code"], before.given)

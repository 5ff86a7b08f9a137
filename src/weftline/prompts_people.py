"""What a model reads about people: what they approved, refused and answered. See `prompts`."""

from __future__ import annotations

from collections.abc import Sequence

_GO_ON = "Do not make it again unless you are told to: go on without it, or say that it was refused."

DENIED = f"Not executed: a person was asked and did not allow this call. {_GO_ON}"
EXPIRED = f"Not executed: a person was asked about this call and did not answer in time. {_GO_ON}"


def denied(reason: str) -> str:
    return f"Not executed: a person was asked and did not allow this call: {reason}\n{_GO_ON}"


def edited(args: str) -> str:
    return f"A person changed the arguments before this call was made. It was made with: {args}"


def changed_since_asked(tool: str) -> str:
    return f"Not executed: {tool} has changed since a person approved this call. If it is still needed, make it again."


def nobody_asked(tool: str) -> str:
    return f"Not executed: {tool} needs a person's approval, and this run may not ask anybody. Go on without it."


def not_askable(tool: str, reason: str) -> str:
    return f"Not executed: {tool} needs a person's approval, and the question could not be put: {reason}"


NOT_ANSWERED_IN_TIME = "Aborted: nobody answered in time. Go on with what you know, and say what you had to assume."
NOT_ANSWERED = "Aborted: the run went on or ended before anybody answered."
NO_ANSWER = "The user did not answer. Go on with what you know, and say what you had to assume."


def no_answer(reason: str) -> str:
    return f"The user did not answer the question: {reason}"


def answers(pairs: Sequence[tuple[str, str]]) -> str:
    """What a person answered to several questions of one call."""
    return "\n".join([f"{number}. {question}\n{answer}" for number, (question, answer) in enumerate(pairs, 1)])


PLAN_APPROVED = "The user approved the plan. Carry it out."
PLAN_REJECTED = "The user rejected the plan. Do not carry it out: ask what should be different, or make another one."


def plan_rejected(reason: str) -> str:
    return f"The user rejected the plan: {reason}\nDo not carry it out; make another one."


def plan_approved(comment: str) -> str:
    return f"{PLAN_APPROVED} The user also said: {comment}"


def plan_edited(plan: str, comment: str = "") -> str:
    also = f"\nThe user also said: {comment}" if comment else ""
    return f"The user changed the plan and approved it. Carry out this one in place of yours:\n{plan}{also}"


def plan_commented(comment: str) -> str:
    return f"The user neither approved nor rejected the plan, but said: {comment}"

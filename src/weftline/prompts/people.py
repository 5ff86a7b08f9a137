"""Texts for a model about people: what they approved, refused and answered; and for one that calls an agent over A2A
about their questions.
"""

from __future__ import annotations

from collections.abc import Sequence

_CONTINUE = "Do not make it again unless you are told to: continue without it, or say that it was refused."

DENIED = f"Not executed: a person was asked and did not allow this call. {_CONTINUE}"
EXPIRED = f"Not executed: a person was asked about this call and did not answer in time. {_CONTINUE}"


def denied(reason: str) -> str:
    return f"Not executed: a person was asked and did not allow this call: {reason}\n{_CONTINUE}"


def edited(args: str) -> str:
    return f"A person changed the arguments before this call was made. It was made with: {args}"


APPROVAL_LAPSED = (
    "Not executed: a person approved this call, and the approval lapsed before it could begin. If it is still needed, "
    "make it again."
)


def nobody_asked(tool: str) -> str:
    return f"Not executed: {tool} needs a person's approval, and this run may not ask anybody. Continue without it."


def not_askable(tool: str, reason: str) -> str:
    return f"Not executed: {tool} needs a person's approval, and the question could not be asked: {reason}"


NOT_ANSWERED_IN_TIME = "Aborted: nobody answered in time. Continue with what you know, and say what you had to assume."
NOT_ANSWERED = "Aborted: the run continued or ended before anybody answered."
NO_ANSWER = "The user did not answer. Continue with what you know, and say what you had to assume."


def no_answer(reason: str) -> str:
    return f"The user did not answer the question: {reason}"


def answers(pairs: Sequence[tuple[str, str]]) -> str:
    """Returns a person's answers to several questions of one call."""
    return "\n".join([f"{number}. {question}\n{answer}" for number, (question, answer) in enumerate(pairs, 1)])


PLAN_APPROVED = "The user approved the plan. Carry it out."
PLAN_REJECTED = "The user rejected the plan. Do not carry it out: ask what should be different, or make another one."


def plan_rejected(reason: str) -> str:
    return f"The user rejected the plan: {reason}\nDo not carry it out; make another one."


def plan_approved(comment: str) -> str:
    return f"{PLAN_APPROVED} The user also said: {comment}"


def plan_edited(plan: str, comment: str = "") -> str:
    also = f"\nThe user also said: {comment}" if comment else ""
    return f"The user changed the plan and approved it. Carry out this version instead:\n{plan}{also}"


def plan_commented(comment: str) -> str:
    return f"The user neither approved nor rejected the plan, but said: {comment}"


A2A_CONFIRM = (
    "A message does not approve this: the agent reads it and continues without the call. "
    "Approval is given on the server that runs the agent."
)
A2A_DOUBT = "This must be answered on the server that runs the agent. The agent reads messages after that."
A2A_PLAN = (
    "A message is a comment on the plan; it neither approves nor rejects it. "
    "Approval is given on the server that runs the agent."
)
A2A_CHOICES = 'Several can be chosen, with data such as {"value": ["…", "…"]}.'
A2A_SEVERAL = 'Answer each by its id, with data such as {"awaitId": "…", "value": "…"}.'


def a2a_one_of_several(number: int) -> str:
    return f"A message answers number {number}. The others are decided on the server that runs the agent."

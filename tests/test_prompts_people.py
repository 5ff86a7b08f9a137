"""What a model reads about people, word for word: whoever changes a text sees it here and reads it aloud."""

from __future__ import annotations

from weftline import prompts

_CONTINUE = "Do not make it again unless you are told to: continue without it, or say that it was refused."


def test_the_texts_are_these() -> None:
    assert f"Not executed: a person was asked and did not allow this call. {_CONTINUE}" == prompts.people.DENIED
    assert (
        f"Not executed: a person was asked about this call and did not answer in time. {_CONTINUE}"
    ) == prompts.people.EXPIRED
    assert prompts.people.denied("Too much.") == (
        f"Not executed: a person was asked and did not allow this call: Too much.\n{_CONTINUE}"
    )
    assert prompts.people.edited('{"n":4}') == (
        'A person changed the arguments before this call was made. It was made with: {"n":4}'
    )
    assert prompts.people.nobody_asked("pay") == (
        "Not executed: pay needs a person's approval, and this run may not ask anybody. Continue without it."
    )
    assert prompts.people.not_askable("pay", "no amount") == (
        "Not executed: pay needs a person's approval, and the question could not be asked: no amount"
    )
    assert prompts.people.NOT_ANSWERED_IN_TIME == (
        "Aborted: nobody answered in time. Continue with what you know, and say what you had to assume."
    )
    assert prompts.people.NOT_ANSWERED == "Aborted: the run continued or ended before anybody answered."
    assert (
        prompts.people.NO_ANSWER
        == "The user did not answer. Continue with what you know, and say what you had to assume."
    )
    assert prompts.people.no_answer("Not now.") == "The user did not answer the question: Not now."
    assert prompts.people.answers([("Where?", "Lyon"), ("When?", "Today")]) == "1. Where?\nLyon\n2. When?\nToday"
    assert prompts.people.PLAN_APPROVED == "The user approved the plan. Carry it out."
    assert prompts.people.PLAN_REJECTED == (
        "The user rejected the plan. Do not carry it out: ask what should be different, or make another one."
    )
    assert prompts.people.plan_rejected("Too slow.") == (
        "The user rejected the plan: Too slow.\nDo not carry it out; make another one."
    )
    assert prompts.people.plan_commented("Start small.") == (
        "The user neither approved nor rejected the plan, but said: Start small."
    )
    assert prompts.people.plan_approved("Mind the cat.") == (
        "The user approved the plan. Carry it out. The user also said: Mind the cat."
    )
    changed = "The user changed the plan and approved it. Carry out this version instead:\n1. Go."
    assert prompts.people.plan_edited("1. Go.") == changed
    assert prompts.people.plan_edited("1. Go.", "Soon.") == f"{changed}\nThe user also said: Soon."


def test_what_a_caller_over_a2a_reads_is_this() -> None:
    assert prompts.people.A2A_CONFIRM == (
        "A message does not approve this: the agent reads it and continues without the call. "
        "Approval is given on the server that runs the agent."
    )
    assert prompts.people.A2A_DOUBT == (
        "This must be answered on the server that runs the agent. The agent reads messages after that."
    )
    assert prompts.people.A2A_PLAN == (
        "A message is a comment on the plan; it neither approves nor rejects it. "
        "Approval is given on the server that runs the agent."
    )
    assert prompts.people.A2A_CHOICES == 'Several can be chosen, with data such as {"value": ["…", "…"]}.'
    assert prompts.people.A2A_SEVERAL == 'Answer each by its id, with data such as {"awaitId": "…", "value": "…"}.'
    assert prompts.people.a2a_one_of_several(2) == (
        "A message answers number 2. The others are decided on the server that runs the agent."
    )

"""Work that an earlier process had begun and that nobody is executing any more.

`run.adopted` has marked it as lost (`evolve`). From here on the log alone decides:

* a model call is closed as abandoned, with what it may have cost, and made again as the next attempt of its turn;
* a tool call is executed again, reconciled, or closed as in doubt, depending on its effect: the stricter of the one in
  the log and the one that the tool declares now.

A completed turn and a call that has a result are never lost. Neither are calls for clients, questions to people and
child runs, because no process was executing those.
"""

from __future__ import annotations

from weftline import prompts
from weftline.kernel.calls import asks_about_doubt
from weftline.kernel.endings import ask_person, closed, result_of_answer, settled
from weftline.kernel.entries import CallStarted
from weftline.kernel.state import Call, Command, Decision, New, Reconcile, State


def model_call(s: State) -> Decision:
    return Decision((New(settled(s, "abandoned")),))


def tool_call(s: State, index: int, call: Call, append: list[New], start: list[Command], *, still: bool) -> None:
    """Decides about a lost call. With `still`, nothing begins for now, because the run is paused or about to end."""
    if call.awaiting:
        return  # a person is asked about it
    if results := result_of_answer(s, index):
        append += results
    elif call.grant is not None:  # a person wants it executed again
        if not still:
            append.append(_again(s, index, call))
    elif call.effect == "once":
        if asks_about_doubt(s, call):
            append.append(ask_person(s, index, "doubt"))
        else:
            append.append(closed(s, index, "in_doubt", prompts.calls.in_doubt(call.name)))
    elif still:
        return
    elif call.effect == "reconcile":
        start.append(Reconcile(s.turn - 1, index, call.attempt))
    else:  # read, idempotent
        append.append(_again(s, index, call))


def _again(s: State, index: int, call: Call) -> New:
    return New(CallStarted(s.turn - 1, index, call.attempt + 1))

"""N1 and N2: code requests each of its calls once, however often it is executed, and gets the results in the log.

N1: the calls of one piece of code are in the log once each, in the order of the requests.
N2: what code received is the result in the log.
"""

from __future__ import annotations

from collections import defaultdict

from campaigns.simulation.evidence import Evidence, RunLog
from campaigns.simulation.trace import require
from campaigns.simulation.world import FromCode
from weftline.kernel import bodies
from weftline.kernel.entries import CallAsked, CallClosed
from weftline.messages import joined_text


def check_nested(evidence: Evidence, log: RunLog) -> None:
    """Raises `Violation`."""
    asked: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    results: dict[str, str] = {}
    ids: dict[tuple[int, int], str] = {}
    for entry in log.entries:
        match entry.head:
            case CallAsked() as head:
                body = bodies.decode_asked(entry.body)
                asked[ids[head.turn, head.parent]].append((head.call.id, head.call.name, body.written))
            case CallClosed() as head:
                results[head.id] = joined_text(bodies.decode_closed(entry.body).parts)
            case _:
                for index, call in enumerate(getattr(entry.head, "calls", ())):
                    ids[getattr(entry.head, "turn", 0), index] = call.id
    wanted: dict[str, list[FromCode]] = defaultdict(list)
    for one in evidence.ledger.from_code:
        if one.run_id == log.run_id:
            wanted[one.parent].append(one)
    for parent, calls in asked.items():
        most = max([one.number for one in wanted[parent]], default=-1) + 1
        require("N1", len(calls) <= most, f"run {log.key}: {parent} asked for {most} calls, and the log has {calls}")
    for parent, seen in wanted.items():
        for one in seen:
            who = f"run {log.key}: call {one.number} of {parent}"
            if one.number >= len(asked[parent]):
                lost = one.received is None or evidence.may_have_lost(one.life, log)
                require("N1", lost, f"{who} has a result and is not in the log")
                continue
            id, name, written = asked[parent][one.number]
            # It may have continued with a result that the log never got.
            same = (name, written) == (one.tool, one.args) or evidence.may_have_lost(one.life, log)
            require("N1", same, f"{who} is {one.tool} {one.args}, not {name} {written}")
            if one.received is not None:
                same = results.get(id) == one.received or evidence.may_have_lost(one.life, log)
                require("N2", same, f"{who} got {one.received!r}, and the log has {results.get(id)!r}")

"""P7: time in which no process is running does not count as active time of a run with a policy."""

from __future__ import annotations

from itertools import pairwise

from campaigns.simulation.disk import Entry
from campaigns.simulation.evidence import Evidence, RunLog
from campaigns.simulation.policies import Stopwatch
from campaigns.simulation.trace import require
from weftline.kernel.policy import RunUnattended


def check_downtime(evidence: Evidence, log: RunLog) -> None:
    """A process that takes over from another records this first, if the run's clock was running."""
    if log.order.policy is None or evidence.troubles.clock_was_set:
        return
    stopwatch = Stopwatch()
    for entry, following in pairwise(log.entries):
        stopwatch.read(entry)
        before, after = _life(evidence, entry), _life(evidence, following)
        if stopwatch.is_running and before and after and before != after:
            recorded = isinstance(following.head, RunUnattended)
            require("P7", recorded, f"run {log.key}: seq {following.seq} comes from another process")


def _life(evidence: Evidence, entry: Entry) -> int | None:
    """Which process wrote an entry; None if it was just starting or stopping."""
    when_s = entry.at / 1_000_000 - evidence.epoch_s
    for number, up in evidence.times.items():
        if up.since_s <= when_s <= up.until_s:
            return number
    return None

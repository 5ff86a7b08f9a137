"""Every end of a run reached every webhook at least once, always under the same id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from campaigns.torture.ledger import Ledger
from campaigns.torture.logs import RunLog


def undelivered(ledger: Ledger, runs: Sequence[str], webhooks: Sequence[str]) -> int:
    """How many ends of runs receivers have yet to accept."""
    accepted = {(one.webhook, one.run) for one in ledger.deliveries if one.accepted}
    return sum((webhook, run) not in accepted for webhook in webhooks for run in runs)


def check_hooks(ledger: Ledger, logs: Sequence[RunLog], webhooks: Sequence[str]) -> Iterator[str]:
    """The faults found, in words."""
    identities: dict[tuple[str, str], set[str]] = defaultdict(set)
    runs: dict[str, set[tuple[str, str]]] = defaultdict(set)
    statuses = {log.run: log.row.status for log in logs}
    for one in ledger.deliveries:
        identities[one.webhook, one.run].add(one.id)
        runs[one.id].add((one.webhook, one.run))
        if statuses.get(one.run) != one.status:
            yield f"webhook {one.webhook}: says that run {one.run} is {one.status}, and it is {statuses.get(one.run)}"
    for (webhook, run), ids in identities.items():
        if len(ids) > 1:
            yield f"webhook {webhook}: run {run} came under the ids {sorted(ids)}"
    for identity, places in runs.items():
        if len(places) > 1:
            yield f"delivery {identity} is of {sorted(places)}"
    accepted = {(one.webhook, one.run) for one in ledger.deliveries if one.accepted}
    for webhook in webhooks:
        missing = [run for run in statuses if (webhook, run) not in accepted]
        if missing:
            yield f"webhook {webhook}: never heard of {len(missing)} runs: {missing[:5]}"

"""Everything known when the torture is over, and the comparison of its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from campaigns.torture.check_hooks import check_hooks
from campaigns.torture.check_model import check_model
from campaigns.torture.check_runs import check_runs
from campaigns.torture.check_tools import check_tools
from campaigns.torture.ledger import Ledger
from campaigns.torture.logs import RunLog
from campaigns.torture.tools import Execution


class Evidence(Struct):
    seed: int
    ledger: Ledger
    logs: list[RunLog]
    executions: list[Execution]
    webhooks: list[str]
    disk: str

    def faults(self) -> Iterator[str]:
        """What went wrong on the way, and where the log and the others disagree, in words."""
        yield from self.ledger.faults
        yield from check_runs(self.ledger, self.logs)
        yield from check_model(self.ledger, self.logs)
        yield from check_tools(self.ledger, self.logs, self.executions)
        yield from check_hooks(self.ledger, self.logs, self.webhooks)

    def summary(self) -> str:
        ledger = self.ledger
        statuses = Counter(f"runs {log.row.status}" for log in self.logs)
        lives = Counter(f"processes {life.how}" for life in ledger.lives)
        counts = {
            **dict(sorted(statuses.items())),
            "sessions": len(ledger.sessions),
            "model requests": len(ledger.asked),
            "tool executions": len(self.executions),
            "client results accepted": len(ledger.answered),
            "frames read": sum(len(view.frames) for view in ledger.views),
            "webhook deliveries": len(ledger.deliveries),
            **dict(sorted(lives.items())),
            **{f"mishap: {kind}": count for kind, count in sorted(ledger.mishaps.items())},
        }
        return "\n".join([f"seed {self.seed}, on {self.disk}", *[f"{n:8}  {name}" for name, n in counts.items()]])

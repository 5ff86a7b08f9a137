"""Everything known when a history is over."""

from __future__ import annotations

from msgspec import Struct

from campaigns.simulation.clients import Acknowledged
from campaigns.simulation.disk import Disk, Entry
from campaigns.simulation.followers import Seen
from campaigns.simulation.orders import Order
from campaigns.simulation.people import Decided
from campaigns.simulation.server import Up
from campaigns.simulation.world import Ledger
from weftline.kernel.entries import RunCreated, RunEnded
from weftline.runtime import ids
from weftline.store.rows import Item, RunRow


class RunLog(Struct):
    """A run as it is on the disk."""

    row: RunRow
    items: list[Item]
    entries: list[Entry]
    order: Order

    @property
    def key(self) -> int:
        return self.row.key

    @property
    def run_id(self) -> str:
        return ids.run_id(self.row.key, self.row.salt)

    @property
    def end(self) -> RunEnded | None:
        head = self.entries[-1].head
        return head if isinstance(head, RunEnded) else None


class Window(Struct, frozen=True):
    """A period, in virtual seconds, during which something was out of order."""

    since_s: float
    until_s: float

    def touches(self, since_s: float, until_s: float) -> bool:
        return self.since_s <= until_s and since_s <= self.until_s


class Troubles(Struct):
    """The faults of a history."""

    stalls: list[Window] = []
    sick: list[Window] = []
    """When the disk refused writes or reads."""
    clock_was_set_by_s: float = 0.0
    """The clock is set at most once in a history."""
    losses: set[tuple[int, str]] = set()
    """Lives and tags of runs with a refused or failed write: their memory may have been dropped."""

    held_s: float = 0.0
    """How long watchers may hold a command back."""

    @property
    def clock_was_set(self) -> bool:
        return self.clock_was_set_by_s != 0.0

    @property
    def stalled_s(self) -> float:
        return sum(window.until_s - window.since_s for window in self.stalls)


class Evidence(Struct):
    disk: Disk
    orders: dict[str, Order]
    threads: list[int]
    ledger: Ledger
    acknowledged: Acknowledged
    seen: list[Seen]
    times: dict[int, Up]
    troubles: Troubles
    epoch_s: float
    """The wall clock at the virtual time 0, unless it was set."""
    people: Decided

    def logs(self) -> list[RunLog]:
        return [
            RunLog(row, self.disk.items(row.key), self.disk.facts(row.key), self._order(row))
            for row in self.disk.rows()
        ]

    def _order(self, row: RunRow) -> Order:
        """The order of a run; for a child run, derived from its log."""
        created = self.disk.facts(row.key)[0].head
        if not isinstance(created, RunCreated) or created.parent is None:
            return self.orders[row.name]
        limits = created.limits
        return Order(tag=row.name, in_doubt=limits.in_doubt, policy=limits.policy, budget=limits.budget)

    def may_have_lost(self, life: int, log: RunLog) -> bool:
        """Whether the run's memory in that life may have been lost before it was durable."""
        return self.times[life].crashed or (life, log.order.tag) in self.troubles.losses

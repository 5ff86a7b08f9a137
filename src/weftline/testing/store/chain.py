"""The writes of one run, made as a driver would make them, and its log read back whole."""

from __future__ import annotations

from collections.abc import Sequence

from weftline.messages import Blob
from weftline.store.base import LogReader
from weftline.store.rows import IdempotencyKey, Item, NewRun, Progress, ThreadEnd, Write

EVERYTHING = 2**40


class Chain:
    """The writes of one run in order, each based on the previous one.

    Args:
        epoch: The epoch of the claim that they are made under; `LogStore.next_epoch()` for a run that is created.
    """

    def __init__(self, key: int, workspace: int, *, epoch: int, thread: int | None = None) -> None:
        self.key = key
        self.epoch = epoch
        self.seq = 1
        self.version = 0
        self.workspace = workspace
        self._thread = thread

    def create(
        self,
        *,
        body: bytes = b"{}",
        name: str = "",
        agent: str | None = None,
        family: int | None = None,
        metadata: str = "{}",
        rules: int = 1,
        secrets: bytes | None = None,
        idempotency: IdempotencyKey | None = None,
        blobs: tuple[Blob, ...] = (),
        salt: str = "salt",
    ) -> Write:
        """The first write of the run: its row and its first entry."""
        write = self.append(body, kind="run.created", status="queued", due_at=0)
        write.new = NewRun(
            salt=salt,
            workspace=self.workspace,
            name=name,
            metadata=metadata,
            created_at=1_000 + self.key,
            rules=rules,
            thread=self._thread,
            agent=agent,
            family=family,
            idempotency=idempotency,
            blobs=blobs,
            secrets=secrets,
        )
        return write

    def append(
        self,
        *bodies: bytes,
        kind: str = "call.closed",
        deltas: Sequence[bytes] = (),
        status: str = "running",
        due_at: int | None = 0,
        progress: Progress = Progress.NONE,
    ) -> Write:
        """One fact for each of `bodies`, and then `deltas` as one item. Facts come with a new state."""
        items = [Item(5_000, kind, b"{}", body) for body in bodies]
        if deltas:
            items.append(Item(5_000, "delta.text", b"", b"\n".join(deltas), len(deltas)))
        write = Write(
            self.key,
            self.epoch,
            self.seq,
            self.version,
            items,
            version=self.version + len(bodies),
            status=status,
            due_at=due_at,
            state=b"state %d" % (self.version + len(bodies)) if bodies else None,
            fold=1,
            progress=progress,
        )
        self.seq += len(bodies) + len(deltas)
        self.version = write.version
        return write

    def end(self, *, messages: Sequence[bytes] = (), ended_at: int = 9_000, status: str = "succeeded") -> Write:
        """The last write: the run has ended and leaves its thread, if it has one."""
        write = self.append(b"{}", kind="run.ended", status=status, due_at=None)
        write.ended_at = ended_at
        if self._thread is not None:
            write.thread_end = ThreadEnd(self._thread, list(messages))
        return write

    def take_back(self, write: Write) -> None:
        """After a refusal: the next write is based on what `write` was based on."""
        self.seq, self.version = write.base_seq, write.base_version


async def read_log(log: LogReader, key: int) -> list[Item]:
    """All items of a run, page by page."""
    items: list[Item] = []
    after = 0
    while (page := await log.page(key, after=after, max_bytes=EVERYTHING)) is not None:
        items += page.items
        if page.last_seq >= page.upto:
            break
        after = page.last_seq
    return items


async def check_log(log: LogReader, key: int) -> list[bytes]:
    """Asserts that the run's log is complete (every seq from 1 to the last once) and returns the bodies of its
    facts.
    """
    row = await log.run(key)
    items = await read_log(log, key)
    facts = await log.facts(key)
    if row is None:
        assert items == facts == [], f"run {key} has entries and no row"
        return []
    seqs = [seq for item in items for seq in range(item.seq, item.last_seq + 1)]
    assert seqs == list(range(1, row.next_seq)), f"the log of run {key} has a hole or a seq twice: {seqs}"
    assert all(item.body.count(b"\n") == item.count - 1 for item in items if item.count > 1)
    assert facts == [item for item in items if item.head]
    assert row.version == len(facts), f"the row of run {key} and its log do not belong together"
    return [fact.body for fact in facts]

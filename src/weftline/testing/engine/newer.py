"""A run that newer code has written."""

from __future__ import annotations

from weftline.kernel.entries import FORMAT
from weftline.store.base import Store
from weftline.store.rows import Item, NewRun, Write
from weftline.testing.engine.bench import Run, Subject


async def newer_run(subject: Subject, *, workspace: int) -> Run:
    """Restarts the engine on a store that has such a run."""
    newer = Run(1_000, "run_3e8newer0newer0", workspace)

    async def plant(store: Store) -> None:
        written = await store.log.flush([_of_tomorrow(newer, epoch=store.log.next_epoch())])
        assert written[0].outcome == "ok", written

    await subject.restart(plant)
    return newer


def _of_tomorrow(run: Run, *, epoch: int) -> Write:
    head = b'{"type":"run.created","rules":1,"limits":{"tomorrow":1}}'
    return Write(
        run.key,
        epoch,
        base_seq=1,
        base_version=0,
        items=[Item(1, "run.created", head, b'{"plan":{"v":99}}')],
        version=1,
        status="queued",
        due_at=0,
        format=FORMAT + 1,
        state=b"tomorrow's",
        fold=99,
        new=NewRun("newer0newer0", run.workspace, "newer", "{}", 1, 1),
    )

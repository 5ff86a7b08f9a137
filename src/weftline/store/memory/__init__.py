"""A store in memory: the same guarantees for as long as the process lives, and nothing on disk.

The log is plain dicts and lists. Records are on SQLite in memory, with the same schema as everywhere, because queries
on records are SQL by contract and there is no second implementation; this is why the package imports
`store.sqlite.database`, and nothing else of that store.
There is no thread: a commit is atomic and immediate. What would outlive a process is a `MemoryDisk`, on which a
simulation opens one store after another:

    disk = MemoryDisk()
    first = MemoryStore(disk)
    second = MemoryStore(disk)  # as after a crash: `second.log.unclean` is true, and `first` can no longer write
"""

from weftline.store.memory.disk import MemoryDisk
from weftline.store.memory.store import MemoryStore

__all__ = ["MemoryDisk", "MemoryStore"]

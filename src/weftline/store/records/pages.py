"""Pages of what a workspace has stored, cut by bytes: a definition may be large."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from msgspec import Struct

from weftline.store.database import Query, SqlValue, statement

PAGE_BYTES = 4 * 1024 * 1024

T = TypeVar("T")


class RowPage(Struct, Generic[T], frozen=True):
    rows: list[T]
    more_after: int | None
    """The key after which the next page begins; None if this is the last."""


def fitting(sizes: Iterable[int], *, limit: int) -> int:
    """Returns how many of these fit on a page, at least one."""
    count = size = 0
    for one in sizes:
        size += one
        if count == limit or (count and size > PAGE_BYTES):
            break
        count += 1
    return count


def page_keys(
    table: str, *, workspace: int, after: int, limit: int, ids: tuple[str, ...] = ()
) -> Query[tuple[list[int], int | None]]:
    """The keys of a page of a table with specs, oldest first, and where the next page begins.

    With `ids`, only those.
    """
    values: list[SqlValue] = [workspace, after, *ids, limit + 1]
    # Numbered in the order of their use, because SQLite treats `$1` as a name.
    some = f" AND id IN ({', '.join(f'${number + 3}' for number in range(len(ids)))})" if ids else ""
    found = yield from statement(
        f"SELECT key, length(spec) FROM {table} WHERE workspace = $1 AND key > $2{some}"
        f" ORDER BY key LIMIT ${len(values)}",
        *values,
    )
    keys = [row[0] for row in found][: fitting([row[1] for row in found], limit=limit)]
    return keys, keys[-1] if keys and len(keys) < len(found) else None


def count(table: str, *, workspace: int) -> Query[int]:
    rows = yield from statement(f"SELECT count(*) FROM {table} WHERE workspace = $1", workspace)
    return rows[0][0]

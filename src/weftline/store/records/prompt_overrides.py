"""Overrides of agents' prompt templates: every version that was ever set."""

from __future__ import annotations

from msgspec import DecodeError, Struct
from msgspec.json import Decoder, encode

from weftline.store.database import Query, statement

_COLUMNS = "prompt, thread, labels, template, version, set_by, set_at"
_decode_labels = Decoder(dict[str, str]).decode


class PromptOverrideRow(Struct, frozen=True):
    prompt: str
    thread: str
    labels: dict[str, str]
    template: str
    version: str
    set_by: str
    set_at: int


def insert(row: PromptOverrideRow, *, workspace: int) -> Query[None]:
    yield from statement(
        f"INSERT INTO prompt_overrides (workspace, {_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        workspace,
        row.prompt,
        row.thread,
        encode(row.labels).decode(),
        row.template,
        row.version,
        row.set_by,
        row.set_at,
    )


def of_workspace(workspace: int) -> Query[list[PromptOverrideRow]]:
    """Newest first. An override whose labels cannot be read applies to nobody and is left out."""
    found = yield from statement(
        f"SELECT {_COLUMNS} FROM prompt_overrides WHERE workspace = $1 ORDER BY key DESC", workspace
    )
    rows: list[PromptOverrideRow] = []
    for prompt, thread, labels, *others in found:
        try:
            rows.append(PromptOverrideRow(str(prompt), str(thread), _decode_labels(str(labels)), *others))  # type: ignore[arg-type]
        except DecodeError:
            continue
    return rows

"""Creating a thread with what it begins with: a user, values, variables and tags.

One use case for HTTP and for the library. An agent of a folder has rules of its own about its threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from weftline.errors import invalid_field
from weftline.store.database import Query
from weftline.store.records.thread_state import of_thread
from weftline.store.records.threads import ThreadRow
from weftline.store.rows import IdempotencyKey
from weftline.store.sealing import Headers
from weftline.workspace import threads
from weftline.workspace.code_agents import ThreadRules
from weftline.workspace.context import Workspaces
from weftline.workspace.thread_state import checked_key, put_env, put_value, value_json
from weftline.workspace.threads import ThreadDraft

TAG = "tag:"
"""Tags are metadata of the thread under this prefix, and found by its index."""
MAX_TAGS = 16
MAX_TAG_CHARS = 64


class ThreadStart(Struct, frozen=True, kw_only=True):
    """What a thread is created with. `spec` and `headers` are what each of its runs starts from."""

    agent: str
    name: str = ""
    user: str | None = None
    env: Mapping[str, str] = {}
    values: Mapping[str, Any] = {}
    tags: Sequence[str] = ()
    spec: bytes = b"{}"
    headers: Headers = {}


async def start_thread(
    at: Workspaces,
    workspace: int,
    given: ThreadStart,
    *,
    engine: object,
    rules: ThreadRules | None,
    once: IdempotencyKey | None = None,
) -> ThreadRow:
    """Creates a thread with all that is given, or returns the one that was created under the same key.

    Raises `InvalidRequest` (`missing_variable`) if its agent needs variables that nothing provides; then there is no
    thread.
    """
    draft = ThreadDraft(
        name=given.name,
        agent=given.agent,
        spec=given.spec,
        headers=given.headers,
        metadata=dict.fromkeys(map(tag_key, given.tags), ""),
        user=given.user,
        keeps="all",
    )
    also = _also(at, workspace, given)
    if rules is not None:
        await rules.check(at, workspace, user=given.user, env=given.env)
    row = await threads.create(at, workspace, draft, idempotency=once, also=also)
    if rules is not None:
        await rules.begin(at, engine, row)
    return row


def tag_key(tag: str) -> str:
    """The key of a tag among a thread's metadata."""
    if not 0 < len(tag) <= MAX_TAG_CHARS:
        raise invalid_field("tags", f"a tag has 1 to {MAX_TAG_CHARS} characters.")
    return TAG + tag


def _also(at: Workspaces, workspace: int, given: ThreadStart) -> threads.Also:
    if len(given.tags) > MAX_TAGS:
        raise invalid_field("tags", f"a thread has at most {MAX_TAGS} tags.")
    values = {checked_key(key): value_json(key, value) for key, value in given.values.items() if value is not None}

    def also(row: ThreadRow) -> Query[None]:
        for key, value in values.items():
            yield from put_value(row.key, key, value)
        for name, value in given.env.items():
            yield from put_env(at, workspace, of_thread(row.key), name, value)

    return also

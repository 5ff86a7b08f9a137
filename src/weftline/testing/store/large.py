"""Long strings: a store may keep them once, however many rows they are in, without any difference to readers."""

from __future__ import annotations

from json import dumps

from msgspec.json import encode

from weftline.store.rows import LargeEntry
from weftline.testing.store.subject import (
    EVERYTHING,
    Subject,
    chain_of,
    check_log,
    commit,
    new_thread,
    new_workspace,
    outcomes,
    read_log,
)

TEXT = 'She said: "Grüße, 世界 \U0001f34b\\n"\n\t\x01' * 1_000
BODIES = (
    encode({"text": TEXT}),
    encode({"plan": {"text": TEXT}, "sent": [TEXT, "short", TEXT[1:]]}),
    dumps({"text": TEXT}).encode(),
    encode({"args": encode({"text": TEXT, "more": encode([TEXT]).decode()}).decode()}),
    encode({"texts": ["short"] * 10_000}),
    encode({"messages": [{"role": "user", "text": "short " * 50, "number": number} for number in range(300)]}),
    encode({"numbers": [12345] * 10_000}),
    b'{"open":"' + b"x" * 40_000,
    b'\0{"text":"' + b"x" * 40_000 + b'"}',
)
"""The same long strings in all the ways that clients may encode them, and texts that only look as if they had any."""


async def long_strings_are_read_as_they_were_written(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    chain = chain_of(log, 1, workspace)
    assert outcomes(await commit(log, chain.create(body=BODIES[0]), chain_of(log, 2, workspace).create())) == ["ok"] * 2
    for body in BODIES:
        assert outcomes(await commit(log, chain.append(body, b"{}", deltas=[b"d"]))) == ["ok"]
    await subject.reopen(cleanly=False)
    log = subject.store.log
    expected = [BODIES[0], *[one for body in BODIES for one in (body, b"{}")]]
    assert await check_log(log, 1) == expected
    assert await log.log_size(1) == sum(len(body) + len(b"{}") for body in expected)
    newest = await log.newest_facts(1, kinds=("call.closed",), limit=3, max_bytes=EVERYTHING)
    assert [fact.body for fact in newest] == [b"{}", BODIES[-1], b"{}"]
    loaded = await log.claim(1, kinds=("call.closed",))
    assert loaded is not None
    assert [loaded.created_body, *[fact.body for fact in loaded.conversation]] == expected


async def a_long_string_counts_in_full_for_whoever_reads_with_a_limit(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    chain = chain_of(log, 1, workspace)
    await commit(log, chain.create(body=BODIES[0]), chain_of(log, 2, workspace).create())
    await commit(log, chain.append(*BODIES))
    whole = await log.entry(1, 1, max_bytes=len(BODIES[0]))
    assert whole is not None and whole.body == BODIES[0]
    reported = None
    try:
        await log.entry(1, 1, max_bytes=len(BODIES[0]) - 1)
    except LargeEntry as large:
        reported = large.size
    assert reported == len(BODIES[0])
    page = await log.page(1, after=0, max_bytes=len(BODIES[0]) + 1_000)
    assert page is not None and [item.body for item in page.items] == [BODIES[0]]
    newest = await log.newest_facts(1, kinds=("call.closed",), limit=8, max_bytes=len(BODIES[-1]) + 1_000)
    assert [fact.body for fact in newest] == [BODIES[-1]]


async def a_thread_keeps_its_long_messages_when_the_logs_are_gone(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    chain = chain_of(log, 1, workspace, thread=thread)
    await commit(log, chain.create(body=BODIES[0]))
    await commit(log, chain.append(BODIES[1]))
    end = chain.end(messages=BODIES, ended_at=100)
    end.items[-1] = last = type(end.items[-1])(100, "run.ended", b"{}", BODIES[3])
    assert outcomes(await commit(log, end)) == ["ok"]
    for _ in range(2):
        assert await log.thread_messages(thread) == list(BODIES)
        assert await log.thread_size(thread) == sum(map(len, BODIES))
        await log.trim(before=200, after=0, workspace=None)
        assert [item.body for item in await read_log(log, 1)] == [last.body]
    following = chain_of(log, 2, workspace, thread=thread)
    await commit(log, following.create())
    loaded = await log.claim(2, kinds=())
    assert loaded is not None and loaded.history == list(BODIES)


async def a_shared_long_string_stays_until_its_last_user_is_gone(subject: Subject) -> None:
    log, workspace, other = subject.store.log, await new_workspace(subject), await new_workspace(subject, "other")
    for key, owner in ((1, workspace), (2, workspace), (3, other), (4, other)):
        chain = chain_of(log, key, owner)
        await commit(log, chain.create(body=BODIES[1]))
        if key != 2:
            await commit(log, chain.end(ended_at=100 * key))
    await log.trim(before=350, after=0, workspace=None)
    kept = {key: [item.body for item in await read_log(log, key)] for key in (1, 2, 3, 4)}
    assert kept == {1: [b"{}"], 2: [BODIES[1]], 3: [b"{}"], 4: [BODIES[1], b"{}"]}


CHECKS = (
    long_strings_are_read_as_they_were_written,
    a_long_string_counts_in_full_for_whoever_reads_with_a_limit,
    a_thread_keeps_its_long_messages_when_the_logs_are_gone,
    a_shared_long_string_stays_until_its_last_user_is_gone,
)

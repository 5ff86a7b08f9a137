"""Runs whose ids clients choose: each is the only one in its workspace, and can be found by its id."""

from __future__ import annotations

from weftline.store.rows import GIVEN, RunFilter
from weftline.testing.store.subject import Subject, chain_of, check_log, code, commit, new_workspace, outcomes


async def a_given_id_is_that_of_one_run_of_a_workspace(subject: Subject) -> None:
    log = subject.store.log
    workspace, other = await new_workspace(subject), await new_workspace(subject, "other")
    first = chain_of(log, 1, workspace).create(salt=f"{GIVEN}nightly")
    same = chain_of(log, 2, workspace).create(salt=f"{GIVEN}nightly")
    tenant = chain_of(log, 3, other).create(salt=f"{GIVEN}nightly")
    neighbour = chain_of(log, 4, workspace).create()
    results = await commit(log, first, same, tenant, neighbour)
    assert outcomes(results) == ["ok", "conflict", "ok", "ok"]
    assert code(results[1]) == "conflict"
    assert await check_log(log, 2) == []
    later = chain_of(log, 5, workspace).create(salt=f"{GIVEN}nightly")
    assert outcomes(await commit(log, later)) == ["conflict"]
    assert await log.given("nightly", workspace=workspace) == [1]
    assert await log.given("nightly", workspace=other) == [3]
    assert await log.given("nightly", workspace=None) == [1, 3]


async def a_run_is_found_by_no_other_id_than_the_one_it_was_given(subject: Subject) -> None:
    log = subject.store.log
    workspace = await new_workspace(subject)
    await commit(log, chain_of(log, 1, workspace).create(), chain_of(log, 2, workspace).create(salt=f"{GIVEN}a-b"))
    assert outcomes(await commit(log, chain_of(log, 3, workspace).create(salt="xa-b"))) == ["ok"], "it was generated"
    for unknown in ("salt", "a-", "a-b-", "A-B", "", f"{GIVEN}a-b"):
        assert await log.given(unknown, workspace=workspace) == []
    assert await log.given("a-b", workspace=workspace + 1) == []


async def a_write_fails_if_the_id_of_its_child_is_taken(subject: Subject) -> None:
    log = subject.store.log
    workspace = await new_workspace(subject)
    await commit(log, chain_of(log, 1, workspace).create(salt=f"{GIVEN}taken"))
    parent = chain_of(log, 2, workspace).create()
    parent.children = (chain_of(log, 3, workspace).create(salt=f"{GIVEN}taken"),)
    assert outcomes(await commit(log, parent)) == ["conflict"]
    assert (await log.run(2), await log.run(3)) == (None, None)


async def given_ids_are_listed_by_how_they_begin(subject: Subject) -> None:
    log = subject.store.log
    workspace, other = await new_workspace(subject), await new_workspace(subject, "other")
    names = ("a", "a-1", "a-z", "a_", "b", "A-1")
    await commit(
        log, *[chain_of(log, key, workspace).create(salt=f"{GIVEN}{name}") for key, name in enumerate(names, 1)]
    )
    await commit(log, chain_of(log, 7, other).create(salt=f"{GIVEN}a-2"), chain_of(log, 8, workspace).create())

    async def found(prefix: str, *, within: int | None = workspace, limit: int = 50) -> list[int]:
        rows = await log.runs(RunFilter(workspace=within, given_prefix=prefix, limit=limit))
        return [row.key for row in rows]

    assert await found("a") == [4, 3, 2, 1]
    assert await found("a-") == [3, 2]
    assert await found("a-", within=None) == [7, 3, 2]
    assert await found("a", limit=2) == [4, 3]
    assert await found("") == [6, 5, 4, 3, 2, 1]
    assert await found("salt") == []
    ours = await log.runs(RunFilter(workspace=workspace, not_given=True))
    assert [row.key for row in ours] == [8]


async def an_id_stays_taken_when_retention_has_removed_the_log_of_its_run(subject: Subject) -> None:
    log = subject.store.log
    workspace = await new_workspace(subject)
    run = chain_of(log, 1, workspace)
    await commit(log, run.create(salt=f"{GIVEN}nightly"))
    await commit(log, run.end())
    assert await log.trim(before=10**9, after=0, workspace=None) == (1, 1)
    assert await log.given("nightly", workspace=workspace) == [1]
    assert outcomes(await commit(log, chain_of(log, 2, workspace).create(salt=f"{GIVEN}nightly"))) == ["conflict"]
    await subject.reopen()
    assert await subject.store.log.given("nightly", workspace=workspace) == [1]


CHECKS = (
    an_id_stays_taken_when_retention_has_removed_the_log_of_its_run,
    a_given_id_is_that_of_one_run_of_a_workspace,
    a_run_is_found_by_no_other_id_than_the_one_it_was_given,
    a_write_fails_if_the_id_of_its_child_is_taken,
    given_ids_are_listed_by_how_they_begin,
)

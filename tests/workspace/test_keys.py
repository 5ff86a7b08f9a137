"""API keys and features."""

from __future__ import annotations

import pytest

from weftline.cases import keys
from weftline.errors import InvalidRequest, NotFound
from weftline.store.records import keys as rows
from weftline.store.records.pages import RowPage
from weftline.workspace import workspaces
from weftline.workspace.context import Change, Workspaces

from .conftest import NOW_US, Clock

SECRET = "a-secret-that-clients-hold-already"


async def page(
    at: Workspaces, workspace: int, *, after: int = 0, limit: int, revoked: bool = False
) -> RowPage[rows.ApiKey]:
    return await at.records.read(rows.page(workspace=workspace, after=after, limit=limit, revoked=revoked))


async def test_key_is_found_by_hash_of_its_secret_alone(at: Workspaces) -> None:
    made = await keys.add(at, "acme", name="ci", usage="mcp", agents=["a", "b", "a"])
    found = await keys.by_secret_hash(at, keys.hash_secret(made.secret))
    assert found == made.key and made.key.agents == ("a", "b") and made.key.usage == "mcp"
    assert made.secret.startswith(made.key.prefix) and len(made.key.prefix) < 12
    assert await keys.by_secret_hash(at, keys.hash_secret(made.secret + "x")) is None


async def test_revoking_a_key_again_leaves_the_time_and_announces_each(
    at: Workspaces, clock: Clock, changes: list[Change]
) -> None:
    made = await keys.add(at, "acme")
    await keys.remove(at, made.key.id)
    clock.us += 1
    again = await keys.remove(at, made.key.id)
    assert again.revoked_at == NOW_US
    assert changes == [Change("credentials", made.key.workspace)] * 2
    assert (await page(at, made.key.workspace, limit=9)).rows == []
    assert (await page(at, made.key.workspace, limit=9, revoked=True)).rows == [again]


async def test_keys_are_listed_by_pages_that_are_cut_by_bytes(at: Workspaces, acme: int) -> None:
    many = [f"agent_{number:0>100}" for number in range(1000)]
    made = [(await keys.add(at, "acme", agents=many)).key for _ in range(60)]
    first = await page(at, acme, limit=200)
    assert first.more_after is not None and 30 < len(first.rows) < 60
    rest = await page(at, acme, after=first.more_after, limit=200)
    assert (first.rows + rest.rows, rest.more_after) == (made, None)
    few = await page(at, acme, limit=2)
    assert few.rows == made[:2] and few.more_after is not None


async def test_a_key_of_another_workspace_is_not_there(at: Workspaces, globex: int) -> None:
    made = await keys.add(at, "acme")
    with pytest.raises(NotFound):
        await keys.find(at, made.key.id, workspace=globex)
    with pytest.raises(NotFound):
        await keys.remove(at, made.key.id, workspace=globex)
    assert (await keys.find(at, made.key.id)).revoked_at is None


async def test_a_key_that_cannot_be_imported_leaves_no_workspace_behind(at: Workspaces) -> None:
    await keys.import_key(at, "acme", SECRET)
    with pytest.raises(InvalidRequest):
        await keys.import_key(at, "new", SECRET)
    assert await workspaces.slugs(at) == ["acme"]


@pytest.mark.parametrize(
    "secret", ["short", "x" * 513, "with a blank in the middle", "ümlaut-" * 5, "mantyx_at_" + SECRET]
)
async def test_invalid_key_is_refused(at: Workspaces, secret: str) -> None:
    with pytest.raises(InvalidRequest):
        await keys.import_key(at, "acme", secret)


@pytest.mark.parametrize(
    "arguments",
    [{"usage": "everything"}, {"name": "x" * 257}, {"agents": ["no id!"]}, {"agents": map(str, range(1001))}],
)
async def test_a_key_that_makes_no_sense_is_refused(at: Workspaces, arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        await keys.add(at, "acme", **arguments)  # pyright: ignore[reportArgumentType]


async def test_feature_that_is_off_gates_keys_of_its_workspace(at: Workspaces, changes: list[Change]) -> None:
    made = [await keys.add(at, slug) for slug in ("acme", "globex")]
    assert await workspaces.set_feature(at, "acme", "api_keys", on=False) == {"api_keys": False, "oauth_apps": True}
    assert await workspaces.set_feature(at, "acme", "api_keys", on=False) == await workspaces.features(at, "acme")
    assert [(await keys.find(at, one.key.id)).gated for one in made] == [True, False]
    await workspaces.set_feature(at, "acme", "api_keys", on=True)
    assert not (await keys.find(at, made[0].key.id)).gated
    assert changes == [Change("credentials")] * 3


async def test_unknown_workspaces_are_refused(at: Workspaces, acme: int) -> None:
    with pytest.raises(NotFound):
        await workspaces.features(at, "nowhere")
    for slug in ("", "Acme", "-acme", "acme_", "x" * 65, "a b"):
        with pytest.raises(InvalidRequest):
            await workspaces.ensure(at, slug)
    assert await workspaces.ensure(at, "acme") == acme == await workspaces.find(at, "acme")
    assert await workspaces.slug_of(at, acme) == "acme"

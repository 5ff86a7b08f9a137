"""Signing in while others guess, flood and go away: nobody is kept out, and no work is done for nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from ipaddress import ip_network

import pytest

from weftline.server.connections import client_of
from weftline.server.http import Disconnect
from weftline.server.options import ServerOptions
from weftline.server.rate_limit import Allowance
from weftline.workspace import passwords

from .kit import PASSWORD, Browser, World

TIMEOUT_S = 60
STRANGER = "198.51.100.9"


class Held:
    """Passwords are not checked before `go`; `begun` are those whose check was begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self._go = threading.Event()
        self._first = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        check = passwords.check_password

        def held(stored: str, password: str) -> bool:
            self.begun.append(password)
            self._loop.call_soon_threadsafe(self._first.set)
            self._go.wait(TIMEOUT_S)
            return check(stored, password)

        monkeypatch.setattr(passwords, "check_password", held)
        monkeypatch.setattr(passwords, "hash_password", str)

    async def until_one_is_checked(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await self._first.wait()

    def go(self) -> None:
        self._go.set()


@pytest.fixture
async def held(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Held]:
    one = Held(monkeypatch)
    yield one
    one.go()


async def settle() -> None:
    """Lets everything that can move without the checks move."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_stranger_who_guesses_does_not_keep_the_user_out(world: World) -> None:
    await world.user("ann@example.com")
    stranger, ann = Browser(world, address=STRANGER), Browser(world)
    guesses = [(await stranger.sign_in(password="wrong")).status for _ in range(15)]
    assert guesses == [401] * 10 + [429] * 5
    assert (await ann.sign_in()).status == 303


async def test_guesses_at_many_users_are_limited_by_address(world: World) -> None:
    await world.user("ann@example.com")
    stranger = Browser(world, address=STRANGER)
    guesses = [(await stranger.sign_in(f"user{number}@example.com", password="x")).status for number in range(35)]
    assert guesses == [401] * 30 + [429] * 5
    assert (await Browser(world, address="2001:db8::1").sign_in()).status == 303


async def test_known_browser_is_not_limited_by_others_at_its_address(world: World) -> None:
    await world.user("ann@example.com")
    await world.user("bob@example.com")
    ann, neighbour = Browser(world), Browser(world)
    assert (await ann.sign_in()).status == 303
    for _ in range(10):
        await neighbour.sign_in(password="wrong")
    refused = await neighbour.sign_in()
    assert refused.status == 429 and int(refused.headers["retry-after"]) <= 6
    assert (await ann.sign_in()).status == 303
    # It is known for this user alone, and as long as its own guesses are few.
    neighbour.cookies["weftline_device"] = ann.cookies["weftline_device"][:-3] + "AAA"
    assert (await neighbour.sign_in()).status == 429
    assert [(await ann.sign_in(password="wrong")).status for _ in range(11)] == [401] * 10 + [429]


async def test_waiting_as_told_is_enough_after_wrong_guesses(world: World) -> None:
    await world.user("ann@example.com")
    visitor = Browser(world)
    replies = [await visitor.sign_in(password="wrong") for _ in range(20)]
    world.clock.pass_s(int(replies[-1].headers["retry-after"]))
    assert (await visitor.sign_in()).status == 303


async def test_posts_of_departed_senders_cost_nothing(world: World, held: Held) -> None:
    await world.user("ann@example.com")
    flood = [Disconnect() for _ in range(300)]
    stranger = Browser(world, address=STRANGER)
    posts = [asyncio.create_task(stranger.sign_in(password="flood", disconnect=one)) for one in flood]
    await held.until_one_is_checked()
    for one in flood:
        one.notify()
    ann = asyncio.create_task(Browser(world, address=STRANGER).sign_in())
    await settle()
    held.go()
    async with asyncio.timeout(TIMEOUT_S):
        assert (await ann).status == 303
        ends = await asyncio.gather(*posts, return_exceptions=True)
    assert held.begun.count("flood") <= 2
    assert all(isinstance(end, ConnectionResetError) or (not isinstance(end, BaseException)) for end in ends)


async def test_a_sender_who_left_before_the_handler_began_is_noticed(world: World, held: Held) -> None:
    await world.user("ann@example.com")
    gone = Disconnect()
    gone.notify()
    with pytest.raises(ConnectionResetError):
        await Browser(world).sign_in(disconnect=gone)


async def test_flood_waits_in_short_queue_and_others_go_in_between(world: World, held: Held) -> None:
    await world.user("ann@example.com")
    stranger = Browser(world, address=STRANGER)
    posts = [asyncio.create_task(stranger.sign_in(f"u{number}@example.com", password="flood")) for number in range(50)]
    await held.until_one_is_checked()
    await settle()
    ann = asyncio.create_task(Browser(world).sign_in())
    await settle()
    held.go()
    async with asyncio.timeout(TIMEOUT_S):
        assert (await ann).status == 303
        statuses = [(await post).status for post in posts]
    assert statuses.count(401) <= 6 and set(statuses) == {401, 429}
    assert held.begun.index(PASSWORD) <= 4


async def test_many_senders_fill_the_queue_and_the_greediest_makes_room(held: Held) -> None:
    checker = passwords.PasswordChecker(at_once=1, max_waiting=4, max_waiting_each=3)
    first = asyncio.create_task(checker.check("x", "first", sender="a"))
    await held.until_one_is_checked()
    greedy = [asyncio.create_task(checker.check("x", "greedy", sender="a")) for _ in range(3)]
    others = [asyncio.create_task(checker.check("x", "other", sender=name)) for name in "bcde"]
    await settle()
    held.go()
    outcomes = await asyncio.wait_for(asyncio.gather(*greedy, *others, return_exceptions=True), TIMEOUT_S)
    refused = [type(outcome).__name__ for outcome in outcomes if outcome is not False]
    assert refused == ["Unavailable"] * 3 and outcomes[0] is False and not await first
    assert checker.waiting == 0


async def test_abandoned_check_keeps_its_place_until_its_thread_ends(held: Held) -> None:
    checker = passwords.PasswordChecker(at_once=1)
    gone = asyncio.create_task(checker.check("x", "gone"))
    await held.until_one_is_checked()
    gone.cancel()
    after = asyncio.create_task(checker.check("x", "after"))
    await settle()
    assert gone.cancelled() and held.begun == ["gone"]
    held.go()
    assert await asyncio.wait_for(after, TIMEOUT_S) is False
    assert held.begun == ["gone", "after"]


async def test_a_sign_in_form_is_good_for_an_hour(world: World) -> None:
    await world.user("ann@example.com")
    visitor = Browser(world)
    token = (await visitor.get("/api/oauth/sign-in")).token
    world.clock.pass_s(3601)
    reply = await visitor.post("/api/oauth/sign-in", token=token, email="ann@example.com", password=PASSWORD)
    assert reply.status == 400 and "has expired" in reply.text


@pytest.mark.parametrize("options", [ServerOptions(trusted_proxies=(ip_network("10.0.0.0/8"),))])
async def test_behind_a_trusted_proxy_the_clients_own_address_counts(world: World) -> None:
    await world.user("ann@example.com")
    proxy = Browser(world, address="10.1.2.3")

    async def attempt(forwarded: str, password: str) -> int:
        token = (await proxy.get("/api/oauth/sign-in")).token
        form = {"token": token, "email": "ann@example.com", "password": password}
        headers = {"origin": "http://weft.example", "x-forwarded-for": forwarded}
        return (await proxy.send("POST", "/api/oauth/sign-in", form=form, headers=headers)).status

    # The first part is the client's own word.
    statuses = [await attempt(f"203.0.113.{number}, {STRANGER}", "wrong") for number in range(11)]
    assert statuses == [401] * 10 + [429]
    assert await attempt("203.0.113.50", PASSWORD) == 303


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("198.51.100.1", ["203.0.113.1"], "198.51.100.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.1"], "203.0.113.1"),
        ("10.0.0.1", ["6.6.6.6, 203.0.113.1, 10.0.0.2"], "203.0.113.1"),
        ("10.0.0.1", ["6.6.6.6", "203.0.113.1"], "203.0.113.1"),
        ("::ffff:10.0.0.1", ["2001:db8:1:2:3::4"], "2001:db8:1:2::"),
        ("10.0.0.1", ["junk"], "junk"),
    ],
)
def test_who_client_is_can_be_told_only_by_trusted_proxy(peer: str, forwarded: list[str], client: str) -> None:
    assert client_of(peer, forwarded, (ip_network("10.0.0.0/8"),)) == client


def test_allowance_regrows_and_survives_a_clock_set_back() -> None:
    allowance = Allowance(burst=3, per_minute=6)
    now = 1_000_000_000_000
    for _ in range(3):
        assert allowance.wait_s("ann", now_us=now) == 0
        allowance.draw("ann", now_us=now)
    assert allowance.wait_s("ann", now_us=now) == 10 and allowance.wait_s("bob", now_us=now) == 0
    assert allowance.wait_s("ann", now_us=now + 10_000_000) == 0
    assert allowance.wait_s("ann", now_us=now - 10**12) == 0

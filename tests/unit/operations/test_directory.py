"""The tenant of a key: from the key alone, at most a minute old, and one answer for every kind of wrong key."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from dispatcher.model.errors import InvalidRequest, Refused, StoreUnavailable, Unauthorized
from dispatcher.model.tenants import Tenant
from dispatcher.operations import directory as module
from dispatcher.operations.directory import (
    ADDRESSES_MAX,
    CACHE_S,
    Directory,
    has_check,
    key_digest,
    key_prefix,
    new_key,
)
from dispatcher.operations.limits import LimitSettings
from tests.support.asgi import Call
from tests.support.world.memory_gate import Gate


async def test_asks_the_table_once_a_minute(gate: Gate) -> None:
    gate.store.requests.clear()
    for _ in range(100):
        await gate.context.directory.tenant_of(gate.keys["a"])
    assert (gate.store.requests["get KEY"], gate.store.requests["get TENANT"]) == (1, 1)
    await asyncio.sleep(CACHE_S)
    await gate.context.directory.tenant_of(gate.keys["a"])
    assert (gate.store.requests["get KEY"], gate.store.requests["get TENANT"]) == (2, 2)


async def test_requests_that_come_together_share_one_read(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a minute later, when what is known of a busy tenant is too old."""
    gate.store.requests.clear()
    get_tenant = gate.store.get_tenant

    async def get_slowly(identity: str) -> Tenant | None:
        await asyncio.sleep(0.1)
        return await get_tenant(identity)

    monkeypatch.setattr(gate.store, "get_tenant", get_slowly)
    for reads in (1, 2):
        asked = [gate.context.directory.tenant_of(gate.keys["a"]) for _ in range(100)]
        assert {tenant.name for tenant in await asyncio.gather(*asked)} == {"a"}
        assert (gate.store.requests["get KEY"], gate.store.requests["get TENANT"]) == (reads, reads)
        await asyncio.sleep(CACHE_S)


async def test_an_unknown_key_is_asked_for_once_too(gate: Gate) -> None:
    for _ in range(10):
        with pytest.raises(Unauthorized):
            await gate.context.directory.tenant_of("hg-" + "x" * 40)
    assert gate.store.requests["get KEY"] == 1


@pytest.mark.parametrize("key", ["hg-", "x", "hg-" + "y" * 300, "\ud800", "hg-\x00", " "])
async def test_whatever_is_wrong_with_a_key_the_words_are_the_same(gate: Gate, key: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        await gate.context.directory.tenant_of(key)
    assert caught.value.body() == Unauthorized().body()


@pytest.mark.parametrize("key", [None, ""])
async def test_a_request_without_a_key_is_refused_with_the_place_for_it(gate: Gate, key: str | None) -> None:
    with pytest.raises(Unauthorized, match="`Authorization: Bearer KEY`") as caught:
        await gate.context.directory.tenant_of(key)
    assert caught.value.body() == Unauthorized(caught.value.message).body()


async def test_the_right_prefix_alone_is_no_key(gate: Gate) -> None:
    good = gate.keys["a"]
    await gate.context.directory.tenant_of(good)
    for wrong in (key_prefix(good), good[:-1], good + "x", good.upper(), good.replace("hg-", "HG-")):
        with pytest.raises(Unauthorized):
            await gate.context.directory.tenant_of(wrong)


async def test_an_expired_key_is_none_at_that_very_second_also_from_the_cache(gate: Gate) -> None:
    key, record = new_key("a", "e" * 40, expires_at=gate.clock.now() + 30)
    await gate.store.put_key(record)
    assert (await gate.context.directory.tenant_of(key)).name == "a"
    await asyncio.sleep(29.9)
    assert (await gate.context.directory.tenant_of(key)).name == "a"
    await asyncio.sleep(0.1)
    with pytest.raises(Unauthorized):
        await gate.context.directory.tenant_of(key)


async def test_a_revoked_key_and_a_deleted_tenant_are_gone_within_a_minute(gate: Gate) -> None:
    for name in ("a", "b"):
        await gate.context.directory.tenant_of(gate.keys[name])
    await gate.store.delete_key(key_prefix(gate.keys["a"]))
    await gate.store.delete_tenant("b")
    await asyncio.sleep(CACHE_S)
    for name in ("a", "b"):
        with pytest.raises(Unauthorized):
            await gate.context.directory.tenant_of(gate.keys[name])


async def test_a_changed_limit_is_in_force_within_a_minute(gate: Gate) -> None:
    tenant = await gate.context.directory.tenant_of(gate.keys["a"])
    await gate.store.put_tenant(replace(tenant, max_tokens_max=1, version=2), expected_version=1)
    assert (await gate.context.directory.tenant_of(gate.keys["a"])).max_tokens_max == 4096
    await asyncio.sleep(CACHE_S)
    assert (await gate.context.directory.tenant_of(gate.keys["a"])).max_tokens_max == 1


async def test_its_caches_are_bounded(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_ENTRIES_MAX", 3)
    directory = gate.context.directory
    for number in range(20):
        with pytest.raises(Unauthorized):
            await directory.tenant_of(guessed(number))
    assert len(directory._unknown_keys._entries) == 3


def guessed(number: int) -> str:
    return f"hg-unknown{number:05d}" + "x" * 30


async def test_guessing_keys_reads_the_table_at_a_bounded_rate_and_known_keys_are_served(gate: Gate) -> None:
    limits = LimitSettings(unknown_keys_per_s=2.0, unknown_keys_burst=5)
    directory = gate.process(limits).directory
    await directory.tenant_of(gate.keys["a"])
    before = gate.store.requests["get KEY"]
    answers = []
    for number in range(1000):
        with pytest.raises((Unauthorized, Refused)) as caught:
            await directory.tenant_of(guessed(number))
        answers.append(caught.value)
        if number % 100 == 0:
            await asyncio.sleep(1.0)
            assert (await directory.tenant_of(gate.keys["a"])).name == "a"
    assert gate.store.requests["get KEY"] - before <= 5 + 2 * 10 + 1
    refused = answers[-1]
    assert isinstance(refused, Refused)
    assert (refused.code, refused.retry_after_s) == ("unknown_keys", 1.0)
    await asyncio.sleep(CACHE_S)  # its entry is old, and it is a known key still
    for number in range(1000, 1010):
        with pytest.raises((Unauthorized, Refused)):
            await directory.tenant_of(guessed(number))
    assert (await directory.tenant_of(gate.keys["a"])).name == "a"


class Slow:
    """Each request to the store takes a moment. `fails`: the store is away."""

    fails = False

    async def before(self, operation: str) -> None:
        await asyncio.sleep(0.1)
        if self.fails:
            raise StoreUnavailable()

    async def after(self, operation: str) -> None:
        return None


async def test_many_requests_with_one_key_at_the_start_are_one_lookup(gate: Gate) -> None:
    directory = gate.process(LimitSettings(unknown_keys_burst=5)).directory
    gate.store.faults = Slow()
    reads = gate.store.requests["get KEY"]
    found = await asyncio.gather(*(directory.tenant_of(gate.keys["a"]) for _ in range(300)))
    assert {tenant.name for tenant in found} == {"a"}
    assert gate.store.requests["get KEY"] == reads + 1


async def test_after_a_restart_the_keys_of_many_tenants_are_found(gate: Gate) -> None:
    for number in range(20):
        await gate.add_tenant(f"t{number}")
    directory = gate.process(LimitSettings(unknown_keys_per_s=0.0, unknown_keys_burst=5)).directory
    for name, key in gate.keys.items():
        assert (await directory.tenant_of(key)).name == name
    for number in range(5):
        with pytest.raises(Unauthorized):
            await directory.tenant_of(guessed(number))
    with pytest.raises(Refused) as caught:
        await directory.tenant_of(guessed(6))
    assert caught.value.retry_after_s == 60.0, "the rate is 0"


async def test_a_lookup_that_fails_is_tried_again_by_the_next_request(gate: Gate) -> None:
    directory = gate.process().directory
    gate.store.faults = faults = Slow()
    faults.fails = True
    errors = await asyncio.gather(*(directory.tenant_of(gate.keys["a"]) for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in errors] == [StoreUnavailable] * 3
    faults.fails = False
    leaving = asyncio.ensure_future(directory.tenant_of(gate.keys["a"]))
    staying = asyncio.ensure_future(directory.tenant_of(gate.keys["a"]))
    await asyncio.sleep(0.05)
    leaving.cancel()
    assert (await staying).name == "a"


def test_a_key_is_kept_as_a_digest_and_has_bits_enough() -> None:
    key, record = new_key("a", "s" * 40)
    assert key not in repr(record)
    assert "s" * 20 not in repr(record)
    with pytest.raises(InvalidRequest):
        new_key("a", "s" * 33)


# ── A flood of unknown keys refuses no tenant that a front has not seen, and the table is read at a bounded rate ──────

FLOOD_PER_S, FLOOD_S = 1000, 5
NUMBERS = count()


def unchecked() -> str:
    return f"hg-{next(NUMBERS):012d}" + "x" * 32


def checked() -> str:
    return new_key("none", f"{next(NUMBERS):012d}" + "y" * 32)[0]


async def try_key(directory: Directory, key: str, address: str) -> str:
    try:
        return (await directory.tenant_of(key, address)).name
    except Refused as error:
        return error.code
    except Unauthorized:
        return "unauthorized"


async def flood_beside(
    gate: Gate, make_key: Callable[[], str], flood_addresses: list[str], tenant_address: str, tenants: int = 10
) -> tuple[Counter[str], int]:
    """Send unknown keys, FLOOD_PER_S a second, and after them the first request of each of `tenants` new tenants.

    Return what the tenants were answered, by answer, and how often the table was read for the flood.
    """
    names = [f"new-{next(NUMBERS)}" for _ in range(tenants)]
    for name in names:
        await gate.add_tenant(name)
    directory, before = gate.process().directory, gate.store.requests["get KEY"]
    answers = Counter[str]()
    for second in range(FLOOD_S):
        for number in range(FLOOD_PER_S):
            await try_key(directory, make_key(), flood_addresses[number % len(flood_addresses)])
        for name in names[second::FLOOD_S]:
            found = await try_key(directory, gate.keys[name], tenant_address)
            answers["served" if found == name else found] += 1
        await asyncio.sleep(1.0)
    return answers, gate.store.requests["get KEY"] - before - tenants


@pytest.mark.parametrize(
    ("make_key", "flood_addresses", "tenant_address"),
    [
        (unchecked, ["x"], "x"),
        (unchecked, [""], ""),
        (unchecked, [f"x{n}" for n in range(500)], "x1"),
        (checked, ["x"], "y"),
    ],
)
async def test_a_tenant_that_the_front_has_not_seen_is_served_at_its_first_try(
    gate: Gate, make_key: Callable[[], str], flood_addresses: list[str], tenant_address: str
) -> None:
    answers, reads = await flood_beside(gate, make_key, flood_addresses, tenant_address)
    assert answers == {"served": 10}
    assert reads <= 200 + 10 * FLOOD_S + 1


async def test_a_key_from_before_there_was_a_check_is_found_from_another_address(gate: Gate) -> None:
    old = "hg-" + "o" * 44
    _, record = new_key("a", "o" * 44)
    await gate.store.put_key(replace(record, digest=key_digest(old)))
    directory = gate.process().directory
    for _ in range(FLOOD_PER_S):
        await try_key(directory, unchecked(), "x")
    assert not has_check(old)
    assert await try_key(directory, unchecked(), "x") == "unknown_keys"
    assert await try_key(directory, old, "y") == "a"


async def test_an_address_that_sent_a_known_key_lately_has_a_reserve(gate: Gate) -> None:
    await gate.add_tenant("new")
    await gate.add_tenant("newer")
    directory = gate.process().directory
    assert await try_key(directory, gate.keys["a"], "known") == "a"
    for number in range(FLOOD_PER_S):
        await try_key(directory, checked(), f"x{number}")
    assert await try_key(directory, gate.keys["new"], "strange") == "unknown_keys"
    assert await try_key(directory, gate.keys["newer"], "known") == "newer"
    await asyncio.sleep(3600.0)
    for number in range(FLOOD_PER_S):
        await try_key(directory, checked(), f"x{number}")
    assert await try_key(directory, gate.keys["new"], "known") == "unknown_keys", "it was known an hour ago"


async def test_a_lookup_that_finds_its_key_gives_everything_back(gate: Gate) -> None:
    for number in range(300):
        await gate.add_tenant(f"many-{number}")
    directory = gate.process().directory
    for number in range(300):
        assert await try_key(directory, gate.keys[f"many-{number}"], "one") == f"many-{number}"


async def test_addresses_are_remembered_up_to_a_bound(gate: Gate) -> None:
    budget = gate.process().directory._lookups
    for number in range(ADDRESSES_MAX + 10):
        budget.note_known(f"{number}")
        budget._part(f"{number}", True)
    assert (len(budget._known), len(budget._parts)) == (ADDRESSES_MAX, ADDRESSES_MAX)


@pytest.mark.parametrize(
    "change", [lambda key: key[:-1], lambda key: key + "x", lambda key: key[:-1] + "z", lambda key: "sk-" + key]
)
def test_a_key_that_is_not_as_it_was_made_has_no_check(change: Callable[[str], str]) -> None:
    key, _ = new_key("a", "s" * 44)
    assert has_check(key)
    assert not has_check(change(key))


@pytest.mark.parametrize(("headers", "address"), [({}, "caller"), ({"x-forwarded-for": "1.1.1.1, 2.2.2.2"}, "2.2.2.2")])
async def test_an_address_is_that_which_the_nearest_proxy_saw(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], address: str
) -> None:
    seen = []

    async def tenant_of(_key: str | None, address: str = "") -> None:
        seen.append(address)
        raise Unauthorized

    monkeypatch.setattr(gate.context.directory, "tenant_of", tenant_of)
    reply = await Call(gate.caller().app, "GET", "/v1/models", headers=headers).finished()
    assert (reply.status, seen) == (401, [address])

"""A flood of unknown keys refuses no tenant that a front has not seen, and the table is read at a bounded rate."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from dispatcher.model.errors import Refused, Unauthorized
from dispatcher.operations.directory import ADDRESSES_MAX, Directory, has_check, key_digest, new_key
from tests.support.asgi import Call
from tests.support.world.memory_gate import Gate

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

"""Tenants and their keys, over the memory store."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dispatcher.model.commands import Silent
from dispatcher.model.errors import ConfigurationError, Unauthorized
from dispatcher.model.tenants import Tenant
from dispatcher.operations import tenants
from dispatcher.operations.directory import CACHE_S
from dispatcher.policies.clocks import Share
from tests.support.gate.memory_gate import POOL, Gate


async def created(gate: Gate, name: str) -> str:
    return await tenants.create(gate.store, gate.ids, gate.clock, Tenant(name))


async def test_a_key_is_shown_once_and_is_valid(gate: Gate) -> None:
    key = await created(gate, "c")
    assert (await gate.context.directory.tenant_of(key)).name == "c"
    (kept,) = await gate.store.keys_of("c")
    assert key not in repr(kept)
    with pytest.raises(ConfigurationError, match="already"):
        await created(gate, "c")


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", "a" * 65, "ü", "a/b", "a#b"])
async def test_names_are_narrow(gate: Gate, name: str) -> None:
    with pytest.raises(ConfigurationError, match="a-z"):
        await created(gate, name)


async def test_rotation_keeps_the_newest_old_key_and_no_more(gate: Gate) -> None:
    keys = [await created(gate, "c")]
    for _ in range(2):
        await asyncio.sleep(CACHE_S + 1)
        keys.append(await tenants.rotate_key(gate.store, gate.ids, gate.clock, "c"))
    with pytest.raises(Unauthorized):
        await gate.context.directory.tenant_of(keys[0])
    for key in keys[1:]:
        assert (await gate.context.directory.tenant_of(key)).name == "c"


async def test_change_delete_and_what_is_not_there(gate: Gate) -> None:
    changed = await tenants.change(gate.store, "a", lambda old: replace(old, share=Share(weight=3)))
    assert (changed.share.weight, changed.version) == (3, 2)
    await tenants.delete(gate.store, "a")
    for work in (tenants.delete(gate.store, "a"), tenants.existing(gate.store, "a")):
        with pytest.raises(ConfigurationError, match="no tenant 'a'"):
            await work


async def test_a_tenant_that_is_created_again_has_a_higher_version(gate: Gate) -> None:
    """However often it was changed before, as long as that was less than once a second."""
    await created(gate, "c")
    first = await tenants.existing(gate.store, "c")
    assert first.version == int(gate.clock.now())
    for number in range(3):
        await asyncio.sleep(1)
        changed = await tenants.change(gate.store, "c", lambda old: replace(old, queue_items_max=9))
        assert changed.version == first.version + number + 1
    await tenants.delete(gate.store, "c")
    await asyncio.sleep(1)
    await created(gate, "c")
    assert (await tenants.existing(gate.store, "c")).version > changed.version


async def booked(gate: Gate) -> tenants.Booking:
    return await tenants.booking(gate.store, await gate.context.link.fleet(), POOL)


async def test_overbooking_is_seen_once_capacity_is_measured(gate: Gate) -> None:
    await gate.add_tenant("owed", Share(rate_per_s=100, burst=1))
    assert not (await booked(gate)).is_overbooked
    gate.add_worker(service_per_s=90.0)
    assert (await booked(gate)).is_overbooked


async def test_a_silent_worker_is_no_capacity(gate: Gate) -> None:
    gate.add_worker(service_per_s=90.0)
    assert (await booked(gate)).capacity_per_s == 90
    gate.shard.decide(Silent("w", is_worker=True))
    assert (await booked(gate)).capacity_per_s == 0


async def test_two_changes_at_once_are_not_both_made(gate: Gate) -> None:
    there = await tenants.existing(gate.store, "a")

    class Late:
        """A store that returns an old configuration: another change came after the read."""

        def __getattr__(self, name: str) -> object:
            return getattr(gate.store, name)

        async def get_tenant(self, name: str) -> Tenant:
            return there

    await tenants.change(gate.store, "a", lambda old: replace(old, queue_items_max=7))
    with pytest.raises(ConfigurationError, match="another operator"):
        await tenants.change(Late(), "a", lambda old: replace(old, queue_items_max=9))  # type: ignore[arg-type]
    assert (await tenants.existing(gate.store, "a")).queue_items_max == 7

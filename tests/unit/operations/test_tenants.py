"""Tenants and their keys, over the memory store."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dispatcher.model.errors import ConfigurationError, Unauthorized
from dispatcher.model.old_invocation import State
from dispatcher.model.tenants import Tenant
from dispatcher.old_operations import tenants
from dispatcher.old_operations.directory import CACHE_S
from dispatcher.old_operations.guarantees import scale_guarantees
from dispatcher.old_operations.settle import settle
from dispatcher.policies.clocks import Share
from tests.support.gate.memory_gate import POOL, Gate
from tests.support.gate.story import dispatched


async def created(gate: Gate, name: str) -> str:
    return await tenants.create(gate.store, gate.ids, gate.clock, Tenant(name, name))


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


async def test_overbooking_is_seen_once_capacity_is_measured(gate: Gate) -> None:
    await gate.add_tenant("owed", Share(rate_per_s=100, burst=1))
    assert not (await tenants.booking(gate.store, gate.clock, POOL)).is_overbooked
    await gate.heartbeat(await gate.worker(), service_per_s=90)
    assert (await tenants.booking(gate.store, gate.clock, POOL)).is_overbooked


async def test_a_dead_worker_is_no_capacity(gate: Gate) -> None:
    await gate.heartbeat(await gate.worker(), service_per_s=90, alive_until=gate.clock.now() + 10)
    assert (await tenants.booking(gate.store, gate.clock, POOL)).capacity_per_s == 90
    await asyncio.sleep(11)
    assert (await tenants.booking(gate.store, gate.clock, POOL)).capacity_per_s == 0


async def test_guarantees_are_scaled_while_the_active_tenants_are_overbooked(gate: Gate) -> None:
    await gate.add_tenant("owed", Share(rate_per_s=200, burst=10))
    await gate.heartbeat(await gate.worker(), service_per_s=100)
    assert await scale_guarantees(gate.context, POOL) == 1.0, "no tenant is active"
    running = await dispatched(gate, "owed", "k")
    assert await scale_guarantees(gate.context, POOL) == pytest.approx(0.45)
    await settle(gate.context, running.invocation, State.DONE)


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

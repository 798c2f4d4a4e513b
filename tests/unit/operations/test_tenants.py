"""Tenants and their keys, over the memory store."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dispatcher.model.errors import ConfigurationError, Unauthorized
from dispatcher.model.tenants import Tenant
from dispatcher.operations import tenants
from dispatcher.operations.directory import CACHE_S
from dispatcher.policies.clocks import Share
from tests.support.gate_world import make_world
from tests.support.virtual_time import run


def test_a_key_is_shown_once_and_opens_the_door() -> None:
    async def story() -> None:
        world = make_world()
        key = await tenants.create(world.store, world.ids, world.clock, Tenant("a", "a"))
        assert (await world.dispatcher().directory.tenant_of(key)).name == "a"
        (kept,) = await world.store.keys_of("a")
        assert key not in repr(kept)
        with pytest.raises(ConfigurationError, match="already"):
            await tenants.create(world.store, world.ids, world.clock, Tenant("a", "a"))

    run(story())


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", "a" * 65, "ü", "a/b", "a#b"])
def test_names_are_narrow(name: str) -> None:
    world_name = "a-z"

    async def story() -> None:
        world = make_world()
        await tenants.create(world.store, world.ids, world.clock, Tenant(name, name))

    with pytest.raises(ConfigurationError, match=world_name):
        run(story())


def test_rotation_keeps_the_newest_old_key_and_no_more() -> None:
    async def story() -> None:
        world = make_world()
        keys = [await tenants.create(world.store, world.ids, world.clock, Tenant("a", "a"))]
        for _ in range(2):
            await asyncio.sleep(CACHE_S + 1)
            keys.append(await tenants.rotate_key(world.store, world.ids, world.clock, "a"))
        directory = world.dispatcher().directory
        with pytest.raises(Unauthorized):
            await directory.tenant_of(keys[0])
        for key in keys[1:]:
            assert (await directory.tenant_of(key)).name == "a"

    run(story())


def test_change_delete_and_what_is_not_there() -> None:
    async def story() -> None:
        world = make_world()
        await world.add_tenant("a")
        changed = await tenants.change(world.store, "a", lambda old: replace(old, share=Share(weight=3)))
        assert (changed.share.weight, changed.version) == (3, 2)
        await tenants.delete(world.store, "a")
        for work in (tenants.delete(world.store, "a"), tenants.existing(world.store, "a")):
            with pytest.raises(ConfigurationError, match="no tenant 'a'"):
                await work

    run(story())


def test_overbooking_is_seen_once_capacity_is_measured() -> None:
    async def story() -> None:
        world = make_world()
        await world.add_tenant("a", Share(rate_per_s=100, burst=1))
        worker = await world.add_worker()
        assert not (await tenants.booking(world.store, world.clock, "default")).is_overbooked
        await world.store.heartbeat(replace(worker, service_per_s=90))
        assert (await tenants.booking(world.store, world.clock, "default")).is_overbooked


def test_a_dead_worker_is_no_capacity() -> None:
    async def story() -> None:
        world = make_world()
        worker = await world.add_worker()
        await world.store.heartbeat(replace(worker, service_per_s=90, alive_until=world.clock.now() + 10))
        assert (await tenants.booking(world.store, world.clock, "default")).capacity_per_s == 90
        await asyncio.sleep(11)
        assert (await tenants.booking(world.store, world.clock, "default")).capacity_per_s == 0

    run(story())


def test_two_changes_at_once_are_not_both_made() -> None:
    async def story() -> None:
        world = make_world()
        await world.add_tenant("a")
        there = await tenants.existing(world.store, "a")

        class Late:
            """A store whose read was overtaken by another's change."""

            def __getattr__(self, name: str) -> object:
                return getattr(world.store, name)

            async def get_tenant(self, name: str) -> Tenant:
                return there

        await tenants.change(world.store, "a", lambda old: replace(old, queue_items_max=7))
        with pytest.raises(ConfigurationError, match="someone else"):
            await tenants.change(Late(), "a", lambda old: replace(old, queue_items_max=9))  # type: ignore[arg-type]
        assert (await tenants.existing(world.store, "a")).queue_items_max == 7

    run(story())

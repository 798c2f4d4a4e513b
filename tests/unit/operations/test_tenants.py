"""Tenants and their keys, over the memory store."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from dispatcher.model.commands import Silent
from dispatcher.model.errors import ConfigurationError, Unauthorized
from dispatcher.model.tenants import AuditRecord, Tenant, name_of
from dispatcher.operations.administration import Booking, StoreAdmin, booking, difference
from dispatcher.operations.directory import CACHE_S, key_prefix
from dispatcher.policies.clocks import Share
from headgate.doctor.after import check_shares
from headgate.doctor.finding import CheckResult
from tests.support.world.memory_gate import Gate

ACTOR = "arn:aws:iam::123456789012:user/ada"


def admin(gate: Gate) -> StoreAdmin:
    return StoreAdmin(gate.store, gate.ids, gate.clock, lambda: ACTOR)


async def created(gate: Gate, name: str) -> str:
    return await admin(gate).create(Tenant(name))


async def test_a_key_is_shown_once_and_is_valid(gate: Gate) -> None:
    key = await created(gate, "c")
    assert (await gate.context.directory.tenant_of(key)).name == "c"
    (kept,) = await admin(gate).keys("c")
    assert key not in repr(kept)
    with pytest.raises(ConfigurationError, match="already"):
        await created(gate, "c")


@pytest.mark.parametrize("odd", [{"weight": 1e-306}, {"rate_per_s": False}, {"burst": "5"}], ids=str)
async def test_a_share_outside_the_bounds_is_refused_in_one_sentence(gate: Gate, odd: dict[str, Any]) -> None:
    await created(gate, "c")
    (setting,) = odd
    with pytest.raises(ConfigurationError, match=f"^{setting} should be .*: .*$"):
        await admin(gate).change("c", odd)
    assert (await admin(gate).existing("c")).share == Share()


async def test_a_tenant_that_is_older_than_the_bounds_is_clamped_named_and_can_be_changed(gate: Gate) -> None:
    old = Tenant("old", share=Share(1e-306, 1e-308, 1e300))
    record = AuditRecord("1", 0.0, ACTOR, "tenant.create", "old", None, {})
    await gate.store.put_tenant(old, expected_version=None, audit=record)
    finding = await check_shares(admin(gate).all)
    assert finding.result is CheckResult.WARNING
    assert [f"old: {setting} should be" in finding.seen for setting in ("weight", "rate_per_s", "burst")] == [True] * 3
    changed = await admin(gate).change("old", {"queue_max": 5})
    assert (changed.queue_items_max, changed.share) == (5, old.share)
    await admin(gate).change("old", {"weight": 2.0, "rate_per_s": 0.0, "burst": 0.0})
    assert (await check_shares(admin(gate).all)).result is CheckResult.OK


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", "a" * 65, "ü", "a/b", "a#b"])
async def test_names_are_narrow(gate: Gate, name: str) -> None:
    with pytest.raises(ConfigurationError, match="a-z"):
        await created(gate, name)


async def test_rotation_keeps_the_newest_old_key_and_no_more(gate: Gate) -> None:
    keys = [await created(gate, "c")]
    for _ in range(2):
        await asyncio.sleep(CACHE_S + 1)
        keys.append(await admin(gate).rotate_key("c"))
    with pytest.raises(Unauthorized):
        await gate.context.directory.tenant_of(keys[0])
    for key in keys[1:]:
        assert (await gate.context.directory.tenant_of(key)).name == "c"


async def test_change_delete_and_what_is_not_there(gate: Gate) -> None:
    changed = await admin(gate).change("a", {"weight": 3.0})
    assert (changed.share.weight, changed.version) == (3, 2)
    await admin(gate).delete("a")
    for work in (admin(gate).delete("a"), admin(gate).existing("a")):
        with pytest.raises(ConfigurationError, match="no tenant 'a'"):
            await work


async def test_a_tenant_that_is_created_again_has_a_higher_version(gate: Gate) -> None:
    """However often it was changed before, as long as that was less than once a second."""
    await created(gate, "c")
    first = await admin(gate).existing("c")
    assert first.version == int(gate.clock.now())
    for number in range(3):
        await asyncio.sleep(1)
        changed = await admin(gate).change("c", {"queue_max": 9})
        assert changed.version == first.version + number + 1
    await admin(gate).delete("c")
    await asyncio.sleep(1)
    await created(gate, "c")
    assert (await admin(gate).existing("c")).version > changed.version


async def booked(gate: Gate) -> Booking:
    return booking(await gate.store.list_tenants(), await gate.pool.link.fleet(), ())


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
    there = await admin(gate).existing("a")

    class Late:
        """A store that returns an old configuration: another change came after the read."""

        def __getattr__(self, name: str) -> object:
            return getattr(gate.store, name)

        async def find_tenant(self, name: str) -> Tenant:
            return there

    await admin(gate).change("a", {"queue_max": 7})
    late = StoreAdmin(Late(), gate.ids, gate.clock, lambda: ACTOR)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="another operator"):
        await late.change("a", {"queue_max": 9})
    assert (await admin(gate).existing("a")).queue_items_max == 7


async def test_each_change_leaves_a_record_with_actor_before_and_after(gate: Gate) -> None:
    key = await created(gate, "c")
    await admin(gate).change("c", {"weight": 2.0, "tier": "premium"})
    await asyncio.sleep(1)
    second = await admin(gate).rotate_key("c", lives_s=60.0)
    await asyncio.sleep(1)
    await admin(gate).rotate_key("c")
    await admin(gate).revoke_key("c", key_prefix(second))
    await admin(gate).delete("c")
    records = await admin(gate).audit(datetime.fromtimestamp(gate.clock.now(), UTC).strftime("%Y-%m"))
    assert {record.actor for record in records} == {ACTOR}
    assert {name_of(record.tenant) for record in records} == {"c"}
    assert len({record.tenant for record in records}) == 1
    by_action: dict[str, list[AuditRecord]] = {}
    for record in records:
        by_action.setdefault(record.action, []).append(record)
    assert {action: len(found) for action, found in by_action.items()} == {
        "tenant.create": 1,
        "key.create": 3,
        "tenant.change": 1,
        "key.delete": 2,
        "tenant.delete": 1,
    }
    (changed,) = by_action["tenant.change"]
    assert difference(changed.before, changed.after) == {"weight": (1.0, 2.0), "tier": ("standard", "premium")}
    (deleted,) = by_action["tenant.delete"]
    assert (deleted.before or {})["weight"] == 2.0
    assert key not in repr(records)
    assert second not in repr(records)


async def test_a_refused_change_leaves_no_record(gate: Gate) -> None:
    await created(gate, "c")
    before = len(await admin(gate).audit("2001-09"))
    for work in (created(gate, "c"), admin(gate).delete("no"), admin(gate).revoke_key("c", "hg-no")):
        with pytest.raises(ConfigurationError):
            await work
    assert len(await admin(gate).audit("2001-09")) == before

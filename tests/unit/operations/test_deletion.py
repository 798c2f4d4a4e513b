"""What the deletion of a tenant does: to requests that wait and run, to keys, and to what is kept for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatcher.model.errors import ConfigurationError, StoreUnavailable, TenantDeleted, Unauthorized
from dispatcher.model.tenants import Tenant
from dispatcher.operations.administration import Deleted, StoreAdmin, TenantData
from dispatcher.operations.directory import CACHE_S, LOOK_S, WAITING_END_S
from tests.support.world.memory_gate import COMPLETION, MODEL, Gate
from tests.support.world.story import batch_gate, begun, line, runner, started
from tests.support.world.worker_client import Act

BODY = {"model": MODEL, "prompt": "hello", "max_tokens": 3}
LONG = Act(token_s=40.0)


def admin(gate: Gate) -> StoreAdmin:
    data = TenantData(gate.store, gate.context.files)
    return StoreAdmin(gate.store, gate.ids, gate.clock, lambda: "ada", data)


async def created(gate: Gate, name: str) -> str:
    """Create a tenant, and return its identity. Its key is that of `name` in `gate.keys`."""
    gate.keys[name] = await admin(gate).create(Tenant(name))
    return (await admin(gate).existing(name)).identity


async def test_waiting_requests_end_with_one_error_and_running_ones_whole(gate: Gate) -> None:
    identity = await created(gate, "acme")
    gate.workers.acts += [LONG, LONG]
    running = [begun(gate, "acme") for _ in range(2)]
    waiting = [begun(gate, "acme", f"k{number}" if number % 2 else "") for number in range(40)]
    await asyncio.sleep(1.0)
    at = gate.clock.now()
    await admin(gate).delete("acme")
    ends = await asyncio.gather(*waiting)
    assert gate.clock.now() - at <= WAITING_END_S
    assert {type(end) for end in ends} == {TenantDeleted}
    assert [getattr(await each, "text", "") for each in running] == ["xxx", "xxx"]
    assert gate.spent(identity) == 2 * (10 + 2 * 3)
    assert len(gate.workers.orders) == 2
    await gate.at_rest()


async def test_the_requests_of_other_tenants_go_on(gate: Gate) -> None:
    await created(gate, "acme")
    gate.workers.acts += [LONG, LONG]
    first = [begun(gate, "b") for _ in range(2)]
    others, gone = [begun(gate, "a") for _ in range(5)], begun(gate, "acme")
    await asyncio.sleep(1.0)
    await admin(gate).delete("acme")
    assert isinstance(await gone, TenantDeleted)
    assert [getattr(await each, "text", "") for each in (*first, *others)] == ["xxx"] * 7


async def test_an_offer_to_a_deleted_tenant_is_not_begun(gate: Gate) -> None:
    """A slot gets free after the process has read that the tenant is gone, and before the request looks."""
    identity = await created(gate, "acme")
    gate.workers.acts += [Act(token_s=2.0)] * 2
    others = [begun(gate, "a") for _ in range(2)]
    await asyncio.sleep(0.1)
    waiting = begun(gate, "acme")
    await asyncio.sleep(0.1)
    await admin(gate).delete("acme")
    with pytest.raises(Unauthorized):
        await gate.context.directory.check_not_deleted(Tenant(identity))
    assert isinstance(await waiting, TenantDeleted)
    assert gate.clock.now() < 1_000_000_000 + LOOK_S, "it has not looked yet"
    await asyncio.gather(*others)
    assert len(gate.workers.orders) == 2
    assert gate.spent(identity) == 0
    await gate.at_rest()


async def test_a_request_waits_on_while_the_store_is_away(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    await created(gate, "acme")
    gate.workers.acts += [LONG, LONG]
    running = [begun(gate, "a") for _ in range(2)]
    waiting = begun(gate, "acme")
    await asyncio.sleep(1.0)

    async def away(identity: str) -> Any:
        raise StoreUnavailable

    monkeypatch.setattr(gate.store, "get_tenant", away)
    assert getattr(await waiting, "text", "") == "xxx"
    await asyncio.gather(*running)


async def test_a_waiting_request_costs_one_read_each_look(gate: Gate) -> None:
    await created(gate, "acme")
    gate.workers.acts += [LONG, LONG]
    running = [begun(gate, "a") for _ in range(2)]
    waiting = [begun(gate, "acme") for _ in range(30)]
    await asyncio.sleep(1.0)
    counts = gate.store.requests
    before, at = counts["get TENANT"], gate.clock.now()
    await asyncio.gather(*running)
    assert 0 < counts["get TENANT"] - before <= (gate.clock.now() - at) / LOOK_S + 1
    await asyncio.gather(*waiting)


async def test_keys_stop_within_a_minute_and_at_once_for_kept_data(gate: Gate) -> None:
    await created(gate, "acme")
    caller = gate.caller("acme")
    response = (await caller.post("/v1/responses", {"model": MODEL, "input": "hello"})).json()
    answered = (await caller.post(COMPLETION, BODY, idempotency_key="k")).json()
    reads = [f"/v1/responses/{response['id']}", f"/v1/responses/{response['id']}/input_items", "/v1/usage"]
    assert [(await caller.get(path)).status for path in reads] == [200] * 3
    await admin(gate).delete("acme")
    assert (await caller.post(COMPLETION, BODY, idempotency_key="k")).json()["id"] != answered["id"]
    again = {"model": MODEL, "input": "and?", "previous_response_id": response["id"]}
    assert (await caller.post("/v1/responses", again)).status == 400, "it is erased"
    assert [(await caller.get(path)).status for path in reads] == [401] * 3
    await asyncio.sleep(CACHE_S)
    assert (await caller.post(COMPLETION, BODY)).status == 401


async def test_callers_of_one_key_that_wait_together_get_the_same_error(gate: Gate) -> None:
    await created(gate, "acme")
    gate.workers.acts += [LONG, LONG]
    running = [begun(gate, "a") for _ in range(2)]
    await asyncio.sleep(1.0)
    caller = gate.caller("acme")
    waiting = [asyncio.ensure_future(caller.post(COMPLETION, BODY, idempotency_key="k")) for _ in range(3)]
    await asyncio.sleep(1.0)
    await admin(gate).delete("acme")
    ends = await asyncio.gather(*waiting)
    assert {end.status for end in ends} == {403}
    assert {end.json()["error"]["code"] for end in ends} == {"tenant_deleted"}
    await asyncio.gather(*running)


async def test_the_deleter_erases_what_is_kept_and_can_repeat_it() -> None:
    gate = await batch_gate()
    identity = await created(gate, "acme")
    batch = await started(gate, line("a"), tenant=identity)
    assert await admin(gate).delete("acme") == Deleted(identity, is_erased=False)
    assert await gate.store.batch(identity, batch.id) is not None, "the process that runs it stops it first"
    async with runner(gate):
        await gate.clock.sleep(WAITING_END_S)
    assert await gate.store.batch(identity, batch.id) is None
    assert gate.context.files.blobs == {}  # type: ignore[union-attr]
    assert await admin(gate).delete(identity) == Deleted(identity, is_erased=True)
    for name in ("acme", "other"):  # without an id a name may be a typing error
        with pytest.raises(ConfigurationError, match="no tenant"):
            await admin(gate).delete(name)


async def test_a_deletion_that_breaks_off_can_be_repeated_by_the_identity(gate: Gate) -> None:
    identity = await created(gate, "acme")
    response = (await gate.caller("acme").post("/v1/responses", {"model": MODEL, "input": "hello"})).json()

    class Breaks(TenantData):
        async def erase(self, identity: str) -> bool:
            raise StoreUnavailable

    broken = StoreAdmin(gate.store, gate.ids, gate.clock, lambda: "ada", Breaks(gate.store, None))
    with pytest.raises(StoreUnavailable):
        await broken.delete("acme")
    assert await gate.store.find_tenant("acme") is None
    assert await gate.store.response(identity, response["id"]) is not None
    await admin(gate).delete(identity)
    assert await gate.store.response(identity, response["id"]) is None


async def test_an_unread_tenant_does_not_count_as_deleted(gate: Gate) -> None:
    """Only a process that has read the tenant before can find it deleted."""
    assert not gate.context.directory.is_deleted("never-read")
    await gate.context.directory.look_again("never-read")
    assert not gate.context.directory.is_deleted("never-read")


async def test_an_answer_that_is_not_erased_yet_is_not_shown(gate: Gate) -> None:
    """DynamoDB keeps it until it expires, and this front still knows the key."""
    await created(gate, "acme")
    caller = gate.caller("acme")
    assert (await caller.post(COMPLETION, BODY, idempotency_key="k")).status == 200
    response = (await caller.post("/v1/responses", {"model": MODEL, "input": "hello"})).json()
    await StoreAdmin(gate.store, gate.ids, gate.clock, lambda: "ada").delete("acme")
    assert (await caller.post(COMPLETION, BODY, idempotency_key="k")).status == 401
    again = {"model": MODEL, "input": "and?", "previous_response_id": response["id"]}
    assert (await caller.post("/v1/responses", again)).status == 401
    await gate.at_rest()

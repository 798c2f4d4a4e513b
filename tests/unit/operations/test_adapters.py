"""Adapters of a model: who may name one in place of a model, where the call waits, and what the worker is ordered."""

from __future__ import annotations

import asyncio

import pytest

from dispatcher.model.commands import Accept, Leave
from dispatcher.model.errors import NoWorker, UnknownModel
from dispatcher.model.fleet import TEXT
from dispatcher.model.tenants import Tenant
from dispatcher.operations.calls.call import order_of
from dispatcher.operations.calls.detached import execute_detached
from dispatcher.operations.pools import FRESH_S, FleetView, Pool, Pools
from dispatcher.stores.records.tenants import tenant_record, to_tenant
from tests.support.world.memory_gate import Gate
from tests.support.world.story import accepted, dispatched, queued, read, submitted, take_slots

ADAPTED = (*sorted(TEXT), "adapter:law", "adapter:sql")
MAY = Tenant("may", adapters=("sql",))


@pytest.fixture
async def adapted(gate: Gate) -> Gate:
    gate.add_worker("w", capabilities=ADAPTED)
    await gate.add_tenant("may", adapters=("sql",))
    await gate.add_tenant("narrow", models=("other",), adapters=("sql",))
    await asyncio.sleep(FRESH_S)
    return gate


def view(gate: Gate) -> FleetView:
    return FleetView(gate.link(), gate.clock)


async def test_the_call_waits_for_the_model_and_the_worker_is_ordered_the_adapter(adapted: Gate) -> None:
    for tenant in ("may", "narrow"):
        found = await dispatched(adapted, tenant, model="sql")
        (accept,) = [each for each in adapted.shard.commands if isinstance(each, Accept) and each.id == found.call.id]
        order = order_of(found.call, found.outcome)  # type: ignore[arg-type]
        assert (accept.terms.model, order.terms.model) == ("m", "sql")
        assert (await read(found)).output_tokens == 3
    plain = await accepted(adapted, "may")
    assert (plain.call.terms.model, plain.call.request.model) == ("m", "m")
    plain.leave()


@pytest.mark.parametrize(("tenant", "model"), [("a", "sql"), ("may", "law"), ("narrow", "m"), ("narrow", "law")])
async def test_without_permission_an_adapter_is_an_unknown_model(adapted: Gate, tenant: str, model: str) -> None:
    with pytest.raises(UnknownModel) as refused:
        await submitted(adapted, tenant, model=model)
    with pytest.raises(UnknownModel) as unknown:
        await submitted(adapted, tenant, model="none")
    assert refused.value.message.replace(repr(model), "X") == unknown.value.message.replace(repr("none"), "X")


async def test_an_adapter_is_used_once_every_worker_of_its_model_has_it(adapted: Gate) -> None:
    """The gate may send the call to any of them."""
    assert (await view(adapted).worker_for(MAY, "sql")).model == "m"
    adapted.add_worker("new")
    with pytest.raises(NoWorker):
        await view(adapted).worker_for(MAY, "sql")
    with pytest.raises(UnknownModel):
        await view(adapted).worker_for(Tenant("a"), "sql")
    adapted.shard.decide(Leave("new"))
    assert (await view(adapted).worker_for(MAY, "sql")).worker == "w"


async def test_a_model_comes_before_an_adapter_of_its_name(adapted: Gate) -> None:
    adapted.add_worker("s", model="sql")
    assert (await view(adapted).worker_for(MAY, "sql")).worker == "s"
    narrow = Tenant("narrow", models=("other",), adapters=("sql",))
    assert (await view(adapted).worker_for(narrow, "sql")).worker == "w"


async def test_an_adapter_names_its_pool(adapted: Gate) -> None:
    class Empty:
        async def fleet(self) -> tuple[()]:
            return ()

    empty = Pool(Empty(), adapted.clock, "empty", models=("e",), adapters=("e-sql",))  # type: ignore[arg-type]
    full = Pool(adapted.link(), adapted.clock, "full", models=("m",))
    pools = Pools(empty, full)
    found = [(await pools.serving(name)).name for name in ("e-sql", "sql", "law", "m")]
    assert found == ["empty", "full", "full", "full"]


async def test_another_process_executes_a_stored_call_with_its_adapter(adapted: Gate) -> None:
    busy = await take_slots(adapted, max_tokens=1)
    waiting = await queued(adapted, "may", "k", model="sql")
    waiting.leave()
    await busy
    await asyncio.sleep(0)
    await adapted.shard.settle()
    assert await execute_detached(adapted.process(), waiting.call.id)
    assert (await adapted.ended("may", "k", "done")).output_tokens == 3
    assert [order.terms.model for _, order in adapted.workers.orders if order.invocation == waiting.call.id] == ["sql"]


def test_a_tenants_adapters_are_stored_and_those_of_older_records_are_none() -> None:
    assert to_tenant(tenant_record(MAY)) == MAY
    older = {name: value for name, value in tenant_record(MAY).items() if name != "adapters"}
    assert to_tenant(older).adapters == ()

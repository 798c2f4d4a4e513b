"""Several pools behind one front: which pool has a request, and what one pool does not do to another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from dispatcher.model.commands import Accept, Leave, Waiting
from dispatcher.model.errors import InvalidRequest, NoWorker, StoreUnavailable, UnknownModel
from dispatcher.model.usage import HOUR_S
from dispatcher.operations.calls.answer import progress_of
from dispatcher.operations.calls.detached import execute_detached, serve_launched
from dispatcher.operations.calls.submit import Known
from dispatcher.operations.pools import FRESH_S, REMEMBERED_S
from dispatcher.operations.scaling import Waking
from dispatcher.operations.usage import usage_of
from dispatcher.policies.planning.slo import SloClass, SloClasses
from tests.support.scaling import CountedService
from tests.support.world.in_process import InProcessGate
from tests.support.world.memory_gate import TwoPools, two_pools
from tests.support.world.story import accepted, begun, errors, line, output, played, queued, read, started, submitted

NIGHT = SloClasses([SloClass("normal", 60.0), SloClass("night", 3600.0, is_deferred=True)])


@pytest.fixture
async def pools() -> AsyncIterator[TwoPools]:
    made = await two_pools(code={"deadline_s": 60.0})
    yield made
    await made.at_rest()


def models_of(shard: InProcessGate) -> set[str]:
    return {command.terms.model for command in shard.commands if isinstance(command, Accept)}


async def test_each_model_goes_to_its_pool_with_the_pools_deadline(pools: TwoPools) -> None:
    for model, pool, deadline_s in (("m", "chat", 300.0), ("n", "code", 60.0)):
        found = await accepted(pools.gate, "a", model=model)
        assert (found.call.pool, found.call.terms.deadline_at - found.call.created_at) == (pool, deadline_s)
        assert (await read(found)).output_tokens == 3
    assert (models_of(pools.chat), models_of(pools.code)) == ({"m"}, {"n"})


async def test_a_model_that_no_configuration_names_goes_to_the_pool_that_has_a_worker_of_it(pools: TwoPools) -> None:
    bare = pools.process(models={})
    assert [(await bare.pools.serving(model)).name for model in ("m", "n", "unknown")] == ["chat", "code", "chat"]


async def test_an_unknown_model_is_unknown_while_any_pool_has_workers(pools: TwoPools) -> None:
    pools.chat.decide(Leave("w"))
    await asyncio.sleep(REMEMBERED_S)
    with pytest.raises(UnknownModel):
        await submitted(pools.gate, "a", model="unknown")
    pools.code.decide(Leave("coder"))
    await asyncio.sleep(FRESH_S)
    with pytest.raises(NoWorker):
        await submitted(pools.gate, "a", model="unknown")


async def test_an_unnamed_model_is_not_refused_for_a_pool_that_cannot_be_read(pools: TwoPools) -> None:
    bare = pools.process(models={"chat": "m"})
    pools.code.down = True
    with pytest.raises(StoreUnavailable):
        await submitted(pools.gate, "a", model="n", context=bare)
    assert (await read(await accepted(pools.gate, "a", context=bare))).output_tokens == 3
    pools.code.down = False


async def test_a_pool_that_is_down_leaves_the_calls_of_the_other_alone(pools: TwoPools) -> None:
    pools.code.down = True
    with pytest.raises(StoreUnavailable):
        await submitted(pools.gate, "a", model="n")
    assert (await read(await accepted(pools.gate, "a", model="m"))).output_tokens == 3
    pools.code.down = False


async def test_a_full_queue_in_one_pool_refuses_nothing_in_the_other(pools: TwoPools) -> None:
    await pools.gate.add_tenant("small", queue_items_max=0)
    busy = [asyncio.ensure_future(begun(pools.gate, "a", model="m", max_tokens=5)) for _ in range(2)]
    await asyncio.sleep(0.05)
    asked = {"model": "m", "prompt": "hello", "max_tokens": 3}
    caller = pools.gate.caller("small")
    assert [(await caller.post("/v1/completions", asked)).status for _ in range(2)] == [429, 429]
    assert (await caller.post("/v1/completions", {**asked, "model": "n"})).status == 200
    await asyncio.gather(*busy)


async def test_a_tenant_waits_in_each_pool_for_itself(pools: TwoPools) -> None:
    busy = [asyncio.ensure_future(begun(pools.gate, "a", model="m", max_tokens=20)) for _ in range(2)]
    await asyncio.sleep(0.05)
    waiting = await queued(pools.gate, "a", model="m")
    assert isinstance(waiting.outcome, Waiting)
    assert (await read(await accepted(pools.gate, "a", model="n"))).output_tokens == 3
    assert not any(each.done() for each in busy)
    await asyncio.gather(*busy, read(waiting))


async def test_a_stored_call_stays_in_the_pool_that_has_it(pools: TwoPools) -> None:
    """Meanwhile the model belongs to another pool: processes with the new configuration find and execute the call."""
    busy = [asyncio.ensure_future(begun(pools.gate, "b", model="n", max_tokens=20)) for _ in range(2)]
    await asyncio.sleep(0.05)
    waiting = await queued(pools.gate, "a", "k", model="n")
    moved = pools.process(models={"chat": "n"})
    pools.chat.report("moved", model="n")
    item = await pools.gate.item("a", "k")
    assert (item.pool, (await progress_of(moved, item)).status) == ("code", "queued")
    again = await submitted(pools.gate, "a", "k", model="n", context=moved)
    assert isinstance(again, Known)
    again.leave()
    waiting.leave()
    await asyncio.gather(*busy)
    await pools.settle()
    assert await execute_detached(moved, waiting.call.id)
    await pools.gate.ended("a", "k", "done")
    assert models_of(pools.chat) == set()


async def test_a_stored_call_of_a_pool_that_is_gone_is_looked_for_where_its_model_is(pools: TwoPools) -> None:
    found = await accepted(pools.gate, "a", "k", model="n")
    await read(found)
    item = await pools.gate.item("a", "k")
    assert (await pools.context.pools.holding(replace(item, pool="gone"))).name == "code"


async def test_executors_serve_the_leader_of_each_pool(pools: TwoPools) -> None:
    serving = [asyncio.ensure_future(serve_launched(pools.context, pool)) for pool in pools.context.pools]
    for key, model, shard in (("k1", "m", pools.chat), ("k2", "n", pools.code)):
        found = await accepted(pools.gate, "a", key, model=model)
        link = shard.links[pools.context.link(found.call.pool).process]
        link.launches.put_nowait((found.call.id, 1))
        await read(found)
        await pools.gate.ended("a", key, "done")
    for task in serving:
        task.cancel()


async def test_usage_is_summed_over_pools(pools: TwoPools) -> None:
    for model in ("m", "n", "n"):
        await begun(pools.gate, "a", model=model)
    hour = int(pools.gate.clock.now() // HOUR_S)
    (row,) = await usage_of(pools.context, "a", hour, hour + 1)
    assert (row.requests, row.output_tokens) == (3, 9)
    await pools.gate.store.put_usage("code", pools.code.shard.usage_rows())
    (row,) = await usage_of(pools.context, "a", hour, hour + 1)
    assert (row.requests, row.output_tokens) == (3, 9), "what is projected already is not counted again"


async def test_only_the_empty_pool_of_the_model_starts_a_worker(pools: TwoPools) -> None:
    services = {}
    for pool in pools.context.pools:
        services[pool.name] = CountedService()
        pool.waking = Waking(services[pool.name], pool.models, 120.0, pools.gate.clock)
    pools.chat.decide(Leave("w"))
    pools.code.decide(Leave("coder"))
    await asyncio.sleep(FRESH_S)
    with pytest.raises(NoWorker) as raised:
        await submitted(pools.gate, "a", model="n")
    assert raised.value.retry_after_s == 120.0
    assert (services["chat"].sets, services["code"].sets) == ([], [1])


async def test_the_lines_of_a_batch_go_to_the_pools_of_their_models() -> None:
    """A line whose pool has no deferred class fails alone."""
    pools = await two_pools(chat={"slo_classes": NIGHT}, code={"slo_classes": NIGHT})
    over = await played(pools.gate, line("one"), line("two", model="n"))
    assert (over.completed, over.failed) == (2, 0)
    assert [each["custom_id"] for each in await output(pools.gate, over)] == ["one", "two"]
    assert (models_of(pools.chat), models_of(pools.code)) == ({"m"}, {"n"})
    await pools.at_rest()


async def test_a_line_for_a_pool_without_a_deferred_class_fails_alone() -> None:
    pools = await two_pools(code={"slo_classes": NIGHT})
    over = await played(pools.gate, line("one"), line("two", model="n"))
    assert (over.completed, over.failed) == (1, 1)
    (wrong,) = await errors(pools.gate, over)
    assert wrong["custom_id"] == "one"
    assert "The pool of this model has no deferred SLO class" in wrong["response"]["body"]["error"]["message"]
    bare = await two_pools()
    with pytest.raises(InvalidRequest, match="This service has no deferred SLO class"):
        await started(bare.gate, line("one"))

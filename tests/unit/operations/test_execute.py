"""execute and settle: lost attempts, duplicates, one charge, and one end."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from dispatcher.model.errors import DeadlineExceeded, Preempted, Refused, StoreUnavailable, TenantError, WorkerFailed
from dispatcher.model.old_invocation import Invocation, State
from dispatcher.model.old_outcomes import Known, Settled
from dispatcher.old_operations.answer import answer, result_of
from dispatcher.old_operations.drain import drain
from dispatcher.old_operations.execute import Collected, Render, execute_detached
from dispatcher.old_operations.settle import give_back, settle, settle_lost
from dispatcher.old_operations.submit import RETRIES_PER_ID_MAX, latest
from dispatcher.policies.clocks import Share
from dispatcher.policies.tiers import Tier
from tests.support.gate.memory_gate import POOL, Gate
from tests.support.gate.store_faults import Slow
from tests.support.gate.story import asked, begun, dispatched, followed, kept, queued, submission, submitted
from tests.support.gate.worker_client import FULL, SHED, UNREACHABLE, Act, dies_after, refuses

COUNTS: dict[str, Any] = {"input_tokens": 10, "output_tokens": 3}


def render(_: Invocation) -> Render:
    return kept


class FailsOnce:
    """The table is out of reach for the first write of the kind named."""

    def __init__(self, operation: str, *, applied: bool) -> None:
        self.operation = operation
        self.applied = applied

    async def before(self, operation: str) -> None:
        if not self.applied:
            self._fail(operation)

    async def after(self, operation: str) -> None:
        if self.applied:
            self._fail(operation)

    def _fail(self, operation: str) -> None:
        if operation == self.operation:
            self.operation = ""
            raise StoreUnavailable()


async def detached(gate: Gate, invocation_id: str = "k") -> tuple[str, str, int]:
    """Dispatch a detached invocation, and return the message that names it."""
    await dispatched(gate, "a", invocation_id, keep_body=True, keep_answer=True, detached=True)
    return "a", invocation_id, 1


# ── Detached ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_that_comes_five_times_at_once_executes_it_once(gate: Gate) -> None:
    message = await detached(gate)
    done = await asyncio.gather(*(execute_detached(gate.context, *message, render) for _ in range(5)))
    await gate.quiet()
    assert sorted(done) == [False] * 4 + [True]
    ended = await gate.ended("a", "k", State.DONE)
    assert (ended.attempt, ended.result) == (1, kept(Collected(["xxx"])))
    assert await gate.spent("a") == 16.0
    assert gate.context.suspects == {}


async def test_a_message_of_an_earlier_attempt_does_nothing(gate: Gate) -> None:
    message = await detached(gate)
    gate.workers.acts.append(dies_after(1))
    assert await execute_detached(gate.context, *message, render)
    await asyncio.sleep(gate.context.settings.lease_grace_s + 1)
    await drain(gate.context, POOL)
    await gate.quiet()
    assert not await execute_detached(gate.context, *message, render)
    assert gate.launcher.launched == [("a", "k", 2)]
    assert await execute_detached(gate.context, *gate.launcher.launched[0], render)
    ended = await gate.ended("a", "k", State.DONE)
    assert (ended.attempt, await gate.spent("a")) == (2, 16.0)


@pytest.mark.parametrize("message", [("a", "never", 1), ("unknown", "k", 1), ("a", "k", 2), ("b", "k", 1)])
async def test_a_message_that_names_nothing_does_nothing(gate: Gate, message: tuple[str, str, int]) -> None:
    await detached(gate)
    assert not await execute_detached(gate.context, *message, render)
    assert gate.workers.orders == []
    await execute_detached(gate.context, "a", "k", 1, render)


async def test_what_a_caller_holds_is_not_executed_by_a_message(gate: Gate) -> None:
    holding = await dispatched(gate, "a", "k", keep_body=True)
    assert not await execute_detached(gate.context, "a", "k", 1, render)
    await settle(gate.context, holding.invocation, State.DONE)


async def test_three_lost_attempts_end_it_refunded(gate: Gate) -> None:
    await detached(gate)
    gate.workers.acts.extend([dies_after(2)] * 9)
    for attempt in (1, 2, 3):
        assert await execute_detached(gate.context, "a", "k", attempt, render)
        await asyncio.sleep(gate.context.settings.lease_grace_s + 1)
        await drain(gate.context, POOL)
        await gate.quiet()
    ended = await gate.ended("a", "k", State.FAILED)
    assert (ended.attempt, ended.served, ended.body) == (3, 0.0, None)
    assert ended.result is not None
    assert json.loads(ended.result.body)["error"]["code"] == "worker_failed"


@pytest.mark.parametrize("applied", [False, True])
async def test_where_the_settlement_cannot_be_written_the_message_comes_again(gate: Gate, applied: bool) -> None:
    message = await detached(gate)
    gate.store.faults = FailsOnce("settle", applied=applied)
    with pytest.raises(StoreUnavailable):
        await execute_detached(gate.context, *message, render)
    assert await execute_detached(gate.context, *message, render) is not applied
    await gate.ended("a", "k", State.DONE)
    assert await gate.spent("a") == 16.0


async def test_what_is_impossible_ends_with_its_error(gate: Gate) -> None:
    message = await detached(gate)
    gate.workers.acts.append(refuses(400, "context_length_exceeded"))
    assert await execute_detached(gate.context, *message, render)
    ended = await gate.ended("a", "k", State.FAILED)
    assert ended.result is not None
    assert (ended.result.status, ended.served) == (400, 0.0)


# ── On an open connection ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("act", [UNREACHABLE, FULL, dies_after(0), refuses(500), refuses(401), Act(aborts_after=0)])
async def test_what_says_nothing_of_the_request_is_tried_elsewhere_under_the_next_number(gate: Gate, act: Act) -> None:
    await gate.add_worker("v")
    gate.workers.acts.append(act)
    assert isinstance(await followed(gate, "a", "k"), Collected)
    await gate.quiet()
    (first, one), (second, two) = gate.workers.orders
    assert (first != second, one.attempt, two.attempt) == (True, 1, 2)
    assert await gate.spent("a") == 16.0
    assert list(gate.context.suspects) == [first]


@pytest.mark.parametrize(
    "act", [dies_after(2), Act(aborts_after=2), Act(ends_silently_after=2)], ids=["dies", "aborts", "ends"]
)
async def test_what_was_delivered_is_charged_and_not_tried_again(gate: Gate, act: Act) -> None:
    gate.workers.acts.append(act)
    assert isinstance(await followed(gate, "a", "k"), WorkerFailed)
    await gate.quiet()
    ended = await gate.ended("a", "k", State.FAILED)
    assert (ended.attempt, ended.served) == (1, 10 + 2 * 2)


async def test_a_worker_that_stops_at_the_deadline_was_late_not_lost(gate: Gate) -> None:
    assert isinstance(await followed(gate, "a", "k", deadline_s=0.25, max_tokens=99), DeadlineExceeded)
    ended = await gate.ended("a", "k", State.FAILED)
    assert ended.attempt == 1
    assert ended.served > 10


async def test_a_refusal_below_500_is_the_tenants_with_its_code(gate: Gate) -> None:
    gate.workers.acts.append(refuses(422, "invalid_order", "No."))
    got = await followed(gate, "a", "k")
    assert isinstance(got, TenantError)
    assert (got.status, got.code, got.message) == (422, "invalid_order", "No.")


async def test_what_is_shed_costs_nothing_frees_its_slot_and_is_tried_nowhere_else(gate: Gate) -> None:
    await gate.add_worker("v")
    gate.workers.acts.append(SHED)
    got = await followed(gate, "a", "k")
    assert isinstance(got, Refused)
    assert (got.status, got.code, got.type, got.retry_after_s) == (429, "overloaded", "rate_limit_error", 7.0)
    await gate.quiet()
    ended = await gate.ended("a", "k", State.FAILED)
    assert (ended.attempt, ended.served, await gate.spent("a")) == (1, 0.0, 0.0)
    assert (await gate.leases(), len(gate.workers.orders)) == ({}, 1)
    assert gate.context.suspects == {}, "it is well: it only has too much to do"


async def test_a_shed_storm_is_one_order_a_request(gate: Gate) -> None:
    gate.workers.acts.extend([SHED] * 12)
    got = await asyncio.gather(*(begun(gate, "a", f"{n}") for n in range(12)))
    assert all(isinstance(one, Refused) for one in got)
    await gate.quiet()
    assert len(gate.workers.orders) == 12
    assert await gate.spent("a") == 0.0


@pytest.mark.parametrize("tokens", [0, 2])
async def test_what_is_dropped_is_charged_what_it_generated_once(gate: Gate, tokens: int) -> None:
    gate.workers.acts.append(Act(drops_after=tokens))
    got = await followed(gate, "a", "k")
    assert isinstance(got, Preempted)
    assert (got.status, got.code, got.type, got.retry_after_s) == (503, "preempted", "server_error", 12.0)
    await gate.quiet()
    charged = 10 + 2 * tokens if tokens else 0
    ended = await gate.ended("a", "k", State.FAILED)
    assert (ended.attempt, ended.served, await gate.spent("a")) == (1, charged, charged)
    assert await settle_lost(gate.store, gate.clock, "a", "k", 1, **COUNTS) is Settled.FENCED
    assert await gate.spent("a") == charged
    assert gate.context.suspects == {}


async def test_a_detached_one_ends_with_the_workers_answer(gate: Gate) -> None:
    message = await detached(gate)
    gate.workers.acts.append(SHED)
    assert await execute_detached(gate.context, *message, render)
    ended = await gate.ended("a", "k", State.FAILED)
    assert ended.result is not None
    assert (ended.result.status, json.loads(ended.result.body)["retry_after_s"]) == (429, 7.0)
    assert await gate.spent("a") == 0.0


async def test_a_shed_key_is_served_when_it_comes_back(gate: Gate) -> None:
    gate.workers.acts.extend([SHED, Act(drops_after=0)])
    more = {"keep_answer": True, "keep_body": True}
    assert isinstance(await followed(gate, "a", "k", **more), Refused)
    assert isinstance(await followed(gate, "a", "k", **more), Preempted)
    assert isinstance(await followed(gate, "a", "k", **more), Collected)
    await gate.quiet()
    again = await submitted(gate, "a", "k", **more)
    assert isinstance(again, Known)
    assert again.invocation.state is State.DONE, "and is one invocation ever after"
    last = await latest(gate.context, "a", "k")
    assert last == again.invocation
    assert await latest(gate.context, "a", "never") is None
    assert await gate.spent("a") == 16.0


async def test_a_key_that_failed_for_good_stays_so(gate: Gate) -> None:
    gate.workers.acts.append(refuses(400, "context_length_exceeded"))
    await followed(gate, "a", "k")
    assert isinstance(await submitted(gate, "a", "k"), Known)


async def test_one_key_cannot_be_shed_without_end(gate: Gate) -> None:
    gate.workers.acts.extend([SHED] * RETRIES_PER_ID_MAX)
    for _ in range(RETRIES_PER_ID_MAX):
        assert isinstance(await followed(gate, "a", "k"), Refused)
    known = await submitted(gate, "a", "k")
    assert isinstance(known, Known)
    with pytest.raises(TenantError) as caught:
        await result_of(gate.context, known)
    assert (caught.value.status, caught.value.retry_after_s) == (429, 7.0)


async def test_what_the_client_says_of_its_request_goes_along_and_nothing_else(gate: Gate) -> None:
    await gate.add_tenant("first", tier=Tier.PREMIUM)
    request = replace(asked(), app="chat", stage=2, interaction="i-7")
    await followed(gate, "first", "k", request=request)
    ((_, order),) = gate.workers.orders
    assert (order.app, order.stage, order.interaction, order.tier) == ("chat", 2, "i-7", Tier.PREMIUM)
    assert order.cache_salt == "", "whoever signs the order knows it"


async def test_not_tried_again_after_its_deadline(gate: Gate) -> None:
    gate.workers.acts.append(Act(start_s=6.0, breaks_after=0))
    assert isinstance(await followed(gate, "a", "k", deadline_s=5.0), WorkerFailed)
    assert len(gate.workers.orders) == 1


async def test_a_worker_that_failed_is_passed_over_for_a_while(gate: Gate) -> None:
    await gate.add_worker("v")
    gate.workers.acts.append(UNREACHABLE)
    await followed(gate, "a", "k")
    suspect = gate.workers.orders[0][0]
    others = await asyncio.gather(*(begun(gate, "a", f"{n}") for n in range(6)))
    assert all(isinstance(one, Collected) for one in others)
    assert suspect not in [worker for worker, _ in gate.workers.orders[1:]]
    await asyncio.sleep(gate.context.settings.lease_grace_s + 1)
    await asyncio.gather(*(begun(gate, "a", f"again{n}") for n in range(4)))
    assert suspect in [worker for worker, _ in gate.workers.orders[7:]]


async def test_a_slot_never_holds_more_than_one(gate: Gate) -> None:
    await asyncio.gather(*(begun(gate, name, f"{name}{n}") for n in range(20) for name in ("a", "b")))
    assert gate.workers.most_live["w"] == 2


@pytest.mark.parametrize("after_s", [0.0, 0.0995, 0.1, 0.1005, 0.3, 0.4])
async def test_closing_the_answer_at_any_moment_leaves_nothing(gate: Gate, after_s: float) -> None:
    """At 0.3 the slot that it waits for is freed, so that it is dispatched as its caller leaves."""
    busy = [begun(gate, "b", f"{n}", max_tokens=2) for n in range(2)]
    await asyncio.sleep(0.001)
    asking = begun(gate, "a", "k", max_tokens=5)
    await asyncio.sleep(after_s)
    asking.cancel()
    await asyncio.wait({asking})
    await asyncio.gather(*busy)
    await gate.quiet()
    await gate.ended("a", "k", State.CANCELLED)


@pytest.mark.parametrize("after_s", [0.11, 0.16, 0.21, 0.26, 0.31])
async def test_closed_while_its_lost_attempt_is_being_given_back_it_is_not_dispatched_again(
    gate: Gate, after_s: float
) -> None:
    await gate.add_worker("v")
    gate.store.faults = Slow(0.05)
    gate.workers.acts.append(UNREACHABLE)
    asking = begun(gate, "a", "k", max_tokens=20)
    await asyncio.sleep(0.1 + after_s)
    asking.cancel()
    await asyncio.wait({asking})
    await asyncio.sleep(1.0)
    await gate.quiet()
    await gate.ended("a", "k", State.CANCELLED)


async def test_closed_while_its_end_is_being_settled_it_is_settled_all_the_same(gate: Gate) -> None:
    gate.store.faults = Slow(0.05, "settle")
    asking = begun(gate, "a", "k", keep_answer=True)
    await asyncio.sleep(0.33)
    asking.cancel()
    await asyncio.wait({asking})
    await gate.quiet()
    assert (await gate.ended("a", "k", State.DONE)).served == 16.0


async def test_the_weight_and_the_tier_are_the_tenants(gate: Gate) -> None:
    await gate.add_tenant("heavy", Share(weight=7.0))
    await followed(gate, "heavy", "k")
    ((_, order),) = gate.workers.orders
    assert (order.tenant, order.weight, order.attempt, order.max_tokens) == ("heavy", 7.0, 1, 3)
    assert order.deadline_at == pytest.approx(gate.clock.now() + 300, abs=1)


# ── Settlement ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_at_most_one_of_gate_worker_and_reaper_settles(gate: Gate) -> None:
    running = (await dispatched(gate, "a", "k")).invocation
    outcomes = [
        await settle(gate.context, running, State.DONE, **COUNTS),
        await settle_lost(gate.store, gate.clock, "a", "k", 1, **COUNTS),
        await settle(gate.process(), running, State.FAILED),
    ]
    assert outcomes == [Settled.SETTLED, Settled.FENCED, Settled.FENCED]
    assert await gate.spent("a") == 16.0
    assert (await give_back(gate.context, running, holding=True)) == await gate.invocation("a", "k")


async def test_a_settlement_under_an_older_attempt_is_fenced_off(gate: Gate) -> None:
    first = (await dispatched(gate, "a", "k")).invocation
    again = await give_back(gate.context, first, holding=True)
    assert again is not None
    await gate.quiet()
    second = await gate.invocation("a", "k")
    assert (second.state, second.attempt) == (State.RUNNING, 2)
    assert await settle(gate.context, first, State.DONE, **COUNTS) is Settled.FENCED
    assert await settle_lost(gate.store, gate.clock, "a", "k", 1, **COUNTS) is Settled.FENCED
    assert (await gate.leases()) == {("w", 0): "a/k#2"}
    assert await settle(gate.context, second, State.DONE, **COUNTS) is Settled.SETTLED
    assert await gate.spent("a") == 16.0


async def test_only_what_runs_is_settled_or_given_back(gate: Gate) -> None:
    running = [(await dispatched(gate, "b", f"{n}")).invocation for n in range(2)]
    waiting = (await queued(gate, "a", "k", deadline_s=1.0)).invocation
    with pytest.raises(ValueError, match="only a running"):
        await settle(gate.context, waiting, State.DONE)
    with pytest.raises(ValueError, match="only a running"):
        await give_back(gate.context, replace(waiting, attempt=1), holding=True)
    for one in running:
        await settle(gate.context, one, State.DONE)
    await gate.quiet()
    await settle(gate.context, await gate.invocation("a", "k"), State.DONE)


async def test_true_service_replaces_the_estimate_on_both_clocks(gate: Gate) -> None:
    await gate.add_tenant("owed", Share(weight=2.0, rate_per_s=10.0, burst=100.0))
    running = (await dispatched(gate, "owed", "k", max_tokens=100)).invocation
    before = (await gate.store.snapshot(POOL, "owed")).queue
    assert (before.reserved, before.spent) == (running.estimate, 0.0)
    await settle(gate.context, running, State.DONE, **COUNTS)
    after = (await gate.store.snapshot(POOL, "owed")).queue
    assert (after.reserved, after.spent) == (0.0, 16.0)
    assert after.clocks.vft == pytest.approx(16.0 / 2.0)
    assert after.clocks.tat == pytest.approx(gate.clock.now() - 100 / 10 + 16.0 / 10, abs=1e-5)


async def test_a_lost_attempt_costs_its_tenant_nothing_on_either_clock(gate: Gate) -> None:
    await gate.add_tenant("owed", Share(weight=2.0, rate_per_s=10.0, burst=100.0))
    gate.workers.acts.extend([UNREACHABLE] * 3)
    assert isinstance(await followed(gate, "owed", "k", max_tokens=100, deadline_s=60.0), WorkerFailed)
    await gate.quiet()
    queue = (await gate.store.snapshot(POOL, "owed")).queue
    assert (queue.reserved, queue.spent, queue.clocks.vft) == (0.0, 0.0, 0.0)
    assert queue.clocks.tat <= gate.clock.now() - 100 / 10  # its bucket is full


async def test_an_answer_is_followed_from_the_middle_of_its_wait(gate: Gate) -> None:
    """Dispatched between the queueing and the first look: the poll finds it."""
    running = [(await dispatched(gate, "b", f"{n}")).invocation for n in range(2)]
    asking = await submission(gate, "a", "k")
    waiting = await queued(gate, "a", "k")
    for one in running:
        await settle(gate.process(), one, State.DONE)
    await gate.quiet()
    collected = Collected()
    async for event in answer(gate.context, asking, waiting):
        collected.note(event)
    assert collected.text == "xxx"

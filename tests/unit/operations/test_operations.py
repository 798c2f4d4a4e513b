"""The gate's use cases in virtual time: accepted, ordered, executed, settled, and what happens when it goes wrong."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from dispatcher.model.errors import (
    AnsweredError,
    DeadlineExceeded,
    IdempotencyConflict,
    InvalidRequest,
    NoWorker,
    Refused,
    Unauthorized,
    UnknownModel,
    WorkerFailed,
)
from dispatcher.model.invocation import Result, State
from dispatcher.model.outcomes import Dispatched, Known, Queued, Settled
from dispatcher.model.requests import Request
from dispatcher.operations.answer import answer, result_of, turn_within
from dispatcher.operations.directory import CACHE_S
from dispatcher.operations.drain import drain
from dispatcher.operations.execute import Collected, execute_detached
from dispatcher.operations.guarantees import scale_guarantees
from dispatcher.operations.reap import reap, sweep
from dispatcher.operations.settle import settle, settle_lost
from dispatcher.operations.submit import submit
from dispatcher.policies.clocks import Share
from tests.support.gate_world import make_world, request
from tests.support.virtual_time import run


def kept(collected: Collected) -> Result:
    return Result(200, json.dumps({"text": collected.text}))


class Pausing:
    """A table that takes a moment, so that what runs at once really overlaps."""

    async def before(self, operation: str) -> None:
        await asyncio.sleep(0.01)

    async def after(self, operation: str) -> None:
        return None


class TestAdmission:
    def test_goes_at_once_where_a_slot_is_free_and_is_settled_at_its_true_service(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            await world.add_worker()
            context = world.dispatcher()
            submission = world.submission("a", max_tokens=4)
            got = await world.ask(context, submission)
            await context.finish()
            assert isinstance(got, Collected)
            assert (got.text, got.output_tokens) == ("xxxx", 4)
            ended = await world.invocation(submission)
            assert (ended.state, ended.served, ended.attempt) == (State.DONE, 10 + 2 * 4, 1)
            assert (await world.store.snapshot("default", "a")).queue.spent == 18.0
            await world.at_rest()

        run(story())

    def test_waits_where_none_is_free_and_is_woken_when_one_is(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            await world.add_worker()
            context = world.dispatcher()
            first, second = world.submission("a"), world.submission("a")
            one = asyncio.ensure_future(world.ask(context, first))
            await asyncio.sleep(0.05)
            accepted = await submit(context, second)
            assert isinstance(accepted, Queued)
            assert accepted.position == 1
            async for _ in answer(context, second, accepted):
                pass
            await one
            await context.finish()
            assert world.workers.most_live == 1
            await world.at_rest()

        run(story())

    def test_a_waiter_in_another_process_finds_out_by_polling(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            await world.add_worker()
            here, there = world.dispatcher(), world.dispatcher()
            one = asyncio.ensure_future(world.ask(here, world.submission("a")))
            await asyncio.sleep(0.05)
            got = await world.ask(there, world.submission("a"))
            assert isinstance(got, Collected)
            await one
            for context in (here, there):
                await context.finish()
            await world.at_rest()

        run(story())

    @pytest.mark.parametrize(
        ("asked", "error"),
        [
            (request(model="other"), UnknownModel),
            (request(max_tokens=5000), InvalidRequest),
        ],
    )
    def test_what_cannot_be_served_is_refused_before_anything_is_written(
        self, asked: Request, error: type[AnsweredError]
    ) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            await world.add_worker()
            submission = replace(world.submission("a"), request=asked)
            with pytest.raises(error):
                await submit(world.dispatcher(), submission)
            assert await world.store.get("a", submission.id) is None

        run(story())

    def test_a_prompt_beyond_the_models_context_is_refused(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            worker = await world.add_worker()
            await world.store.heartbeat(replace(worker, context_tokens=50))
            await world.store.leave(worker)
            await world.store.register(replace(worker, id="w2", context_tokens=50))
            with pytest.raises(InvalidRequest, match="context is 50 tokens"):
                await submit(world.dispatcher(), world.submission("a", prompt="x" * 60))

        run(story())

    def test_without_any_worker_nothing_is_accepted(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            with pytest.raises(NoWorker):
                await submit(world.dispatcher(), world.submission("a"))
            await world.add_worker(alive_s=5)
            await asyncio.sleep(6)
            with pytest.raises(NoWorker):
                await submit(world.dispatcher(), world.submission("a"))

        run(story())

    def test_a_full_line_is_429_with_its_limit_and_a_time(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a", queue_items_max=1)
            await world.add_worker()
            context = world.dispatcher()
            for _ in range(2):
                await submit(context, world.submission("a"))
            with pytest.raises(Refused, match="1 of this tenant's requests") as caught:
                await submit(context, world.submission("a"))
            assert caught.value.status == 429
            assert (caught.value.retry_after_s or 0) >= 1

        run(story())


class TestOrder:
    async def queue_three(self, order: str, first_share: Share) -> list[str]:
        """b floods two, then a asks once, while the only slot is taken: who is executed in which order?"""
        world = make_world()
        a = await world.add_tenant("a", first_share)
        b = await world.add_tenant("b")
        await world.add_worker()
        context = world.dispatcher(order)
        tenants = [await context.directory.tenant_of(world.keys[t.name]) for t in (b, b, b, a)]
        asks = []
        for tenant in tenants:
            asks.append(asyncio.ensure_future(world.ask(context, world.submission(tenant))))
            await asyncio.sleep(0.01)
        await asyncio.gather(*asks)
        await context.finish()
        return [order.tenant for _, order in world.workers.orders]

    def test_fcfs_is_arrival_order_whoever_comes(self) -> None:
        assert run(self.queue_three("fcfs", Share())) == ["b", "b", "b", "a"]

    def test_bwfq_serves_first_who_was_served_least(self) -> None:
        assert run(self.queue_three("bwfq", Share())) == ["b", "a", "b", "b"]

    def test_in_profile_goes_before_surplus_whatever_was_served(self) -> None:
        async def story() -> list[str]:
            world = make_world()
            await world.add_tenant("owed", Share(rate_per_s=100, burst=1000))
            await world.add_tenant("fresh")
            await world.add_worker()
            context = world.dispatcher()
            for _ in range(3):  # far ahead on the virtual clock, still within its guarantee
                await world.ask(context, world.submission("owed"))
            asks = [asyncio.ensure_future(world.ask(context, world.submission("owed")))]
            await asyncio.sleep(0.01)
            for name in ("fresh", "owed"):
                asks.append(asyncio.ensure_future(world.ask(context, world.submission(name))))
                await asyncio.sleep(0.01)
            await asyncio.gather(*asks)
            await context.finish()
            return [order.tenant for _, order in world.workers.orders][4:]

        assert run(story()) == ["owed", "fresh"]

    def test_guarantees_are_scaled_while_overbooked(self) -> None:
        async def story() -> float:
            world = make_world()
            await world.add_tenant("a", Share(rate_per_s=200, burst=10))
            worker = await world.add_worker()
            await world.store.heartbeat(replace(worker, service_per_s=100))
            context = world.dispatcher()
            await submit(context, world.submission("a"))
            return await scale_guarantees(context, "default")

        assert run(story()) == pytest.approx(0.45)


class TestWhenItGoesWrong:
    def test_lost_before_the_first_token_it_is_tried_again_elsewhere(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            await world.add_worker("w1")
            await world.add_worker("w2")
            world.workers.script = ["fail"]
            context = world.dispatcher()
            submission = world.submission("a")
            assert isinstance(await world.ask(context, submission), Collected)
            await context.finish()
            assert [worker for worker, _ in world.workers.orders] == ["w1", "w2"]
            assert (await world.invocation(submission)).attempt == 2
            await world.at_rest()

        run(story())

    def test_after_three_attempts_it_ends_and_is_refunded(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            await world.add_worker(slots=4)
            world.workers.script = ["fail"] * 9
            context = world.dispatcher()
            submission = world.submission("a")
            assert isinstance(await world.ask(context, submission), WorkerFailed)
            await context.finish()
            ended = await world.invocation(submission)
            assert (ended.state, ended.attempt, ended.served) == (State.FAILED, 3, 0.0)
            assert (await world.store.snapshot("default", "a")).queue.spent == 0.0
            await world.at_rest()

        run(story())

    def test_broken_off_midway_it_is_charged_for_what_was_delivered(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            await world.add_worker()
            world.workers.script = ["break"]
            context = world.dispatcher()
            submission = world.submission("a")
            assert isinstance(await world.ask(context, submission), WorkerFailed)
            await context.finish()
            assert (await world.invocation(submission)).served == 10 + 2 * 2
            await world.at_rest()

        run(story())

    def test_a_workers_refusal_of_the_request_is_the_tenants_error_and_free(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            await world.add_worker()
            world.workers.script = ["refuse"]
            context = world.dispatcher()
            got = await world.ask(context, world.submission("a"))
            await context.finish()
            assert isinstance(got, AnsweredError)
            assert (got.status, got.code) == (400, "context_length_exceeded")
            assert (await world.store.snapshot("default", "a")).queue.spent == 0.0
            await world.at_rest()

        run(story())

    def test_a_deadline_that_passes_in_the_queue_is_504_and_leaves_nothing(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            await world.add_worker()
            context = world.dispatcher()
            long = asyncio.ensure_future(world.ask(context, world.submission("a", max_tokens=100)))
            await asyncio.sleep(0.01)
            submission = world.submission("a", deadline_s=2.0)
            assert isinstance(await world.ask(context, submission), DeadlineExceeded)
            await long
            await context.finish()
            assert (await world.invocation(submission)).state.is_terminal
            assert len(world.workers.orders) == 1
            await world.at_rest()

        run(story())

    @pytest.mark.parametrize("after_s", [0.01, 0.2, 0.5])
    def test_a_caller_that_leaves_takes_nothing_with_it(self, after_s: float) -> None:
        """While it waits, or as it is being dispatched: out of the line, no slot held."""

        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            await world.add_worker()
            context = world.dispatcher()
            first = asyncio.ensure_future(world.ask(context, world.submission("a", max_tokens=5)))
            await asyncio.sleep(0.01)
            submission = world.submission("a")
            leaving = asyncio.ensure_future(world.ask(context, submission))
            await asyncio.sleep(after_s)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            await first
            await context.finish()
            ended = await world.invocation(submission)
            if (
                ended.state is State.RUNNING
            ):  # it ran: the worker, not simulated here, settles what it was told to abort
                assert ended.slot is not None
                assert world.workers.closed == [f"a/{submission.id}#1"]
                counts: dict[str, Any] = {"input_tokens": 10, "output_tokens": 1}
                await settle_lost(world.store, world.clock, "a", submission.id, 1, **counts)
            else:
                assert ended.state is State.CANCELLED
            await world.at_rest()

        run(story())

    def test_a_settlement_counts_once(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            await world.add_worker()
            context = world.dispatcher()
            accepted = await submit(context, world.submission("a"))
            assert isinstance(accepted, Dispatched)
            counts: dict[str, Any] = {"input_tokens": 10, "output_tokens": 3}
            assert await settle(context, accepted.invocation, State.DONE, **counts) is Settled.SETTLED
            assert await settle(context, accepted.invocation, State.DONE, **counts) is Settled.FENCED
            key = (accepted.invocation.tenant, accepted.invocation.id, 1)
            assert await settle_lost(world.store, world.clock, *key, **counts) is Settled.FENCED
            await context.finish()
            assert (await world.store.snapshot("default", "a")).queue.spent == 16.0

        run(story())


class TestIdempotency:
    def test_the_same_id_is_one_invocation_and_the_same_answer(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            await world.add_worker()
            context = world.dispatcher()
            submission = world.submission("a", known_as="once", keep_answer=True)
            running = asyncio.ensure_future(world.ask(context, submission, kept))
            await asyncio.sleep(0.05)
            again = await submit(context, submission)  # while the first still runs
            assert isinstance(again, Known)
            assert json.loads((await result_of(context, again)).body) == {"text": "xxxxx"}
            await running
            later = await submit(context, submission)
            assert isinstance(later, Known)
            assert json.loads((await result_of(context, later)).body) == {"text": "xxxxx"}
            await context.finish()
            assert len(world.workers.orders) == 1

        run(story())

    def test_another_body_under_the_same_id_is_a_conflict(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            await world.add_worker()
            context = world.dispatcher()
            await world.ask(context, world.submission("a", known_as="once"))
            with pytest.raises(IdempotencyConflict):
                await submit(context, world.submission("a", known_as="once", prompt="another"))

        run(story())

    def test_another_tenants_id_is_its_own(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            await world.add_tenant("b")
            await world.add_worker(slots=2)
            context = world.dispatcher()
            await world.ask(context, world.submission("a", known_as="once"))
            assert isinstance(await submit(context, world.submission("b", known_as="once")), Dispatched)

        run(story())


class TestDetached:
    def test_who_lets_go_is_executed_once_however_often_the_message_comes(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            await world.add_worker()
            context = world.dispatcher()
            first = asyncio.ensure_future(world.ask(context, world.submission("a", max_tokens=50)))
            await asyncio.sleep(0.01)
            submission = world.submission("a", keep_body=True, keep_answer=True)
            accepted = await submit(context, submission)
            assert isinstance(accepted, Queued)
            assert await turn_within(context, accepted.invocation, 1.0) is None
            await first
            await context.finish()
            assert world.launcher.launched == [("a", submission.id, 1)]
            message = world.launcher.launched[0]
            done = [await execute_detached(context, *message, lambda _: kept) for _ in range(5)]
            await context.finish()
            assert done == [True, False, False, False, False]
            ended = await world.invocation(submission)
            assert (ended.state, ended.body) == (State.DONE, None)
            assert ended.result == kept(Collected(["x"] * 5))
            await world.at_rest()

        run(story())

    def test_a_message_that_is_lost_is_made_good_by_the_sweep(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            worker = await world.add_worker()
            context = world.dispatcher()
            submission = world.submission("a", keep_body=True, detached=True)
            accepted = await submit(context, submission)
            assert isinstance(accepted, Dispatched)  # and nobody ever executes it
            assert await reap(context, "default") == 0  # within its grace
            await asyncio.sleep(context.settings.lease_grace_s + 1)
            await world.store.heartbeat(worker)
            assert (await sweep(context, "default"))["reaped"] == 1
            await context.finish()
            assert world.launcher.launched[-1] == ("a", submission.id, 2)

        run(story())


class TestReaping:
    def test_a_live_lease_is_never_reaped_however_old(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            worker = await world.add_worker()
            context = world.dispatcher()
            accepted = await submit(context, world.submission("a"))
            assert isinstance(accepted, Dispatched)
            await asyncio.sleep(200)
            lease = next(iter((await world.store.workers("default"))[0].leases.values()))
            await world.store.heartbeat(replace(worker, live=frozenset({lease.execution})))
            assert await reap(context, "default") == 0

        run(story())

    def test_a_dead_workers_leases_are_ended_and_refunded_after_the_margin(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            await world.add_worker(alive_s=10)
            context = world.dispatcher()
            submission = world.submission("a")
            await submit(context, submission)
            await asyncio.sleep(10 + context.settings.lease_margin_s - 1)
            worker = (await world.store.workers("default"))[0]
            lease = next(iter(worker.leases.values()))
            await world.store.heartbeat(
                replace(worker, alive_until=worker.alive_until, live=frozenset({lease.execution}))
            )
            assert await reap(context, "default") == 0
            await asyncio.sleep(3)
            assert await reap(context, "default") == 1
            await context.finish()
            assert (await world.invocation(submission)).state is State.FAILED
            await world.at_rest()

        run(story())

    def test_a_sweep_expires_what_is_overdue(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            worker = await world.add_worker()
            context = world.dispatcher()
            running = await submit(context, world.submission("a"))
            assert isinstance(running, Dispatched)
            submission = world.submission("a", deadline_s=5.0)
            await submit(context, submission)
            await asyncio.sleep(6)
            await world.store.heartbeat(replace(worker, live=frozenset({"a/id-2#1"})))
            assert (await sweep(context, "default"))["expired"] == 1
            assert (await world.invocation(submission)).state is State.EXPIRED

        run(story())


class TestDirectory:
    def test_keys_good_wrong_expired_and_revoked(self) -> None:
        async def story() -> None:
            world = make_world()
            await world.add_tenant("a")
            directory = world.dispatcher().directory
            key = world.keys["a"]
            assert (await directory.tenant_of(key)).name == "a"
            for wrong in (None, "", "hg-", key[:-1] + "z", "x" * 500, "\ud800"):
                with pytest.raises(Unauthorized):
                    await directory.tenant_of(wrong)
            await world.store.delete_key(key[:15])
            await asyncio.sleep(CACHE_S + 1)
            with pytest.raises(Unauthorized):
                await directory.tenant_of(key)

        run(story())

    def test_a_change_is_seen_within_a_minute(self) -> None:
        async def story() -> None:
            world = make_world()
            tenant = await world.add_tenant("a")
            directory = world.dispatcher().directory
            await directory.tenant_of(world.keys["a"])
            changed = replace(tenant, max_tokens_max=7, version=2)
            await world.store.put_tenant(changed, expected_version=1)
            await asyncio.sleep(CACHE_S + 1)
            assert (await directory.tenant_of(world.keys["a"])).max_tokens_max == 7

        run(story())


def test_drain_folds_runs_of_one_process() -> None:
    """Twenty settlements at once must not make twenty drains that race for the same slot."""

    async def story() -> None:
        world = make_world()
        await world.add_tenant("a")
        await world.add_worker(slots=2)
        context = world.dispatcher()
        world.store.faults = Pausing()
        before = world.store.requests["snapshot"]
        await asyncio.gather(*(drain(context, "default") for _ in range(20)))
        assert world.store.requests["snapshot"] - before <= 2

    run(story())

"""The memory store against a model too small to be wrong, and the table's store against the memory store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from dispatcher.model.old_invocation import Invocation, Slot, State
from dispatcher.model.old_outcomes import Settled, Written
from dispatcher.old_ports import Store
from dispatcher.old_stores.memory.store import MemoryStore
from headgate.local.moto.server import make_server
from tests.conformance.store_backends import TablePlace
from tests.conformance.store_world import POOL, START, FakeClock, World, invocation, worker

WAITING_MAX = 3
SLOTS = {"w0": 2, "w1": 1}
tenants = st.sampled_from(["a", "b"])
ids = st.sampled_from(["1", "2", "3", "4", "5"])
slots = st.sampled_from([Slot("w0", 0), Slot("w0", 1), Slot("w0", 2), Slot("w1", 0), Slot("unknown", 0)])
costs = st.sampled_from([0.0, 0.1, 7.3, 123.456])


@dataclass
class Model:
    """What must be true, computed from what was acknowledged."""

    invocations: dict[tuple[str, str], Invocation] = field(default_factory=dict)
    draining: set[str] = field(default_factory=set)
    served: dict[str, float] = field(default_factory=lambda: {"a": 0.0, "b": 0.0})

    def of(self, tenant: str, state: State) -> list[Invocation]:
        return [one for one in self.invocations.values() if one.tenant == tenant and one.state is state]

    def slot_is_free(self, slot: Slot) -> bool:
        taken = {one.slot for one in self.invocations.values() if one.state is State.RUNNING}
        exists = slot.number < SLOTS.get(slot.worker, 0)
        return exists and slot not in taken and slot.worker not in self.draining


class StoreMachine(RuleBasedStateMachine):
    """Every rule asks all stores the same and compares: with each other, and with the model."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.model = Model()
        stores: list[Store] = [MemoryStore(self.clock)]
        stores += [place.open(self.clock) for place in self.places()]
        self.worlds = [World(store, self.clock) for store in stores]
        for name, count in SLOTS.items():
            one = worker(name, count, alive_until=2e9)
            self.ask(lambda world, one=one: world.store.register(one))

    def places(self) -> list[TablePlace]:
        """Where further stores are opened, empty ones."""
        return []

    def teardown(self) -> None:
        self.loop.close()

    def ask(self, question: Callable[..., Awaitable[Any]]) -> Any:
        """The one answer of all stores."""
        answers = [self.loop.run_until_complete(question(world)) for world in self.worlds]
        assert all(answer == answers[0] for answer in answers), answers
        return answers[0]

    def new(self, tenant: str, name: str, cost: float) -> Invocation:
        number = len(self.model.invocations)
        return invocation(name, tenant, estimate=cost, body="q", arrived_at=START + number)

    @rule(tenant=tenants, name=ids, slot=slots, cost=costs)
    def admit(self, tenant: str, name: str, slot: Slot, cost: float) -> None:
        written, running = self.ask(lambda world: world.admit(self.new(tenant, name, cost), slot))
        if (tenant, name) in self.model.invocations:
            assert written is Written.EXISTS
        elif self.model.slot_is_free(slot) and not self.model.of(tenant, State.QUEUED):
            assert written is Written.DONE
            self.model.invocations[tenant, name] = running
        else:
            assert written is Written.CONFLICT

    @rule(tenant=tenants, name=ids, cost=costs)
    def enqueue(self, tenant: str, name: str, cost: float) -> None:
        queued = self.new(tenant, name, cost)
        written = self.ask(lambda world: world.enqueue(queued, WAITING_MAX))
        if (tenant, name) in self.model.invocations:
            assert written is Written.EXISTS
        elif len(self.model.of(tenant, State.QUEUED)) >= WAITING_MAX:
            assert written is Written.FULL
        else:
            assert written is Written.DONE
            self.model.invocations[tenant, name] = queued

    @precondition(lambda self: self.model.invocations)
    @rule(data=st.data(), slot=slots)
    def dispatch(self, data: st.DataObject, slot: Slot) -> None:
        """The head, or whatever one may believe to be queued."""
        one = self.pick(data)
        believed = replace(one, state=State.QUEUED, slot=None, charge=None, dispatched_at=None, ended_at=None)
        written, running = self.ask(lambda world: world.dispatch(believed, slot))
        allowed = one.state is State.QUEUED and self.model.slot_is_free(slot)
        assert written is (Written.DONE if allowed else Written.CONFLICT)
        if allowed:
            self.model.invocations[one.tenant, one.id] = running

    @precondition(lambda self: self.model.invocations)
    @rule(data=st.data(), served=costs, stale=st.booleans())
    def settle(self, data: st.DataObject, served: float, stale: bool) -> None:
        one = self.as_if_running(self.pick(data), stale)
        if one.charge is None:
            return
        settled = self.ask(lambda world: world.settle(one, served))
        if self.runs(one):
            assert settled is Settled.SETTLED
            self.model.served[one.tenant] += served
            self.model.invocations[one.tenant, one.id] = replace(one, state=State.DONE, slot=None)
        else:
            assert settled is Settled.FENCED

    @precondition(lambda self: self.model.invocations)
    @rule(data=st.data(), stale=st.booleans())
    def requeue(self, data: st.DataObject, stale: bool) -> None:
        one = self.as_if_running(self.pick(data), stale)
        if one.charge is None:
            return
        settled = self.ask(lambda world: world.requeue(one))
        assert settled is (Settled.SETTLED if self.runs(one) else Settled.FENCED)
        if settled is Settled.SETTLED:
            self.model.invocations[one.tenant, one.id] = replace(one, state=State.QUEUED, slot=None)

    @precondition(lambda self: self.model.invocations)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        one = self.pick(data)
        settled = self.ask(lambda world: world.drop(replace(one, state=State.QUEUED)))
        assert settled is (Settled.SETTLED if one.state is State.QUEUED else Settled.FENCED)
        if settled is Settled.SETTLED:
            self.model.invocations[one.tenant, one.id] = replace(one, state=State.EXPIRED)

    @precondition(lambda self: self.model.invocations)
    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        one = self.pick(data)
        written = self.ask(lambda world: world.store.detach(one.tenant, one.id))
        assert written is (Written.DONE if one.state is State.QUEUED else Written.CONFLICT)
        if written is Written.DONE:
            self.model.invocations[one.tenant, one.id] = replace(one, detached=True)

    @rule(name=st.sampled_from(sorted(SLOTS)), draining=st.booleans())
    def heartbeat(self, name: str, draining: bool) -> None:
        seat = sorted(SLOTS).index(name)
        reported = replace(worker(name, SLOTS[name], alive_until=2e9), seat=seat, draining=draining)
        assert self.ask(lambda world: world.store.heartbeat(reported)) is not None
        (self.model.draining.add if draining else self.model.draining.discard)(name)

    @rule(seconds=st.floats(-3.0, 30.0))
    def time_passes(self, seconds: float) -> None:
        self.clock.time += seconds

    @rule(time=st.floats(0.0, 500.0))
    def note(self, time: float) -> None:
        before = self.ask(lambda world: world.store.snapshot(POOL, "a")).pool.virtual_time
        self.ask(lambda world: world.store.note_pool(POOL, virtual_time=time))
        after = self.ask(lambda world: world.store.snapshot(POOL, "a")).pool.virtual_time
        assert before <= after <= max(before, time)

    @invariant()
    def the_ledger_is_exact(self) -> None:
        for tenant in ("a", "b"):
            queue = self.ask(lambda world, tenant=tenant: world.queue(tenant))
            running = self.model.of(tenant, State.RUNNING)
            assert queue.waiting == len(self.model.of(tenant, State.QUEUED))
            assert queue.reserved == pytest.approx(sum(one.estimate for one in running), abs=1e-9)
            assert queue.reserved >= 0.0
            assert queue.spent == pytest.approx(self.model.served[tenant], abs=1e-9)

    @invariant()
    def slots_are_what_runs(self) -> None:
        running = [one for tenant in ("a", "b") for one in self.model.of(tenant, State.RUNNING)]
        expected = {
            (one.slot.worker, one.slot.number): f"{one.tenant}/{one.id}#{one.attempt}" for one in running if one.slot
        }
        assert self.ask(lambda world: world.leases()) == expected

    @invariant()
    def lines_are_shown_while_they_wait_and_in_order(self) -> None:
        now = self.clock.now()
        shown = self.ask(lambda world: world.store.waiting_queues(POOL, now, 10))
        assert {queue.name for queue in shown} == {one for one in ("a", "b") if self.model.of(one, State.QUEUED)}
        keys = [(queue.tat > now, queue.vft) for queue in shown]
        assert keys == sorted(keys)
        for queue in shown:
            head = self.ask(lambda world, queue=queue: world.store.head_of(queue.name))
            assert head.id == min(self.model.of(queue.name, State.QUEUED), key=lambda one: one.queue_key).id

    def pick(self, data: st.DataObject) -> Invocation:
        return self.model.invocations[data.draw(st.sampled_from(sorted(self.model.invocations)))]

    def as_if_running(self, one: Invocation, stale: bool) -> Invocation:
        """How an execution remembers it, perhaps one of an earlier attempt."""
        attempt = one.attempt - 1 if stale else one.attempt
        return replace(one, state=State.RUNNING, attempt=attempt)

    def runs(self, one: Invocation) -> bool:
        known = self.model.invocations[one.tenant, one.id]
        return known.state is State.RUNNING and known.attempt == one.attempt


def test_the_memory_store_is_its_model() -> None:
    budget = settings(max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(StoreMachine, settings=budget)


@pytest.fixture
def url() -> Iterator[str]:
    server = make_server("127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.port}"
    server.shutdown()
    server.server_close()


def test_the_tables_store_answers_as_the_memory_store(url: str) -> None:
    count = iter(range(1_000_000))

    class Both(StoreMachine):
        def places(self) -> list[TablePlace]:
            return [TablePlace(url, f"machine-{next(count)}")]

    budget = settings(
        max_examples=5,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=[Phase.generate],  # an example takes seconds: shrinking would take minutes
    )
    run_state_machine_as_test(Both, settings=budget)

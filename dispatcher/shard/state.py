"""The state of a shard: what its facts add up to, in memory, and the primitive changes that facts are made of.

Every primitive notes its inverse while `undo` is a list. So a decision can be applied before it is written, and undone
if another process wrote the position first. After its primitives, `flush` brings the indexes up to date; they are
derived from the rest and need no inverse.

Invariants: a call is in `calls` from its acceptance to its end; it waits in a queue (`queued`), or waits suspended
because its process is silent, or runs on a worker. Slots in use are exactly the running calls of the workers.
"""

from __future__ import annotations

import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

from dispatcher.model.commands import Over
from dispatcher.model.facts import WorkerSet
from dispatcher.model.usage import HOUR_S
from dispatcher.policies.clocks import rate_scale
from dispatcher.policies.orders.interface import Index
from dispatcher.policies.orders.queues import SLACK, Call, Clocks, Tenant, TenantQueue
from dispatcher.policies.orders.registry import new_order
from dispatcher.policies.throttling import Throttle
from dispatcher.shard.records import NO_USAGE, Process, Usage, Worker
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.slots import Slots

ENDS_KEPT = 4096
"""The number of ended calls of which it is remembered how they ended: longer than a failover lasts."""
ACCEPTED_KEPT = 1024
"""With more sequence numbers of a process, those below its floor are dropped: its floor speaks for them."""
CLEANED_EVERY_S = 60.0
IDLE_GROUPS = 64
HOURS_KEPT = 3
"""Hours of usage that stay in the state after they are over: the projection must be written within this time."""

Undo = tuple[Callable[..., None], tuple[Any, ...]]


class State:
    def __init__(self, settings: ShardSettings) -> None:
        self.settings = settings
        self.order = new_order(settings.order, lead_max=settings.lead_max)
        self.position = 0
        """The position of the entry that is being applied, or that comes next."""
        self.at = 0.0
        """The time of the facts that are being applied."""
        self.virtual_time = 0.0
        self.arrivals = 0
        self.tenants: dict[str, Tenant] = {}
        self.calls: dict[str, Call] = {}
        self.workers: dict[str, Worker] = {}
        self.processes: dict[str, Process] = {}
        self.usage: dict[tuple[str, str, int], Usage] = {}
        self.interactions: dict[tuple[str, str], float] = {}
        """When the last call of each interaction was accepted."""
        self.ends: OrderedDict[str, Over] = OrderedDict()
        """How the last calls ended, so that a repeated command gets the same answer."""
        self.throttle = Throttle(settings.throttling) if settings.throttling else None
        self.behind: dict[str, float] = {}
        """Service units that each waiting tier is behind its floor (tier_floors.py)."""
        self.waiting = 0
        self.waiting_tiers: Counter[str] = Counter()
        self.lanes: dict[str, dict[str, Index]] = {}
        """The indexes of waiting queues, by model and tier (one tier "" if tiers play no part)."""
        self.deadlines: list[tuple[float, str]] = []
        """A heap with an entry for each waiting call, and entries of calls that no longer wait."""
        self.idle: list[set[str]] = [set() for _ in range(IDLE_GROUPS)]
        """The tenants with nothing waiting or running, in groups by their name."""
        self.promised_per_s = 0.0
        self.promised_to = 0
        self.slots = Slots()
        self.kv_use: dict[str, float] = {}
        """The part of each worker's KV blocks in use, as last reported here: not in the log, a hint."""
        self.undo: list[Undo] | None = None
        self._grown: set[str] = set()
        self._dirty: dict[str, Tenant] = {}

    # Calls

    def add_call(self, call: Call) -> None:
        self.calls[call.id] = call
        if call.process:
            self.process(call.process).calls[call.id] = call
        self._note(self.remove_call, call)

    def remove_call(self, call: Call) -> None:
        del self.calls[call.id]
        if call.process:
            del self.processes[call.process].calls[call.id]
        self._note(self.add_call, call)

    def set_call(self, call: Call, name: str, value: object) -> None:
        """Assign one attribute of a call."""
        self._note(self.set_call, call, name, getattr(call, name))
        setattr(call, name, value)

    def set_running(self, call: Call, values: tuple[Any, ...]) -> None:
        """Assign (charge_in_profile, charge_rate_per_s, charge_weight, attempt, worker, dispatched_at) of a call."""
        old = (
            call.charge_in_profile, call.charge_rate_per_s, call.charge_weight, call.attempt, call.worker,
            call.dispatched_at,
        )  # fmt: skip
        self._note(self.set_running, call, old)
        (
            call.charge_in_profile, call.charge_rate_per_s, call.charge_weight, call.attempt, call.worker,
            call.dispatched_at,
        ) = values  # fmt: skip

    def enqueue(self, call: Call) -> None:
        tenant = call.tenant
        tenant.queue(call.model).add(call)
        tenant.waiting += 1
        self.waiting += 1
        self.waiting_tiers[tenant.tier] += 1
        self._await_deadline(call)
        self._dirty[tenant.name] = tenant
        self._note(self.dequeue, call)

    def dequeue(self, call: Call) -> None:
        tenant = call.tenant
        tenant.queue(call.model).remove(call)
        tenant.waiting -= 1
        self.waiting -= 1
        self.waiting_tiers[tenant.tier] -= 1
        self._dirty[tenant.name] = tenant
        self._note(self.enqueue, call)

    def suspend(self, call: Call, sign: int = 1) -> None:
        """Count a waiting call that is in no queue, because its process is silent; -1: count it no longer."""
        call.tenant.suspended += sign
        if sign > 0:
            self._await_deadline(call)
        self._dirty[call.tenant.name] = call.tenant
        self._note(self.suspend, call, -sign)

    def _await_deadline(self, call: Call) -> None:
        heappush(self.deadlines, (call.deadline_at, call.id))
        if len(self.deadlines) > 2 * len(self.calls) + SLACK:
            self.deadlines = [(each.deadline_at, each.id) for each in self.calls.values() if not each.worker]
            heapify(self.deadlines)

    def hold(self, call: Call, worker: Worker) -> None:
        """Give the call a slot of the worker."""
        worker.running[call.id] = call
        self.slots.changed(worker)
        call.tenant.running += 1
        self._dirty[call.tenant.name] = call.tenant
        self._note(self.release, call, worker)

    def release(self, call: Call, worker: Worker) -> None:
        del worker.running[call.id]
        self.slots.changed(worker)
        call.tenant.running -= 1
        self._dirty[call.tenant.name] = call.tenant
        self._note(self.hold, call, worker)

    # Clocks

    def set_clocks(self, tenant: Tenant, clocks: Clocks) -> None:
        if clocks != tenant.clocks:
            self._note(self.set_clocks, tenant, tenant.clocks)
            tenant.clocks = clocks
            self._dirty[tenant.name] = tenant

    def assign(self, name: str, value: object) -> None:
        """Assign one attribute of this state."""
        self._note(self.assign, name, getattr(self, name))
        setattr(self, name, value)

    # Records

    def tenant(self, name: str) -> Tenant:
        """Return the tenant; a new one if it is not known."""
        found = self.tenants.get(name)
        if found is None:
            found = self.tenants[name] = Tenant(name, self.order.new_clocks)
            self._note(self._drop_tenant, name)
            self._dirty[name] = found
        return found

    def _drop_tenant(self, name: str) -> None:
        self._dirty[name] = self.tenants.pop(name)

    def set_tenant(self, tenant: Tenant, values: tuple[Any, ...]) -> None:
        """Assign (version, weight, rate_per_s, burst, tier, waiting_max)."""
        old = (tenant.version, tenant.weight, tenant.rate_per_s, tenant.burst, tenant.tier, tenant.waiting_max)
        self._note(self.set_tenant, tenant, old)
        self._out_of_lanes(tenant)
        self.waiting_tiers[tenant.tier] -= tenant.waiting
        (tenant.version, tenant.weight, tenant.rate_per_s, tenant.burst, tenant.tier, tenant.waiting_max) = values
        self.waiting_tiers[tenant.tier] += tenant.waiting
        self._dirty[tenant.name] = tenant

    def process(self, name: str) -> Process:
        """Return the process; a new one if it is not known."""
        found = self.processes.get(name)
        if found is None:
            found = self.processes[name] = Process(self.at)
            self._note(self.processes.pop, name, None)
        return found

    def set_process(self, process: Process, name: str, value: object) -> None:
        """Assign one attribute of a process."""
        self._note(self.set_process, process, name, getattr(process, name))
        setattr(process, name, value)

    def set_worker(self, worker_id: str, worker: Worker | None) -> None:
        """Add or remove a worker."""
        old = self.workers.pop(worker_id, None)
        self._note(self.set_worker, worker_id, old)
        if old is not None:
            self.slots.left(old)
        if worker is not None:
            self.workers[worker_id] = worker
            self.slots.changed(worker)

    def set_config(self, worker: Worker, config: WorkerSet, failures: int) -> None:
        self._note(self.set_config, worker, worker.config, worker.failures)
        self.slots.left(worker)
        worker.config, worker.failures = config, failures
        self.slots.changed(worker)

    def serve(self, call: Call, input_tokens: int, output_tokens: int, served: float) -> None:
        """Add what a call was served to its tenant's totals."""
        tenant = call.tenant
        key = (tenant.name, call.app, int(self.at // HOUR_S))
        old = self.usage.get(key, NO_USAGE)
        self._note(self._set_served, tenant, tenant.spent, key, old)
        self._set_served(
            tenant, tenant.spent + served, key, old.plus(input_tokens, output_tokens, served, self.position)
        )

    def _set_served(self, tenant: Tenant, spent: float, key: tuple[str, str, int], usage: Usage) -> None:
        tenant.spent = spent
        self.usage[key] = usage
        if not usage.requests:
            del self.usage[key]

    def note_sequence(self, process_name: str, process: Process, sequence: int) -> None:
        """Remember the number of an accepted call. `forget` drops those below the floor, once they are written."""
        process.accepted.add(sequence)
        if len(process.accepted) > ACCEPTED_KEPT:
            self._grown.add(process_name)
        self._note(process.accepted.discard, sequence)

    def note_admission(self, tenant: str, app: str) -> None:
        if self.throttle is not None:
            self._note(self.throttle.restore, self.throttle.note(tenant, app, self.at))

    def note_interaction(self, tenant: str, interaction: str) -> None:
        key = (tenant, interaction)
        self._note(self._restore_interaction, key, self.interactions.get(key))
        self.interactions[key] = self.at

    def remember_end(self, over: Over) -> None:
        self.ends[over.id] = over
        self._note(self.ends.pop, over.id, None)

    def _restore_interaction(self, key: tuple[str, str], at: float | None) -> None:
        if at is None:
            del self.interactions[key]
        else:
            self.interactions[key] = at

    def _note(self, inverse: Callable[..., Any], *arguments: Any) -> None:
        if self.undo is not None:
            self.undo.append((inverse, arguments))

    # Derived

    def touch(self, tenant: Tenant) -> None:
        """Have `flush` look at the tenant."""
        self._dirty[tenant.name] = tenant

    def flush(self) -> None:
        """Bring indexes and the sum of promised rates up to date with the tenants that changed."""
        for tenant in self._dirty.values():
            active = tenant.is_active
            self._promise(tenant, tenant.rate_per_s if active else 0.0)
            for queue in tenant.queues.values():
                if queue.count:
                    self._place(queue)
                elif queue.entry is not None:
                    self.lane(queue).drop(queue)
            if active is tenant.is_idle or tenant.name not in self.tenants:
                self._note_idle(tenant, is_idle=not active and tenant.name in self.tenants)
        self._dirty.clear()

    def lane(self, queue: TenantQueue) -> Index:
        """Return the index that the queue belongs to."""
        tier = queue.tenant.tier if self.settings.tiers else ""
        lanes = self.lanes.get(queue.model)
        if lanes is None:
            lanes = self.lanes[queue.model] = {}
        index = lanes.get(tier)
        if index is None:
            index = lanes[tier] = self.order.make_index()
        return index

    def lowest_vft(self) -> float:
        return min((index.lowest_vft() for lanes in self.lanes.values() for index in lanes.values()), default=inf)

    def scale(self) -> float:
        """Return the factor on guaranteed rates, 0 < factor <= 1 (clocks.rate_scale)."""
        if not self.promised_to:
            return 1.0
        return rate_scale(self.promised_per_s, self.slots.capacity_per_s() or None)

    def is_saturated(self, model: str) -> bool:
        """Return whether the KV cache of every serving worker of the model is as good as full."""
        serving = [worker for worker in self.slots.of(model) if worker.config.state == "serving"]
        full = self.settings.saturated
        return bool(serving) and all(self.kv_use.get(worker.config.worker, 0.0) >= full for worker in serving)

    def overdue(self) -> list[str]:
        """Return the waiting calls that are past their deadline, by id."""
        due: dict[str, None] = {}
        while self.deadlines and self.deadlines[0][0] <= self.at:
            call_id = heappop(self.deadlines)[1]
            call = self.calls.get(call_id)
            if call is not None and not call.worker and call.deadline_at <= self.at:
                due[call_id] = None
        return list(due)

    def next_due(self) -> float:
        """Return when a tick has something to decide: a deadline of a waiting call, or the end of a worker's rest."""
        while self.deadlines:
            deadline_at, call_id = self.deadlines[0]
            call = self.calls.get(call_id)
            if call is not None and not call.worker and call.deadline_at == deadline_at:
                break
            heappop(self.deadlines)
        rests = [w.config.until for w in self.workers.values() if w.config.state == "resting"]
        return min([self.deadlines[0][0] if self.deadlines else inf, *rests])

    def forget(self, before: float) -> None:
        """Drop what no decision depends on any more. Only of a state whose facts are all written.

        `before`: the time of the entry before. What is dropped follows from the entries alone, so that all shards of a
        log drop the same: every second some of the idle tenants are looked at, every minute the rest.
        """
        for name in self._grown:
            if (process := self.processes.get(name)) is not None:
                process.accepted = process.repeatable()
        self._grown.clear()
        while len(self.ends) > ENDS_KEPT:
            self.ends.popitem(last=False)
        for second in range(int(before) + 1, min(int(self.at), int(before) + IDLE_GROUPS) + 1):
            self._forget_idle(self.idle[second % IDLE_GROUPS])
        if before // CLEANED_EVERY_S != self.at // CLEANED_EVERY_S:
            self._forget_old()

    def _forget_idle(self, names: set[str]) -> None:
        """Forget idle tenants that behave like new ones."""
        for name in list(names):
            if self.order.is_forgettable(self.tenants[name], self.at, self.virtual_time):
                del self.tenants[name]
                names.discard(name)

    def _forget_old(self) -> None:
        kept_s = self.settings.process_kept_s
        for name, process in list(self.processes.items()):
            if not process.calls and self.at - process.seen_at > kept_s:
                del self.processes[name]
        old = self.at - self.settings.interaction_kept_s
        self.interactions = {key: at for key, at in self.interactions.items() if at >= old}
        oldest = int(self.at // HOUR_S) - HOURS_KEPT
        for row in [row for row in self.usage if row[2] < oldest]:
            del self.usage[row]

    def _place(self, queue: TenantQueue) -> None:
        clocks = queue.tenant.clocks
        if queue.entry is None or queue.indexed is not clocks or queue.entry[1] != queue.head().arrival:
            self.lane(queue).place(queue, self.at)
            queue.indexed = clocks

    def _note_idle(self, tenant: Tenant, *, is_idle: bool) -> None:
        tenant.is_idle = is_idle
        group = self.idle[zlib.crc32(tenant.name.encode()) % IDLE_GROUPS]
        if is_idle:
            group.add(tenant.name)
        else:
            group.discard(tenant.name)

    def _out_of_lanes(self, tenant: Tenant) -> None:
        for queue in tenant.queues.values():
            if queue.entry is not None:
                self.lane(queue).drop(queue)

    def _promise(self, tenant: Tenant, rate_per_s: float) -> None:
        if rate_per_s != tenant.promised_per_s:
            self.promised_to += (rate_per_s > 0) - (tenant.promised_per_s > 0)
            change = rate_per_s - tenant.promised_per_s
            self.promised_per_s = self.promised_per_s + change if self.promised_to else 0.0
            tenant.promised_per_s = rate_per_s

"""The state of a shard in memory, which follows from its facts, and the primitive changes that the facts consist of.

Every primitive notes its inverse while `undo` is a list. So a decision can be applied before it is written, and undone
if another process wrote the position first (rule 11). The frequent facts (steps.py) note one inverse for all that they
change. After the primitives, `flush` brings the indexes up to date; they are derived from the rest and need no inverse.

Invariants: a call is in `calls` from its acceptance to its end; it waits in a queue (`queued`), or waits suspended
because its holder is silent, or runs on a worker. Slots in use are exactly the running calls of the workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any

from dispatcher.model.call import TenantConfig
from dispatcher.model.commands import Over
from dispatcher.model.facts import Planned, WorkerSet
from dispatcher.model.formats import OLDEST
from dispatcher.model.usage import HOUR_S
from dispatcher.policies.clocks import rate_scale
from dispatcher.policies.orders.queues import Call, Clocks, Tenant
from dispatcher.policies.orders.registry import new_order
from dispatcher.policies.slot_shares import ShardNeed
from dispatcher.policies.throttling import Throttle
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.state.indexes import Deadlines, IdleTenants, Lanes, Promises, Slots, Tenures
from dispatcher.shard.state.model_indexes import HeldModels, RunningAges
from dispatcher.shard.state.need import NeedSums
from dispatcher.shard.state.prefix_holders import PrefixHolders
from dispatcher.shard.state.records import NO_USAGE, Process, Usage, Worker
from dispatcher.shard.state.remembered import Ends, GroupedDict, Interactions
from dispatcher.shard.waits.record import WaitRecord

_Undo = tuple[Callable[..., Any], tuple[Any, ...]]


class UndoJournal:
    """Notes the inverse of each primitive change, so that facts that were not written can be undone."""

    def __init__(self) -> None:
        self.undo: list[_Undo] | None = None

    def assign(self, name: str, value: object) -> None:
        """Assign one attribute of this state."""
        self._note(self.assign, name, getattr(self, name))
        setattr(self, name, value)

    def _note(self, inverse: Callable[..., Any], *arguments: Any) -> None:
        if self.undo is not None:
            self.undo.append((inverse, arguments))


class State(UndoJournal):
    def __init__(self, settings: ShardSettings) -> None:
        super().__init__()
        self.settings = settings
        self.order = new_order(settings.order, lead_max=settings.lead_max, slack=settings.slack)
        self.position = 0
        """The position of the entry that is being applied, or that comes next."""
        self.at = 0.0
        """The time of the facts that are being applied."""
        self.log_order = ""
        """The name of the order in the log; empty while the log is empty."""
        self.format = OLDEST
        """The format in which entries, snapshots and letters are written (model/formats.py)."""
        self.virtual_time = 0.0
        self.arrivals = 0
        self.tenants: dict[str, Tenant] = {}
        self.calls: dict[str, Call] = {}
        self.workers: dict[str, Worker] = {}
        self.changing: dict[str, Worker] = {}
        """The workers whose rest, retirement or order to load a model ends at a time."""
        self.processes: dict[str, Process] = {}
        self.usage: GroupedDict[tuple[str, str, int], Usage] = GroupedDict()
        """The usage by tenant, application and hour."""
        self.apps: Counter[tuple[str, int]] = Counter()
        """The number of applications in `usage` by tenant and hour."""
        self.usage_saved, self.usage_changed = 0, -1
        """The totals of usage that did not change since the first position are in the projection. The second is that
        of their last change."""
        self.interactions = Interactions()
        self.holders = PrefixHolders()
        """The worker that had each beginning of a prompt last."""
        self.ends = Ends()
        """The ends of the last calls by id, for repeated commands, with marks of time between them (remembered.py)."""
        self.throttle = Throttle(settings.throttling) if settings.throttling else None
        self.behind: dict[str, float] = {}
        """Service units that each waiting tier is behind its floor (policies/tiers.py)."""
        self.waiting = 0
        self.waiting_tiers: Counter[str] = Counter()
        """Waiting calls of each tier that are not deferred."""
        self.waiting_models: Counter[str] = Counter()
        """The number of waiting calls of each model that has some."""
        self.fleet_looked_at = 0.0
        """When a decision last looked at all workers for models to order (swapping.py), in Unix seconds. It is not in
        the log."""
        self.fleet_missed: frozenset[str] = frozenset()
        """The models that were missing then."""
        self.models_turned: dict[str, float] = {}
        """When a worker was last ordered to load each model, or another model in its place, in Unix seconds."""
        self.plan: Planned | None = None
        self.lanes = Lanes(self.order, by_tier=settings.tiers is not None)
        self.deadlines = Deadlines(self.calls)
        self.idle = IdleTenants()
        self.promises = Promises()
        self.need_sums = NeedSums() if settings.is_sharded else None
        self.slots = Slots()
        self.tenures = Tenures()
        self.held_models = HeldModels()
        self.running_ages = RunningAges()
        self.kv_use: dict[str, float] = {}
        """The part of each worker's KV blocks in use, from its last report to this process. It is not in the log."""
        self.durable_ends: list[tuple[Over, int]] = []
        """The ends of durable calls in the decision that is not written yet, each with the call's last attempt."""
        self.waits = WaitRecord()  # not in the log either
        self.grown: set[str] = set()
        """Processes with more than `accepted_most` accepted numbers (forgetting.py)."""
        self._dirty: dict[str, Tenant] = {}

    # Calls

    def add_call(self, call: Call) -> None:
        self.calls[call.id] = call
        self.process(call.process).calls[call.id] = call
        self._note(self.remove_call, call)

    def remove_call(self, call: Call) -> None:
        del self.calls[call.id]
        del self.processes[call.process].calls[call.id]
        self._note(self.add_call, call)

    def set_call(self, call: Call, name: str, value: object) -> None:
        """Assign one attribute of a call."""
        self._note(self.set_call, call, name, getattr(call, name))
        setattr(call, name, value)

    def enqueue(self, call: Call) -> None:
        self.join_queue(call)
        self._dirty[call.tenant.name] = call.tenant
        self._note(self.dequeue, call)

    def dequeue(self, call: Call) -> None:
        self.leave_queue(call)
        self._dirty[call.tenant.name] = call.tenant
        self._note(self.enqueue, call)

    def join_queue(self, call: Call) -> None:
        """Add the call to its queue, and note no inverse. The caller notes one (steps.py)."""
        tenant = call.tenant
        tenant.queue(call.model, call.deferred).add(call)
        tenant.waiting += 1
        self.waiting += 1
        self.waiting_models[call.model] += 1
        self.waits.changed.add(tenant.name)
        if not call.deferred:
            tenant.direct += 1
            self.waiting_tiers[tenant.config.tier] += 1
        self.deadlines.add(call)

    def leave_queue(self, call: Call) -> None:
        """Remove the call from its queue, and note no inverse. The caller notes one (steps.py)."""
        tenant = call.tenant
        tenant.queues[call.model, call.deferred].remove(call)
        tenant.waiting -= 1
        self.waiting -= 1
        self.waiting_models[call.model] -= 1
        self.waits.changed.add(tenant.name)
        if not self.waiting_models[call.model]:
            del self.waiting_models[call.model]
        if not call.deferred:
            tenant.direct -= 1
            self.waiting_tiers[tenant.config.tier] -= 1

    def suspend(self, call: Call, sign: int = 1) -> None:
        """Count a waiting call that is in no queue because its process is silent. With `sign` -1, stop counting it."""
        call.tenant.suspended += sign
        if sign > 0:
            self.deadlines.add(call)
        self._dirty[call.tenant.name] = call.tenant
        self._note(self.suspend, call, -sign)

    def hold(self, call: Call, worker: Worker) -> None:
        """Give the call a slot of the worker."""
        worker.running[call.id] = call
        self.running_ages.note(call, 1)
        self.slots.update(worker)
        call.tenant.running += 1
        self._dirty[call.tenant.name] = call.tenant
        self._note(self.release, call, worker)

    def release(self, call: Call, worker: Worker) -> None:
        del worker.running[call.id]
        self.running_ages.note(call, -1)
        self.slots.update(worker)
        call.tenant.running -= 1
        self._dirty[call.tenant.name] = call.tenant
        self._note(self.hold, call, worker)

    def set_clocks(self, tenant: Tenant, clocks: Clocks) -> None:
        if clocks != tenant.clocks:
            self._note(self.set_clocks, tenant, tenant.clocks)
            tenant.clocks = clocks
            self._dirty[tenant.name] = tenant

    def tenant(self, name: str) -> Tenant:
        """Return the tenant; a new one if it is not known."""
        found = self.tenants.get(name)
        if found is None:
            found = self.tenants[name] = Tenant(name, self.order.new_clocks)
            self._note(self._drop_tenant, name)
            self._dirty[name] = found
        return found

    def _drop_tenant(self, name: str) -> None:
        self._dirty[name] = tenant = self.tenants.pop(name)
        self.idle.update(tenant, is_known=False)

    def set_tenant(self, tenant: Tenant, config: TenantConfig) -> None:
        self._note(self.set_tenant, tenant, tenant.config)
        self.lanes.drop(tenant)
        self.waiting_tiers[tenant.config.tier] -= tenant.direct
        tenant.config = config
        self.waiting_tiers[config.tier] += tenant.direct
        self.waits.changed.add(tenant.name)
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
            self.slots.remove(old)
            self.tenures.remove(worker_id)
            self.held_models.remove(worker_id)
        if worker is None:
            self.kv_use.pop(worker_id, None)
            self.changing.pop(worker_id, None)
        else:
            self.workers[worker_id] = worker
            self._settle(worker)

    def set_config(self, worker: Worker, config: WorkerSet) -> None:
        self._note(self.set_config, worker, worker.config)
        self.slots.remove(worker)
        worker.configure(config)
        self._settle(worker)

    def set_failures(self, worker: Worker, failures: int, causes: tuple[str, ...]) -> None:
        self._note(self.set_failures, worker, worker.failures, worker.causes)
        worker.failures, worker.causes = failures, causes

    def set_load(self, worker: Worker, model: str, at: float) -> None:
        """Order the worker to load a model, or withdraw the order (""). `at`: the time of the last order."""
        self._note(self.set_load, worker, worker.load, worker.ordered_at)
        self.slots.remove(worker)
        worker.order(model, at)
        self._settle(worker)

    def set_paid(self, worker: Worker, until: float) -> None:
        self._note(self.set_paid, worker, worker.paid_until)
        worker.paid_until = until

    def _settle(self, worker: Worker) -> None:
        """Bring the indexes up to date with a worker that changed."""
        self.slots.update(worker)
        self.tenures.update(worker)
        self.held_models.update(worker)
        if worker.changes_at < inf:
            self.changing[worker.name] = worker
        else:
            self.changing.pop(worker.name, None)

    def note_admission(self, tenant: str, app: str) -> None:
        if self.throttle is not None:
            self._note(self.throttle.restore, self.throttle.note(tenant, app, self.at))

    def note_interaction(self, tenant: str, interaction: str) -> None:
        key = (tenant, interaction)
        if self.interactions.has_room(key):
            self._note(self.interactions.restore, key, self.interactions.get(key))
            self.interactions[key] = self.at

    def note_holder(self, keys: str, worker: str) -> None:
        """Remember that the worker gets a prompt with these beginnings."""
        self._note(self.holders.restore, self.holders.note(keys, worker))

    def remember_end(self, call: Call, over: Over) -> None:
        if call.terms.durable:
            self.durable_ends.append((over, call.attempt))
        self.ends[over.id] = over
        self._note(self.ends.pop, over.id, None)

    def add_usage(self, call: Call, input_tokens: int, output_tokens: int, served: float, cached_tokens: int) -> None:
        """Charge the tenant for a call that ends while it waits: an earlier attempt had stored its answer."""
        key = (call.tenant.name, call.terms.app, int(self.at // HOUR_S))
        usage = self.usage.get(key, NO_USAGE).plus(input_tokens, output_tokens, served, self.position, cached_tokens)
        self._set_usage(call.tenant, key, usage, call.tenant.spent + served)

    def _set_usage(self, tenant: Tenant, key: tuple[str, str, int], usage: Usage | None, spent: float) -> None:
        old = self.usage.pop(key, None)
        self._note(self._set_usage, tenant, key, old, tenant.spent)
        if usage is not None:
            self.usage[key] = usage
        self.apps[key[0], key[2]] += (usage is not None) - (old is not None)
        self.usage_changed = self.position
        tenant.spent = spent

    # Derived

    def touch(self, tenant: Tenant) -> None:
        """Mark the tenant as changed for the next `flush`."""
        self._dirty[tenant.name] = tenant

    def flush(self) -> None:
        """Bring indexes and the sum of promised rates up to date with the tenants that changed."""
        if self._dirty:
            for tenant in self._dirty.values():
                self.refresh(tenant)
            self._dirty.clear()

    def refresh(self, tenant: Tenant) -> None:
        """Bring indexes and the sum of promised rates up to date with one tenant. Calls only what has to change."""
        is_active = tenant.running > 0 or tenant.waiting > 0 or tenant.suspended > 0
        if tenant.promised_per_s != (tenant.config.rate_per_s if is_active else 0.0):
            self.promises.update(tenant)
        if self.need_sums is not None:
            self.need_sums.update(tenant)
        if is_active is tenant.is_idle:
            self.idle.update(tenant, is_known=tenant.name in self.tenants)
        for queue in tenant.queues.values():
            if queue.count or queue.places:
                self.lanes.update(queue, self.at)

    def need(self) -> tuple[ShardNeed, ...]:
        """Return what the shard needs of its pool's slots; nothing if it is the pool's only one."""
        if self.need_sums is None:
            return ()
        slots = self.slots
        return (self.need_sums.need(slots.open, self.promises.per_s, slots.capacity_per_s(), self.virtual_time),)

    def scale(self) -> float:
        """Return the factor by which guaranteed rates are multiplied, 0 < factor <= 1 (clocks.rate_scale)."""
        if not self.promises.per_s:
            return 1.0
        return rate_scale(self.promises.per_s, self.slots.capacity_per_s() or None)

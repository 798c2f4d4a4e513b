"""The indexes of a shard's state. They are derived from its calls, tenants and workers, and are not in the log.

Lanes           the waiting queues in the order's order, by model and tier
Slots           the least loaded worker with a free slot, by model
Tenures         the workers that can load a model, and those that load it, by model
Deadlines       the earliest deadline of a waiting call
Promises        the sum of the guaranteed rates of tenants with calls
IdleTenants     the tenants without calls, in parts that are checked one after another
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from math import inf

from dispatcher.policies.orders.interface import Index, Order
from dispatcher.policies.orders.queues import Call, Tenant, TenantQueue
from dispatcher.shard.state.records import Worker


class Lanes:
    """The indexes of waiting queues, one for each model and tier. The only tier is "" if no tiers are configured."""

    def __init__(self, order: Order, *, by_tier: bool) -> None:
        self._order = order
        self._by_tier = by_tier
        self.of: dict[str, dict[str, Index]] = {}
        """The indexes by model and tier. The models are in the order of their names, so that a copy from a snapshot
        decides the same."""

    def update(self, queue: TenantQueue, now: float) -> None:
        """Bring the queue's entry up to date with its head and its tenant's clocks."""
        if not queue.count:
            queue.move()
            return
        clocks, head = queue.tenant.clocks, queue.calls[0]
        arrival = head[1] if head[2].queued else queue.head().arrival
        if not queue.places or queue.indexed_clocks is not clocks or queue.indexed_arrival != arrival:
            self._index(queue).place(queue, now)
            queue.indexed_clocks, queue.indexed_arrival = clocks, arrival

    def drop(self, tenant: Tenant) -> None:
        """Remove all queues of a tenant, because its tier or its share is about to change."""
        for queue in tenant.queues.values():
            queue.move()

    def lowest_vft(self, model: str) -> float:
        """Return the lowest vft of the tenants that wait for the model; infinity if none waits."""
        return min((index.lowest_vft() for index in self.of.get(model, {}).values()), default=inf)

    def _index(self, queue: TenantQueue) -> Index:
        tier = queue.tenant.config.tier if self._by_tier else ""
        lanes = self.of.get(queue.model)
        if lanes is None:
            lanes = {}
            self.of = dict(sorted([*self.of.items(), (queue.model, lanes)]))
        index = lanes.get(tier)
        if index is None:
            index = lanes[tier] = self._order.make_index()
        return index


SLOTS_SLACK = 64
"""A heap may hold four entries for each worker, and SLOTS_SLACK more, before the outdated ones are dropped."""

Entry = tuple[float, str]
"""The part of a worker's slots that is in use, and the worker's name. An entry with another part than now is
outdated."""


class Slots:
    """Finds the least loaded worker with a free slot, by model."""

    def __init__(self) -> None:
        self._heaps: dict[str, list[Entry]] = {}
        self._workers: dict[str, dict[str, Worker]] = {}
        self._loadable: Counter[str] = Counter()
        """The number of workers that can load each model, for workers with several."""
        self._swapping = 0
        self._capacity_per_s: dict[str, float] | None = None
        self.open = 0
        """The slots of all workers that get new work, as they were when each was last added."""
        self._open_of: dict[str, int] = {}
        self.open_by_model: Counter[str] = Counter()
        """The same slots by the loaded model of their workers. A model without open slots is absent."""

    def update(self, worker: Worker) -> None:
        """Update the entry of a worker, after a change of the worker or of its running calls."""
        model, name = worker.model, worker.name
        workers = self._workers.get(model)
        if workers is None:
            workers, self._heaps[model] = self._workers.setdefault(model, {}), []
        if workers.get(name) is not worker:
            workers[name] = worker
            self._loadable.update(worker.swap_s.keys())
            self._swapping += bool(worker.swap_s)
            self._set_open(model, name, worker.slots_open)
            self._capacity_per_s = None
        used = len(worker.running)
        if used < worker.slots_open:
            heap = self._heaps[model]
            heappush(heap, (used / worker.slots, name))
            if len(heap) > 4 * len(workers) + SLOTS_SLACK:
                heap[:] = [(_load(each), name) for name, each in workers.items() if each.free > 0]
                heapify(heap)

    def remove(self, worker: Worker) -> None:
        """Remove the worker, because it leaves or its configuration is about to change."""
        workers = self._workers[worker.model]
        if workers.pop(worker.name, None) is not None:
            self._loadable.subtract(worker.swap_s.keys())
            self._swapping -= bool(worker.swap_s)
            self._set_open(worker.model, worker.name, 0)
        if not workers:
            del self._workers[worker.model], self._heaps[worker.model]
        self._capacity_per_s = None

    def _set_open(self, model: str, name: str, slots: int) -> None:
        """Replace the open slots of the worker of this name, which has the model."""
        change = slots - self._open_of.pop(name, 0)
        if slots:
            self._open_of[name] = slots
        self.open += change
        self.open_by_model[model] += change
        if not self.open_by_model[model]:
            del self.open_by_model[model]

    def first(self, model: str) -> Worker | None:
        """Return the worker with the smallest part of its slots in use, or None if no slot is free. Ties go by name."""
        heap = self._heaps.get(model)
        if not heap:
            return None
        workers = self._workers[model]
        while heap:
            load, name = heap[0]
            worker = workers.get(name)
            if worker is not None:
                used = len(worker.running)
                if used < worker.slots_open and load == used / worker.slots:
                    return worker
            heappop(heap)
        return None

    def best_for(self, call: Call, first: Worker, unreached: Collection[str]) -> Worker:
        """Return the worker for the call. `first` is the least loaded worker of its model.

        That is `first`, unless it lost the call's last attempt or is in `unreached`. Then it is another worker with a
        free slot that did not lose the attempt, if there is one; those that are not in `unreached` are preferred.
        """
        if first.name != call.lost_on and first.name not in unreached:
            return first
        others = [worker for worker in self.of(call.model) if worker.name != call.lost_on and worker.free > 0]
        return min(others, key=lambda each: (each.name in unreached, _load(each), each.name), default=first)

    def near(self, name: str, first: Worker, lead: float) -> Worker | None:
        """Return the worker of this name if it has the model of `first`, the least loaded worker, and a free slot, and
        the part of its slots in use is at most `lead` more. Otherwise None."""
        worker = self._workers[first.model].get(name)
        if worker is None or worker.free <= 0 or _load(worker) > _load(first) + lead:
            return None
        return worker

    @property
    def can_swap(self) -> bool:
        """True if a worker can load several models."""
        return self._swapping > 0

    def has(self, model: str) -> bool:
        """Return whether any worker has the model or can load it, whether or not it gets new work."""
        return model in self._workers or self._loadable[model] > 0

    def is_loaded(self, model: str) -> bool:
        """Return whether any worker has the model, whether or not it gets new work."""
        return model in self._workers

    def of(self, model: str) -> list[Worker]:
        return list(self._workers.get(model, {}).values())

    def capacity_per_s(self, model: str = "") -> float:
        """Return the capacity of a model's workers ("": of all workers), in service units a second; 0 if unknown.

        A worker that was never saturated has no measured capacity. The average of the others is used for it. For a
        model it is the expected capacity if none is measured. For all workers it is not, because guarantees are scaled
        down by it.
        """
        known = self._capacity_per_s
        if known is None:
            known = self._capacity_per_s = {name: _capacity_per_s(its.values()) for name, its in self._workers.items()}
            known[""] = _measured_per_s([worker for its in self._workers.values() for worker in its.values()])
        return known.get(model, 0.0)


class Tenures:
    """For each model the workers of several models that can load it, by the time since which each keeps its own, and
    those that are ordered to load it. It changes with a worker's models, model or order, not with its calls."""

    def __init__(self) -> None:
        self._kept: dict[str, list[tuple[float, str]]] = {}
        """The times in Unix seconds, sorted, with the workers' names, by model."""
        self._loading: dict[str, dict[str, Worker]] = {}
        self._known: dict[str, tuple[float, str, tuple[str, ...]]] = {}
        """What is entered for each worker: its time, the model that it loads, and its models."""

    def update(self, worker: Worker) -> None:
        """Bring the entries up to date with the worker."""
        since = max(worker.config.loaded_at, worker.ordered_at)
        known = (since, worker.load, tuple(worker.swap_s))
        if self._known.get(worker.name) == known:
            return
        self.remove(worker.name)
        self._known[worker.name] = known
        for model in worker.swap_s:
            insort(self._kept.setdefault(model, []), (since, worker.name))
        if worker.load:
            self._loading.setdefault(worker.load, {})[worker.name] = worker

    def remove(self, name: str) -> None:
        """Remove the entries of the worker of this name, if there are any."""
        since, load, models = self._known.pop(name, (0.0, "", ()))
        for model in models:
            kept = self._kept[model]
            del kept[bisect_left(kept, (since, name))]
            if not kept:
                del self._kept[model]
        if load:
            self._loading[load].pop(name)
            if not self._loading[load]:
                del self._loading[load]

    def longest(self, model: str, most: int) -> list[str]:
        """Return the names of at most so many workers that can load the model, the longest tenure first."""
        return [name for _, name in self._kept.get(model, ())[:most]]

    def loading(self, model: str) -> Collection[Worker]:
        """Return the workers that are ordered to load the model."""
        return self._loading.get(model, {}).values()


def _capacity_per_s(workers: Collection[Worker]) -> float:
    expected = [worker.capacity_per_s for worker in workers if worker.capacity_per_s]
    return _measured_per_s(workers) or (sum(expected) * (len(workers) / len(expected)) if expected else 0.0)


def _measured_per_s(workers: Collection[Worker]) -> float:
    measured = [worker.config.service_per_s for worker in workers if worker.config.service_per_s]
    return sum(measured) * (len(workers) / len(measured)) if measured else 0.0


def _load(worker: Worker) -> float:
    return len(worker.running) / worker.slots


DEADLINES_SLACK = 64
"""The heaps may hold two entries for each call, and DEADLINES_SLACK more. A sweep begins at three quarters of it."""
SWEPT = 8

DUE_MAX = 400
"""The most calls that expire in one entry of the log, as many as an entry has commands, so that it does not stop a
leader for longer. The next tick takes the others, 50 ms later."""


class Deadlines:
    """The deadlines of waiting calls, in a heap. The entry of a call that no longer waits is dead, and is dropped
    later.

    `calls`: the shard's calls by id. An entry is dead if its call is not in `calls`, or runs. With too many dead
    entries a sweep begins. It stops nothing, however long the heap is: the heap is put aside, and with each call that
    begins to wait, SWEPT entries move from its end to a new heap, without the dead ones. (A heap without its last entry
    is a heap.)
    """

    def __init__(self, calls: Mapping[str, Call]) -> None:
        self._calls = calls
        self._heap: list[tuple[float, str]] = []
        self._old: list[tuple[float, str]] = []
        """The rest of the heap from before the sweep; empty if there is no sweep."""
        self._moved: set[str] = set()
        """During a sweep, the calls with an entry that was moved. A second one is dropped."""

    def __len__(self) -> int:
        return len(self._heap) + len(self._old)

    def add(self, call: Call) -> None:
        """Add a call that begins to wait."""
        heappush(self._heap, (call.terms.deadline_at, call.id))
        if self._old:
            self._move(self._old[-SWEPT:])
            del self._old[-SWEPT:]
        elif 4 * len(self._heap) > 3 * (2 * len(self._calls) + DEADLINES_SLACK):
            self._heap, self._old = [], self._heap
            self._moved.clear()

    def take_due(self, now: float) -> list[str]:
        """Return the ids of up to DUE_MAX waiting calls after their deadline, and drop their entries."""
        due: dict[str, None] = {}
        while self._has_head() and self._heap[0][0] <= now and len(due) < DUE_MAX:
            call_id = heappop(self._heap)[1]
            call = self._calls.get(call_id)
            if call is not None and not call.worker and call.terms.deadline_at <= now:
                due[call_id] = None
        return list(due)

    def next(self) -> float:
        """Return the earliest deadline of a waiting call; infinity if none waits."""
        while self._has_head():
            if self._is_live(self._heap[0]):
                return self._heap[0][0]
            heappop(self._heap)
        return inf

    def _has_head(self) -> bool:
        """Return whether there is an entry; the first one is then the head of `_heap`."""
        while self._old and (not self._heap or self._old[0] < self._heap[0]):
            self._move((heappop(self._old),))
        return bool(self._heap)

    def _move(self, entries: Iterable[tuple[float, str]]) -> None:
        """Move entries of the old heap, without those that are dead or whose calls have another one."""
        moved, calls = self._moved, self._calls
        for entry in entries:
            deadline_at, call_id = entry
            call = calls.get(call_id)
            if call is None or call.worker or call.terms.deadline_at != deadline_at or call_id in moved:
                continue
            moved.add(call_id)
            heappush(self._heap, entry)

    def _is_live(self, entry: tuple[float, str]) -> bool:
        deadline_at, call_id = entry
        call = self._calls.get(call_id)
        return call is not None and not call.worker and call.terms.deadline_at == deadline_at


IDLE_GROUPS = 64
"""A log of format 5 checks one of these groups a second."""
IDLE_PARTS = 64
"""A log of format 6 checks as many parts of a group in a second, so that no entry checks many tenants."""
CHECKED_MOST = 200
"""An entry checks no further part after so many tenants."""
_SPREAD = 2531
"""The golden section of IDLE_GROUPS * IDLE_PARTS, as an odd number. It spreads the parts of successive entries
evenly."""


class Promises:
    """The sum of the guaranteed rates of active tenants."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self._tenants = 0

    def update(self, tenant: Tenant) -> None:
        """Add or remove the tenant's rate after a change of its rate or of its activity."""
        rate_per_s = tenant.config.rate_per_s if tenant.is_active else 0.0
        if rate_per_s != tenant.promised_per_s:
            self._tenants += (rate_per_s > 0) - (tenant.promised_per_s > 0)
            change = rate_per_s - tenant.promised_per_s
            self.per_s = self.per_s + change if self._tenants else 0.0  # so that rounding does not add up
            tenant.promised_per_s = rate_per_s


class IdleTenants:
    """Tenants without calls, in groups by their names, and in parts of groups."""

    def __init__(self) -> None:
        self._parts: list[set[str]] = [set() for _ in range(IDLE_GROUPS * IDLE_PARTS)]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def update(self, tenant: Tenant, *, is_known: bool) -> None:
        """Add or remove the tenant after a change of its activity. `is_known`: the shard holds the tenant."""
        is_idle = is_known and not tenant.is_active
        if is_idle is tenant.is_idle:
            return
        tenant.is_idle = is_idle
        part = self._parts[zlib.crc32(tenant.name.encode()) % len(self._parts)]
        if is_idle:
            part.add(tenant.name)
        else:
            part.discard(tenant.name)

    def due_groups(self, before: float, now: float) -> Iterator[set[str]]:
        """Yield the tenants that are due between two entries of a log of format 5: each group once in IDLE_GROUPS
        seconds, also if that is all of them. The caller removes forgotten tenants from the set."""
        for second in range(int(before) + 1, min(int(now), int(before) + IDLE_GROUPS) + 1):
            yield from self._parts[second % IDLE_GROUPS :: IDLE_GROUPS]

    def due_parts(self, position: int, before: float, now: float) -> Iterator[set[str]]:
        """Yield the tenants that are due with the entry at `position` of a log of format 6: as many parts in a second
        as a group has, until CHECKED_MOST tenants. The caller removes forgotten tenants from the set."""
        parts = len(self._parts)
        first, count, checked = position * _SPREAD, int(now * IDLE_PARTS) - int(before * IDLE_PARTS), 0
        for number in range(first, first + min(count, parts)):
            part = self._parts[number % parts]
            checked += len(part)
            yield part
            if checked >= CHECKED_MOST:
                return

"""The picture of a running gate at one moment: tenants, tiers, workers, models, the plan, and the last minute. Pure.

`take_picture` gathers it once from the state of a shard. headgate/monitor.py renders it for the terminal and as JSON,
functions/http_api/operator as the operator's page.

Recent has the figures of the last minute, from the facts of the log: waiting times, first-token latencies and service.
The latency of a call is the sum of its wait at the gate, from `Accepted` to its last `Dispatched`, and the worker's
time to the first token, which `Ended` contains. A call is counted when it ends. Calls that were accepted before the
first entry that was read are left out. Times are Unix seconds of the entries, service is in service units.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dispatcher.model.facts import Accepted, Dispatched, Dropped, Ended, Entry
from dispatcher.model.fleet import GroupPlan
from dispatcher.model.usage import TenantRow
from dispatcher.policies.percentiles import percentile
from dispatcher.policies.tiers import TENANT_TIERS
from dispatcher.shard.shard import Shard
from dispatcher.shard.state.records import Worker
from dispatcher.shard.state.state import State
from dispatcher.shard.swapping import ORDER_S

WINDOW_S = 60.0
_SAMPLES_MAX = 100_000
"""The most ended calls that are kept. The oldest are dropped first."""


@dataclass(slots=True)
class _OpenWindow:
    tenant: str
    accepted_at: float
    dispatched_at: float | None = None


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    tenant: str
    served: float
    wait_s: float
    first_token_s: float | None


@dataclass(frozen=True, slots=True)
class TenantRecent:
    """One tenant's window. Percentiles are None without a sample."""

    ended: int
    service_per_s: float
    share: float
    """This tenant's fraction of the service of all tenants; 0 if none was served."""
    wait_p50_s: float | None
    wait_p99_s: float | None
    first_token_p50_s: float | None
    first_token_p99_s: float | None


_IDLE = TenantRecent(0, 0.0, 0.0, None, None, None, None)


@dataclass(slots=True)
class Recent:
    """The ended calls of the window. Call `note` with the entries in the order of their positions."""

    window_s: float = WINDOW_S
    _open: dict[str, _OpenWindow] = field(default_factory=dict)
    _samples: deque[_Sample] = field(default_factory=lambda: deque(maxlen=_SAMPLES_MAX))
    _since: float | None = None
    """The time of the first entry."""
    _position: int = -1
    """The position of the last noted entry."""

    def note(self, entry: Entry) -> None:
        """Count the facts of an entry. Ignore an entry that was counted before: a replica may read the log again."""
        if entry.position <= self._position:
            return
        self._position = entry.position
        if self._since is None:
            self._since = entry.at
        for fact in entry.facts:
            match fact:
                case Accepted():
                    self._open[fact.id] = _OpenWindow(fact.terms.tenant, entry.at)
                case Dispatched() if (call := self._open.get(fact.id)) is not None:
                    call.dispatched_at = entry.at
                case Ended() if (call := self._open.pop(fact.id, None)) is not None:
                    self._samples.append(_sample(call, fact, entry.at))
                case Dropped():
                    self._open.pop(fact.id, None)

    def restart(self) -> None:
        """Forget the calls that have not ended. A snapshot replaced the entries that follow, and perhaps their ends."""
        self._open.clear()
        self._since = None

    def of_tenants(self, now: float) -> dict[str, TenantRecent]:
        """Return the figures of the window that ends at `now`, for each tenant with an ended call in it."""
        while self._samples and self._samples[0].at < now - self.window_s:
            self._samples.popleft()
        by_tenant: dict[str, list[_Sample]] = {}
        for sample in self._samples:
            by_tenant.setdefault(sample.tenant, []).append(sample)
        total = sum(sample.served for sample in self._samples)
        span = min(self.window_s, max(1.0, now - (self._since or now)))
        return {tenant: _recent(samples, total, span) for tenant, samples in by_tenant.items()}


def _sample(call: _OpenWindow, end: Ended, at: float) -> _Sample:
    wait_s = (call.dispatched_at or at) - call.accepted_at
    first_token_s = wait_s + end.first_token_s if end.first_token_s > 0 else None
    return _Sample(at, call.tenant, end.served, wait_s, first_token_s)


def _recent(samples: list[_Sample], total: float, span_s: float) -> TenantRecent:
    served = sum(sample.served for sample in samples)
    waits = [sample.wait_s for sample in samples]
    first_tokens = [sample.first_token_s for sample in samples if sample.first_token_s is not None]
    return TenantRecent(
        ended=len(samples),
        service_per_s=served / span_s,
        share=served / total if total else 0.0,
        wait_p50_s=percentile(waits, 0.5),
        wait_p99_s=percentile(waits, 0.99),
        first_token_p50_s=percentile(first_tokens, 0.5),
        first_token_p99_s=percentile(first_tokens, 0.99),
    )


LATE_S = 10.0
"""A call that its tenant's guarantee covers may wait this long: until a running call ends and frees a slot."""


@dataclass(frozen=True, slots=True)
class TenantPicture:
    """`waits_since`: when the first of its waiting calls arrived, in Unix seconds; None if none waits."""

    row: TenantRow
    recent: TenantRecent
    waits_since: float | None = None

    @property
    def is_below_guarantee(self) -> bool:
        """Whether its guarantee was not kept: a call waited for LATE_S while the tenant had credit for it, and what the
        tenant got in the last minute, with its running calls, is less than its guarantee.

        A tenant that asks for less than its guarantee has credit too, but its calls do not wait so long. A tenant
        without credit has had its guarantee, and waits behind its own calls.
        """
        row = self.row
        if not row.rate_per_s or self.waits_since is None or row.credit is None:
            return False
        had_credit = row.credit >= min(row.burst, LATE_S * row.rate_per_s)
        given = self.recent.service_per_s * WINDOW_S + row.reserved
        return had_credit and row.at - self.waits_since > LATE_S and given < row.rate_per_s * WINDOW_S


@dataclass(frozen=True, slots=True)
class TierPicture:
    """`tenants`: those with a call. `oldest_s`: how long the first waiting call has waited; None if none waits."""

    tier: str
    tenants: int
    waiting: int
    running: int
    oldest_s: float | None


@dataclass(frozen=True, slots=True)
class WorkerPicture:
    """A worker in the log. `service_per_s`: its measured capacity in service units a second, 0 if unknown.

    `ordered`: the model that the worker is ordered to load since `ordered_s` seconds, empty if none. `planned`: its
    model in the plan, empty without a plan. `order`: the numbers of its next groups; empty if the plan is old.
    """

    worker: str
    url: str
    model: str
    state: str
    slots: int
    running: int
    service_per_s: float
    bytes_per_token: float
    loaded_s: float | None = None
    """For how long it has its model; None for a worker that keeps its model."""
    swap_s: Mapping[str, float] = field(default_factory=dict)
    ordered: str = ""
    ordered_s: float = 0.0
    planned: str = ""
    order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelPicture:
    """`waiting`: its waiting calls. `oldest_s`: how long the first of them has waited. `loading`: the workers that are
    ordered to load it."""

    model: str
    waiting: int
    oldest_s: float
    workers: tuple[str, ...]
    loading: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanPicture:
    """`groups`: by number. `is_fresh`: the plan's order still counts."""

    made_at: float
    is_fresh: bool
    groups: tuple[GroupPlan, ...]

    @property
    def late_requests(self) -> int:
        return sum(group.requests for group in self.groups if group.is_late)


@dataclass(frozen=True, slots=True)
class Picture:
    """The state after all entries below `position`, at `now`. `at`: the time of the last entry, 0 if there is none.
    Both are Unix seconds."""

    position: int
    at: float
    now: float
    leader: str
    """The address of the process that decides for the others; empty if there is none."""
    epoch: int
    """The number of takeovers so far."""
    tenants: tuple[TenantPicture, ...]
    """The active tenants, by name."""
    tiers: tuple[TierPicture, ...]
    """Every tier that a tenant can have, the most urgent first."""
    workers: tuple[WorkerPicture, ...]
    """The workers by name."""
    models: tuple[ModelPicture, ...]
    """The models that workers have or can load, or that calls wait for, by name."""
    plan: PlanPicture | None = None

    @property
    def capacity_per_s(self) -> float:
        return sum(worker.service_per_s for worker in self.workers)

    @property
    def guaranteed_per_s(self) -> float:
        """The sum of the active tenants' guaranteed rates, in service units a second."""
        return sum(tenant.row.rate_per_s for tenant in self.tenants)

    @property
    def is_overbooked(self) -> bool:
        """Whether the guarantees exceed the measured capacity."""
        return 0 < self.capacity_per_s < self.guaranteed_per_s

    def tenant(self, identity: str) -> TenantPicture | None:
        """Return an active tenant; None if it is idle."""
        return next((tenant for tenant in self.tenants if tenant.row.tenant == identity), None)


@dataclass(frozen=True, slots=True)
class _FirstArrivals:
    """When the first of the waiting calls arrived, in Unix seconds, by tenant, by tier and by model."""

    tenants: dict[str, float] = field(default_factory=dict)
    tiers: dict[str, float] = field(default_factory=dict)
    models: dict[str, float] = field(default_factory=dict)


def take_picture(shard: Shard, recent: Mapping[str, TenantRecent], now: float) -> Picture:
    """Return the picture of the shard at `now` (Unix seconds). `recent`: the last minute's figures of each tenant."""
    state = shard.state
    arrivals = _first_arrivals(state)
    rows = sorted(shard.tenant_rows(), key=lambda row: row.tenant)
    plan = state.plan
    return Picture(
        position=shard.position,
        at=shard.at,
        now=now,
        leader=shard.leader,
        epoch=shard.epoch,
        tenants=tuple(
            TenantPicture(_at(row, now), recent.get(row.tenant, _IDLE), arrivals.tenants.get(row.tenant))
            for row in rows
        ),
        tiers=_tiers(state, arrivals.tiers, now),
        workers=_workers(state, now),
        models=_models(state, arrivals.models, now),
        plan=PlanPicture(plan.made_at, _is_fresh(state, now), plan.groups) if plan is not None else None,
    )


def _first_arrivals(state: State) -> _FirstArrivals:
    found = _FirstArrivals()
    for call in state.calls.values():
        if call.queued:
            places = (
                (found.tenants, call.tenant.name),
                (found.tiers, call.tenant.config.tier),
                (found.models, call.model),
            )
            for arrivals, name in places:
                arrivals[name] = min(call.arrived_at, arrivals.get(name, call.arrived_at))
    return found


def _at(row: TenantRow, now: float) -> TenantRow:
    """Return the row with the credit that its tenant has earned since the last entry."""
    if now <= row.at:
        return row
    if row.credit is None:
        return replace(row, at=now)
    return replace(row, credit=min(row.burst, row.credit + (now - row.at) * row.rate_per_s), at=now)


def _tiers(state: State, arrivals: Mapping[str, float], now: float) -> tuple[TierPicture, ...]:
    found = []
    for tier in TENANT_TIERS:
        tenants = [each for each in state.tenants.values() if each.config.tier == tier]
        waiting = [each.waiting + each.suspended for each in tenants]
        running = [each.running for each in tenants]
        busy = sum(1 for counts in zip(waiting, running, strict=True) if any(counts))
        oldest_s = now - arrivals[tier] if tier in arrivals else None
        found.append(TierPicture(tier.value, busy, sum(waiting), sum(running), oldest_s))
    return tuple(found)


def _is_fresh(state: State, now: float) -> bool:
    return state.plan is not None and now - state.plan.made_at <= ORDER_S


def _workers(state: State, now: float) -> tuple[WorkerPicture, ...]:
    is_fresh = _is_fresh(state, now)
    planned = {each.worker: each for each in state.plan.workers} if state.plan is not None else {}

    def picture(worker: Worker) -> WorkerPicture:
        own, config = planned.get(worker.name), worker.config
        return WorkerPicture(
            worker=worker.name,
            url=config.url,
            model=worker.model,
            state=config.state,
            slots=config.slots,
            running=len(worker.running),
            service_per_s=config.service_per_s,
            bytes_per_token=config.bytes_per_token,
            loaded_s=max(0.0, now - config.loaded_at) if config.loaded_at else None,
            swap_s=worker.swap_s,
            ordered=worker.load,
            ordered_s=max(0.0, now - worker.ordered_at) if worker.load else 0.0,
            planned=own.model if own is not None else "",
            order=own.order if own is not None and is_fresh else (),
        )

    return tuple(picture(state.workers[name]) for name in sorted(state.workers))


def _models(state: State, arrivals: Mapping[str, float], now: float) -> tuple[ModelPicture, ...]:
    workers: Sequence[Worker] = [state.workers[name] for name in sorted(state.workers)]
    names = {*state.waiting_models, *(worker.model for worker in workers), *(m for w in workers for m in w.swap_s)}
    return tuple(
        ModelPicture(
            name,
            state.waiting_models.get(name, 0),
            max(0.0, now - arrivals[name]) if name in arrivals else 0.0,
            tuple(worker.name for worker in workers if worker.model == name),
            tuple(worker.name for worker in workers if worker.load == name),
        )
        for name in sorted(names)
    )

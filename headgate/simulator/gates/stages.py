"""The stages before a simulated engine: throttling, the gate, and load shedding.

Throttling (FairServe's) is for an engine without a gate (dispatcher/policies/throttling.py). Shedding is what a worker
does with arrivals while a tier is at risk. With a gate, requests wait in it for a slot of the engine, and then in the
engine.

    drive ──▶ GatedEngine ──arrive──▶ SimulatedGate ──dispatch──▶ engine
                  ▲                        ▲                         │
                  └───────── ended ────────┴───────── ended ─────────┘

The wait in the gate is part of a request's time to its first token; its `release_s` is when it reached the gate. A
request that the engine refuses at its dispatch, or drops, is not dispatched again: there is only this engine.

The charge and the slot are for the true output length: as in the VTC paper's workloads, a request names its length as
its max_tokens. Unlike a real worker, the engine model cuts no request short at its deadline.

SimulatedGate is the production's shard, with deadlines, bounded queues, refusals, and reports of the worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from dispatcher.model.commands import Attempts, Refused, Tick
from dispatcher.model.facts import Dispatched, Dropped
from dispatcher.model.shards import shard_of_tenant
from dispatcher.policies.service import ServiceFunction
from dispatcher.policies.slot_shares import ShardShare, SlotShares
from dispatcher.policies.throttling import Throttle, ThrottleLimits
from dispatcher.policies.tiers import Tier
from dispatcher.shard.alone import EPOCH, WORKER, Decided, LoneGate, report
from dispatcher.shard.settings import SATURATED
from gpu_worker.policies.capacity import MeasuredCapacity
from gpu_worker.policies.shedding import Shedder, ShedSettings
from gpu_worker.policies.slo import SloMonitor
from headgate.simulator.drive import EngineLike
from headgate.simulator.engines.interface import Observer, SimulatedEngine
from headgate.simulator.gates.spec import QUEUE_MAX, REPORT_S, GateSpec
from headgate.simulator.requests import SimRequest


class ThrottledEngine:
    """drive.EngineLike. A request's tenant is FairServe's user. A request is in the middle of an interaction when it is
    not the first stage, because a later stage is sent only after the one before it was answered.

    `saturation`: the share of the KV pool in use now, 0 to 1. A refused request counts as rejected (`throttled_user`,
    `throttled_app`).
    """

    def __init__(
        self,
        engine: EngineLike,
        limits: ThrottleLimits,
        saturation: Callable[[], float],
        *,
        saturated: float = SATURATED,
    ) -> None:
        self._engine = engine
        self._throttle = Throttle(limits)
        self._saturation = saturation
        self._saturated = saturated

    @property
    def now_s(self) -> float:
        return self._engine.now_s

    def submit(self, request: SimRequest, at_s: float) -> bool:
        arrival = request.arrival
        refused = self._throttle.decide(
            arrival.tenant,
            arrival.app or "",
            at_s,
            saturated=self._saturation() >= self._saturated,
            under_way=bool(arrival.stage),
        )
        if refused is not None:
            request.rejected = f"throttled_{refused.limit}"
            return False
        return self._engine.submit(request, at_s)

    def advance(self, until_s: float) -> list[SimRequest]:
        return self._engine.advance(until_s)


class SloObserver(Observer):
    """Passes an engine's events to an SLO monitor."""

    wants_steps = False

    def __init__(self) -> None:
        self.monitor = SloMonitor()

    def on_prefilled(self, requests: Sequence[SimRequest], now_s: float) -> None:
        for request in requests:
            self.monitor.first_token(request.request_id, now_s)

    def on_finished(self, request: SimRequest, now_s: float) -> None:
        self.monitor.on_ended(request.request_id, now_s, request.arrival.output_tokens)


class SheddingEngine:
    """drive.EngineLike. A request that is refused counts as rejected (`shed`) and is not sent again."""

    def __init__(self, engine: EngineLike, monitor: SloMonitor, settings: ShedSettings) -> None:
        self._engine = engine
        self._monitor = monitor
        self._shedder = Shedder(monitor, settings)

    @property
    def now_s(self) -> float:
        return self._engine.now_s

    def submit(self, request: SimRequest, at_s: float) -> bool:
        self._shedder.observe(at_s)
        if self._shedder.sheds(request.tier):
            request.rejected = "shed"
            return False
        self._monitor.on_arrived(request.request_id, request.tier, at_s)
        accepted = self._engine.submit(request, at_s)
        if not accepted:
            self._monitor.on_abandoned(request.request_id, at_s)
        return accepted

    def advance(self, until_s: float) -> list[SimRequest]:
        ended = self._engine.advance(until_s)
        for request in ended:  # changes nothing for a request that was served to its end
            self._monitor.on_abandoned(request.request_id, self.now_s)
        return ended


@dataclass(frozen=True, slots=True)
class Downstream:
    """What a gate calls when it has decided, and what it asks of the engine when the worker reports."""

    dispatch: Callable[[SimRequest, float], bool]
    """Send the request to the engine, at this time. False: the engine refused it and set `request.rejected`."""
    reject: Callable[[SimRequest], None]
    """Report a request that the gate gave up; `request.rejected` gives the reason. Not called after a False dispatch:
    that request is reported already."""
    service_per_s: Callable[[float], float]
    """The engine's capacity as measured by this time, in service units a second; 0 while it is unknown."""
    kv_use: Callable[[], float]
    """The part of the engine's KV cache in use now."""


_REPORTED_S = 3600.0


class SimulatedGate:
    """Times are seconds of the run and never fall from call to call. `share`: the part of the slots that this gate has,
    if it is one shard of several; None: all.

    A request that the gate refuses counts as rejected: `full` (its tenant's queue is full), `throttled_user` or
    `throttled_app`, or `timeout` (not dispatched before its deadline).
    """

    def __init__(
        self, spec: GateSpec, service: ServiceFunction, downstream: Downstream, share: ShardShare | None = None
    ) -> None:
        self._spec = spec
        self._service = service
        self._downstream = downstream
        self._share = share
        first = report(slots=spec.slots if share is None else share.slots(spec.slots))
        self._gate = LoneGate(spec.shard_settings(service), first)
        self._gate.unnamed = self._gate.unnamed._replace(waiting_max=QUEUE_MAX)
        for name, tenant in spec.tenants.items():
            tier = tenant.tier or Tier.STANDARD
            self._gate.set_tenant(name, tenant.share, tier=tier, waiting_max=tenant.queue_max)
        self._held: dict[str, SimRequest] = {}
        """Requests that wait or run, by the id of their call."""
        self._names: dict[str, str] = {}
        """The ids of their calls, by request."""
        shard = 0 if share is None else share.shard
        self._report_s = REPORT_S * shard / spec.shards if spec.uses_reports else inf

    def arrive(self, request: SimRequest, now_s: float) -> None:
        arrival, now = request.arrival, EPOCH + now_s
        name = self._gate.next_name()
        self._held[name] = request
        self._names[request.request_id] = name
        decided = self._gate.submit(
            arrival.tenant,
            self._service(arrival.input_tokens, max(1, arrival.output_tokens)),  # a client asks for at least one token
            now,
            deadline_at=now + self._spec.deadline_s,
            app=arrival.app or "",
            interaction=arrival.interaction or "",
        )
        if isinstance(decided.outcome, Refused):
            self._reject(name, _REASONS.get(decided.outcome.code, decided.outcome.code))
        else:
            self._follow(decided, now_s)

    def on_ended(self, request: SimRequest, now_s: float) -> None:
        """Settle a dispatched request, served or dropped by the engine, and give its slot to the next."""
        name = self._names.pop(request.request_id)
        del self._held[name]
        outcome = "done" if request.rejected is None else "failed"
        ended = self._gate.finish(
            name, *request.charged_tokens, EPOCH + now_s, outcome=outcome, cached_tokens=request.cached_tokens
        )
        self._follow(ended, now_s)

    def next_s(self) -> float:
        """Return the next time at which the gate acts by itself (a deadline, a report); infinity if there is none."""
        return min(self._gate.next_tick() - EPOCH, self._report_s)

    def advance(self, until_s: float) -> None:
        """Do everything that is due by `until_s`."""
        while self.next_s() <= until_s:
            if self._report_s <= until_s:
                self._report(self._report_s)
                self._report_s += REPORT_S
            else:
                self._follow(self._gate.decide(Tick(), now=self._gate.next_tick()), until_s)

    def skip_idle(self, now_s: float) -> None:
        """Leave out the reports of a long idle time but those of its last hour: they all say the same."""
        idle = (now_s - _REPORTED_S - self._report_s) // REPORT_S
        if 0 < idle < inf:
            self._report_s += idle * REPORT_S

    def _report(self, now_s: float) -> None:
        capacity_per_s, kv_use = self._downstream.service_per_s(now_s), self._downstream.kv_use()
        slots = self._spec.slots if self._share is None else self._share.slots(self._spec.slots)
        own_per_s = capacity_per_s * slots / self._spec.slots
        decided = self._gate.decide(report(slots=slots, kv_use=kv_use, capacity_per_s=own_per_s), now=EPOCH + now_s)
        if self._share is not None and isinstance(decided.outcome, Attempts):
            self._share.note(decided.outcome.need, len(decided.outcome.held), now_s)
        self._follow(decided, now_s)

    def _follow(self, decided: Decided, now_s: float) -> None:
        """Send dispatched requests to the engine. The slot of one that the engine refuses is free again."""
        decisions = deque([decided])
        while decisions:
            for fact in decisions.popleft().facts:
                if type(fact) is Dropped:
                    self._reject(fact.id, "timeout")
                elif type(fact) is Dispatched and not self._downstream.dispatch(self._held[fact.id], now_s):
                    del self._names[self._held.pop(fact.id).request_id]
                    decisions.append(self._gate.finish(fact.id, 0, 0, EPOCH + now_s, outcome="failed"))

    def _reject(self, name: str, reason: str) -> None:
        request = self._held.pop(name)
        del self._names[request.request_id]
        request.rejected = reason
        self._downstream.reject(request)


class ShardedGate:
    """The gates of a pool with several shards, as one: each has the tenants of its shard, and a part of the slots.

    It has the methods of SimulatedGate. A worker reports to the shards in turn, each once in REPORT_S.
    """

    def __init__(self, spec: GateSpec, service: ServiceFunction, downstream: Downstream) -> None:
        shares = SlotShares(WORKER, spec.shards)
        self._gates = [
            SimulatedGate(spec, service, downstream, ShardShare(shares, shard)) for shard in range(spec.shards)
        ]

    def arrive(self, request: SimRequest, now_s: float) -> None:
        self._of(request).arrive(request, now_s)

    def skip_idle(self, now_s: float) -> None:
        for gate in self._gates:
            gate.skip_idle(now_s)

    def on_ended(self, request: SimRequest, now_s: float) -> None:
        self._of(request).on_ended(request, now_s)

    def next_s(self) -> float:
        return min(gate.next_s() for gate in self._gates)

    def advance(self, until_s: float) -> None:
        """Do everything that is due by `until_s`, in order of time."""
        while (due_s := self.next_s()) <= until_s:
            for gate in self._gates:
                gate.advance(due_s)

    def _of(self, request: SimRequest) -> SimulatedGate:
        return self._gates[shard_of_tenant(request.tenant, len(self._gates))]


_REASONS = {"queue_full": "full"}
"""SimRequest.rejected for codes of a refusal; the others stand for themselves."""


class EngineCapacity:
    """The engine's capacity as a worker's agent measures it: at its heartbeats, while requests wait in the engine."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        self._capacity = MeasuredCapacity()

    def service_per_s(self, now_s: float) -> float:
        served = sum(tenant.service for tenant in self._engine.service_by_tenant.values())
        return self._capacity.observe(now_s, served, saturated=self._engine.waiting > 0)


class GatedEngine:
    """drive.EngineLike: a gate and the engine behind it.

    `service_per_s`: the engine's measured capacity at a time, in service units a second; 0 while it is unknown.
    `kv_use`: the part of its KV cache in use now.
    """

    def __init__(
        self,
        engine: EngineLike,
        spec: GateSpec,
        service: ServiceFunction,
        service_per_s: Callable[[float], float],
        kv_use: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._rejected: list[SimRequest] = []
        self._open = 0
        downstream = Downstream(self._dispatch, self._rejected.append, service_per_s, kv_use)
        self._gate = (SimulatedGate if spec.shards == 1 else ShardedGate)(spec, service, downstream)

    @property
    def now_s(self) -> float:
        return self._engine.now_s

    def submit(self, request: SimRequest, at_s: float) -> bool:
        if not self._open:
            self._gate.skip_idle(at_s)
        self._open += 1
        self._gate.arrive(request, at_s)
        if request.rejected is None:
            return True
        self._rejected.remove(request)
        self._open -= 1
        return False

    def advance(self, until_s: float) -> list[SimRequest]:
        while self._open:
            if self._rejected:
                rejected, self._rejected[:] = list(self._rejected), []
                return self._close(rejected)
            due_s = min(self._gate.next_s(), until_s)
            if ended := self._engine.advance(due_s):
                for request in ended:
                    self._gate.on_ended(request, self._engine.now_s)
                return self._close(ended)
            if due_s >= until_s:
                return []
            self._gate.advance(due_s)
        return []

    def _close(self, ended: list[SimRequest]) -> list[SimRequest]:
        self._open -= len(ended)
        return ended

    def _dispatch(self, request: SimRequest, at_s: float) -> bool:
        if self._engine.submit(request, at_s):
            return True
        self._rejected.append(request)
        return False

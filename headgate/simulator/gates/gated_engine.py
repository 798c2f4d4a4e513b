"""A gate before a simulated engine: requests wait in the gate for one of its slots, and then in the engine.

    drive ──▶ GatedEngine ──arrive──▶ SimulatedGate ──dispatch──▶ engine
                  ▲                        ▲                         │
                  └───────── ended ────────┴───────── ended ─────────┘

The wait in the gate is part of a request's time to its first token; its `release_s` is when it reached the gate. A
request that the engine refuses at its dispatch, or drops, is not dispatched again: there is only this engine.

The charge and the slot are for the true output length: as in the VTC paper's workloads, a request names its length as
its max_tokens. Unlike a real worker, the engine model cuts no request short at its deadline.
"""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.policies.service import ServiceFunction
from gpu_worker.policies.capacity import MeasuredCapacity
from headgate.simulator.drive import EngineLike
from headgate.simulator.engines.interface import SimulatedEngine
from headgate.simulator.gates.simulated_gate import Downstream, SimulatedGate
from headgate.simulator.gates.spec import GateSpec
from headgate.simulator.requests import SimRequest


class EngineCapacity:
    """The engine's capacity as a worker's agent measures it: at its heartbeats, while requests wait in the engine."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        self._capacity = MeasuredCapacity()

    def service_per_s(self, now_s: float) -> float:
        served = sum(tenant.service for tenant in self._engine.policy.received.values())
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
        self._gate = SimulatedGate(spec, service, downstream)

    @property
    def now_s(self) -> float:
        return self._engine.now_s

    def submit(self, request: SimRequest, at_s: float) -> bool:
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

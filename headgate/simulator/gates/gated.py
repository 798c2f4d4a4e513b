"""A gate before the simulated engine: requests wait there for one of its slots, and in the engine only then.

    drive ──▶ GatedEngine ──arrive──▶ SimulatedGate ──dispatch──▶ SimulatedEngine
                  ▲                        ▲                            │
                  └────── finished ────────┴────────── ended ───────────┘

Two kinds of gate stand behind one small interface: the production operations over the store in memory
(gates/operations.py), and an order by itself (gates/order.py), for those that no store keeps.

The wait in the gate is part of a request's time to its first token, and its `release_s` is when it reached the gate.
What the gate refuses counts as rejected: `full` (its tenant's line is), `timeout` (not dispatched before its deadline).
A request is charged, and its slot held, for its true output: like those of the VTC paper's workloads it names its
length as its max_tokens. Unlike the real worker's, the engine model cuts nothing short: what was dispatched in time is
served to its end.
"""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.policies.service import ServiceFunction
from headgate.simulator.engines.interface import Engine
from headgate.simulator.gates.interface import Door, SimulatedGate
from headgate.simulator.gates.spec import GateSpec
from headgate.simulator.requests import SimRequest

GateMaker = Callable[[GateSpec, ServiceFunction, Door], SimulatedGate]


class GatedEngine:
    """drive.Engine: a gate and the engine behind it. To be closed."""

    def __init__(self, engine: Engine, spec: GateSpec, service: ServiceFunction) -> None:
        self._engine = engine
        self._capacity = _EngineCapacity(engine)
        self._gone: list[SimRequest] = []
        self._open = 0
        self._gate = _maker(spec)(spec, service, Door(self._dispatch, self._gone.append, self._capacity.note))

    @property
    def now_s(self) -> float:
        return self._engine.now_s

    def submit(self, request: SimRequest, at_s: float) -> bool:
        """It reaches the gate. False: refused at once, `request.rejected` says why."""
        self._open += 1
        self._gate.arrive(request, at_s)
        if request.rejected is None:
            return True
        self._gone.remove(request)
        self._open -= 1
        return False

    def advance(self, until_s: float) -> list[SimRequest]:
        """Go on until requests are served or given up, they are returned, or until `until_s`."""
        while self._open:
            if self._gone:
                return self._closed(self._gone)
            due_s = min(self._gate.next_s(), until_s)
            finished = self._engine.advance(due_s)
            if finished:
                for request in finished:
                    self._gate.ended(request, request.finish_s)
                return self._closed(finished)
            if due_s >= until_s:
                return []
            self._gate.advance(due_s)
        return []

    def close(self) -> None:
        self._gate.close()

    def _closed(self, requests: list[SimRequest]) -> list[SimRequest]:
        over = list(requests)
        self._open -= len(over)
        if requests is self._gone:
            self._gone.clear()
        return over

    def _dispatch(self, request: SimRequest, at_s: float) -> bool:
        if self._engine.submit(request, at_s):
            return True
        self._gone.append(request)
        return False


class _EngineCapacity:
    """What the engine can do, as the real worker's agent measures it: at its heartbeats, while requests wait in it."""

    def __init__(self, engine: Engine) -> None:
        from gpu_worker.policies.capacity import MeasuredCapacity

        self._engine = engine
        self._meter = MeasuredCapacity()

    def note(self, now_s: float) -> float:
        served = sum(tenant.service for tenant in self._engine.policy.received.values())
        return self._meter.observe(now_s, served, saturated=self._engine.waiting > 0)


def _maker(spec: GateSpec) -> GateMaker:
    if spec.through_operations:
        from headgate.simulator.gates.operations import OperationsGate

        return OperationsGate
    from headgate.simulator.gates.order import OrderGate

    return OrderGate

"""A worker in virtual time: one engine with one model. A swap drains it, takes its time, and loads the next model.

    serving ──swap()──▶ draining ──nothing runs, or drain_s have passed──▶ loading ──load_s──▶ serving

A swap discards the engine. Requests that still run after drain_s are returned: they go on on any worker. A worker that
fails is, to a planner, one that loads its model for as long as it is away; its requests begin anew.

A worker measures its loads, as a real one does (gpu_worker/policies/swap_seconds.py): planners see what it expects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from gpu_worker.policies.swap_seconds import Slowness, SwapSeconds
from headgate.simulator.engines.fitted_range import RangeWatch
from headgate.simulator.engines.interface import Observer, SimulatedEngine
from headgate.simulator.fleet.spec import Loadable, WorkerSpec
from headgate.simulator.requests import SimRequest

EngineMaker = Callable[[Loadable, Observer], SimulatedEngine | RangeWatch]


class _TokenCounter(Observer):
    """Counts the tokens of each running request."""

    def __init__(self) -> None:
        self._steps = 0
        self._first_at: dict[str, int] = {}

    def on_prefilled(self, requests: Sequence[SimRequest], now_s: float) -> None:
        for request in requests:
            self._first_at[request.request_id] = self._steps

    def on_decoded(self, steps: int, now_s: float) -> None:
        self._steps += steps

    def on_finished(self, request: SimRequest, now_s: float) -> None:
        self._first_at.pop(request.request_id, None)

    def count_tokens(self, request_id: str) -> int:
        first_at = self._first_at.get(request_id)
        return 0 if first_at is None else 1 + self._steps - first_at


class SimulatedWorker:
    """`model`: the loaded one. `target`: what it swaps to; None while it serves. `due_s`: when its drain or its loading
    ends at the latest; infinity while it serves. Times are seconds of the run."""

    def __init__(self, spec: WorkerSpec, make_engine: EngineMaker) -> None:
        self.name = spec.name
        self.kind = spec.kind
        self.models = spec.models
        self.model: str | None = None
        self.target: str | None = None
        self.due_s = inf
        self.is_away = False
        """True from a failure until its model is loaded again."""
        self.running: dict[str, SimRequest] = {}
        self.loads: dict[str, int] = {}
        """How often a swap began to load each model."""
        self.swapping_s = 0.0
        self.loading_since_s = inf
        """When its loading began; infinity while it serves or drains."""
        slowness = Slowness()
        self._seconds = {model: SwapSeconds(each.swap_s, slowness) for model, each in spec.models.items()}
        self._make_engine = make_engine
        self._tokens = _TokenCounter()
        self._engine: SimulatedEngine | RangeWatch | None = None
        if spec.loaded is not None:
            self._load(spec.loaded)

    @property
    def is_draining(self) -> bool:
        return self.target is not None and self.model is not None

    @property
    def next_model(self) -> str | None:
        """The model that it serves now, or after the swap; None if it never had one."""
        return self.target or self.model

    @property
    def free(self) -> int:
        """Slots for requests of the loaded model; 0 while it swaps."""
        return 0 if self.target is not None or self.model is None else self.models[self.model].slots - len(self.running)

    @property
    def now_s(self) -> float:
        """How far the engine has run."""
        return 0.0 if self._engine is None else self._engine.now_s

    def swap_to_s(self, model: str) -> float:
        """Return what the worker expects a load of the model to take."""
        return self._seconds[model].expected_s

    def loading_left_s(self, now_s: float) -> float:
        """Return the expected rest of its loading; 0 while it serves or drains. A failed one is back when it says."""
        if self.target is None or self.is_draining:
            return 0.0
        if self.loading_since_s == inf:
            return max(0.0, self.due_s - now_s)
        return max(0.0, self.loading_since_s + self.swap_to_s(self.target) - now_s)

    def next_s(self) -> float:
        """Return the time of the engine's next event; infinity without one."""
        return inf if self._engine is None else self._engine.next_s()

    def advance(self, until_s: float) -> list[SimRequest]:
        """Run the engine until requests end, and return them, or until `until_s`, and return []."""
        ended = [] if self._engine is None else self._engine.advance(until_s)
        return [self.running.pop(request.request_id) for request in ended]

    def dispatch(self, request: SimRequest, at_s: float) -> bool:
        """Send the request to the engine. False: the engine can never serve it, and its `rejected` is set.

        Raises ValueError unless the request's model is loaded and a slot is free.
        """
        if self._engine is None or request.model != self.model or self.free < 1:
            raise ValueError(f"worker {self.name!r} has no slot for {request.model!r} now")
        if not self._engine.submit(request.attempt, at_s):
            return False
        self.running[request.request_id] = request
        return True

    def swap(self, model: str, at_s: float, drain_s: float) -> None:
        """Begin to swap. Raises ValueError if it swaps already, has the model, or cannot load it."""
        if self.target is not None or model == self.model or model not in self.models:
            raise ValueError(f"worker {self.name!r} cannot swap from {self.model!r} to {model!r} now")
        self.target = model
        self.due_s = inf if self.model is None else at_s + drain_s

    def evict(self) -> list[SimRequest]:
        """Give up all running requests at once and keep the model. Returns them."""
        model, returned = self.model, self._unload()
        if model is not None:
            self._load(model)
        return returned

    def fail(self, until_s: float) -> list[SimRequest]:
        """Lose the engine, and load the model again from `until_s` on. Returns the requests that ran."""
        model = self.target or self.model or next(iter(self.models))
        returned, self.is_away = self._unload(is_lost=True), True
        self.loading_since_s = inf
        self.target, self.due_s = model, until_s + self.models[model].load_s
        return returned

    def settle(self, at_s: float) -> list[SimRequest]:
        """Take the steps of a swap that are due. Returns the requests that the drain gave up."""
        returned: list[SimRequest] = []
        if self.is_draining and (not self.running or at_s >= self.due_s):
            returned = self._unload()
        if self.target is not None and self.model is None and self.due_s == inf:
            load_s = self.models[self.target].load_s
            self.loads[self.target] = self.loads.get(self.target, 0) + 1
            self.swapping_s, self.due_s = self.swapping_s + load_s, at_s + load_s
            self.loading_since_s = at_s
        if self.target is not None and self.model is None and at_s >= self.due_s:
            self._load(self.target)
        return returned

    def _unload(self, *, is_lost: bool = False) -> list[SimRequest]:
        returned = list(self.running.values())
        for request in returned:
            request.give_back(0 if is_lost else self._tokens.count_tokens(request.request_id))
        self.running.clear()
        self.model, self._engine, self.due_s = None, None, inf
        return returned

    def _load(self, model: str) -> None:
        if self.loading_since_s < inf:
            self._seconds[model].observe(self.models[model].load_s)
        self.model, self.target, self.due_s, self.is_away = model, None, inf, False
        self.loading_since_s = inf
        self._tokens = _TokenCounter()
        self._engine = self._make_engine(self.models[model], self._tokens)

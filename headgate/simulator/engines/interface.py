"""The base of the simulated engines: a queue before the batch, an observer of their events, and jittered steps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from gpu_worker.policies.fairness.accounting import TenantService
from gpu_worker.policies.fairness.interface import QueuePolicy
from headgate.simulator.engines.profile import EngineProfile
from headgate.simulator.requests import SimRequest


class Observer:
    """Called at an engine's events. `decoded` is called before the ends and admissions that follow those steps.

    `wants_steps`: whether `on_attempted` and `on_decoded` are called: the engine takes many events with fewer calls.
    """

    wants_steps = True

    def on_enqueued(self, request: SimRequest, now_s: float) -> None: ...

    def on_rejected(self, request: SimRequest, now_s: float) -> None: ...

    def on_attempted(self, now_s: float) -> None:
        """The engine begins an attempt to admit requests."""

    def on_admitted(self, request: SimRequest, now_s: float) -> None: ...

    def on_prefilled(self, requests: Sequence[SimRequest], now_s: float) -> None:
        """Each of the requests has its first token."""

    def on_decoded(self, steps: int, now_s: float) -> None:
        """Every running request generated one token in each of these steps."""

    def on_finished(self, request: SimRequest, now_s: float) -> None: ...


class _Silent(Observer):
    wants_steps = False


SILENT = _Silent()
"""Stands for no observer."""


@dataclass(slots=True)
class Jitter:
    """Multiplies step times by a normal factor, at least 0.1. `spread`: its standard deviation for one step."""

    random: Random
    spread: float

    def factor(self, steps: int) -> float:
        """Draw the factor for the time of `steps` steps together."""
        return max(0.1, self.random.gauss(1.0, self.spread / math.sqrt(steps)))


class SimulatedEngine(ABC):
    """drive.EngineLike. Serves requests in virtual time. `stopwatch`: a clock, in seconds, that times the policy's
    decisions; the times are in `decision_s`. `decisions`: the number of requests admitted. `loaded_first`: requests
    with loaded adapters go first within their tenant; only on the paged engine (loaded_first.py)."""

    def __init__(
        self,
        profile: EngineProfile,
        policy: QueuePolicy,
        *,
        observer: Observer | None = None,
        jitter: Jitter | None = None,
        stopwatch: Callable[[], float] | None = None,
        loaded_first: bool = False,
    ) -> None:
        self.profile = profile
        self.policy = policy
        self.loaded_first = loaded_first
        self.now_s = 0.0
        self.kv_tokens = 0
        self.decisions = 0
        self.decision_s: list[float] = []
        self._observer = observer or SILENT
        self._jitter = jitter
        self._stopwatch = stopwatch
        self._queued = 0
        """Requests that wait, on an engine without a batch of its own."""
        self._set_up()

    @abstractmethod
    def _set_up(self) -> None:
        """Make the state of this kind of engine. The profile and the policy are set already."""

    @property
    def waiting(self) -> int:
        return self._queued

    @property
    @abstractmethod
    def running(self) -> int: ...

    @property
    @abstractmethod
    def saturation(self) -> float:
        """The share of the KV pool in use, 0 to 1."""

    @property
    def service_by_tenant(self) -> dict[str, TenantService]:
        """Service of each tenant so far, as a copy."""
        return self.policy.received

    @abstractmethod
    def next_s(self) -> float:
        """Return the time of the next event; infinity if there is nothing to do."""

    @abstractmethod
    def advance(self, until_s: float) -> list[SimRequest]:
        """Run until requests end, and return them, or until `until_s`, and return [].

        Decisions at `until_s` itself wait for the next call, so that a request that arrives at that instant is in the
        queue by then.
        """

    @abstractmethod
    def _could_hold(self, request: SimRequest, prompt: int) -> bool:
        """Return whether the request fits an empty engine. `prompt`: prompt tokens, with those that the server adds."""

    def submit(self, request: SimRequest, at_s: float) -> bool:
        """Accept the request, at a time to which the engine was advanced, or return False and set its `rejected`."""
        if not self.waiting and not self.running:
            self.now_s = max(self.now_s, at_s)
        if not self._could_hold(request, request.arrival.input_tokens + self.profile.prompt_extra_tokens):
            request.rejected = "too_large"
        elif not self._enqueue(request, at_s):
            request.rejected = "rate"
        if request.rejected is not None:
            self._observer.on_rejected(request, at_s)
            return False
        self._observer.on_enqueued(request, at_s)
        return True

    def _enqueue(self, request: SimRequest, at_s: float) -> bool:
        """Add the request to the queue. False: the policy refuses it."""
        if not self.policy.enqueue(request, at_s):
            return False
        self._queued += 1
        return True

    def _jitter_factor(self, steps: int) -> float:
        """Draw the factor of the time of so many steps; 1 without jitter."""
        return 1.0 if self._jitter is None else self._jitter.factor(steps)

    def _peek(self) -> SimRequest | None:
        if self._stopwatch is None:
            head = self.policy.peek()
        else:
            before = self._stopwatch()
            head = self.policy.peek()
            self.decision_s.append(self._stopwatch() - before)
        return head if isinstance(head, SimRequest) else None


def output_tokens_max(output_tokens: int) -> int:
    """Return the max_tokens that a client would send: the true length rounded up to a power of two, at least 16."""
    return 1 << (output_tokens - 1).bit_length() if output_tokens > 16 else 16

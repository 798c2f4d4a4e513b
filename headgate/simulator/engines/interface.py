"""What simulated engines have in common: a line before the batch, whom they tell of what, and steps that vary."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest
from headgate.simulator.engines.profile import EngineProfile
from headgate.simulator.requests import SimRequest


class Observer:
    """Who looks on. `decoded` comes before whatever ends or enters after those steps."""

    def enqueued(self, request: SimRequest, now_s: float) -> None: ...

    def rejected(self, request: SimRequest, now_s: float) -> None: ...

    def attempted(self, now_s: float) -> None:
        """An attempt to admit begins."""

    def admitted(self, request: SimRequest, now_s: float) -> None: ...

    def prefilled(self, requests: Sequence[SimRequest], now_s: float) -> None:
        """Each has its first token."""

    def decoded(self, steps: int, now_s: float) -> None:
        """Every running request got so many tokens more."""

    def finished(self, request: SimRequest, now_s: float) -> None: ...


@dataclass(slots=True)
class Jitter:
    """Step times vary by a normal factor with standard deviation `spread` a step, never below a tenth."""

    random: Random
    spread: float

    def factor(self, steps: int) -> float:
        return max(0.1, self.random.gauss(1.0, self.spread / math.sqrt(steps)))


class Engine(ABC):
    """Feeds on requests (drive.py) and serves them in virtual time. `stopwatch`: seconds of a clock that measures the
    policy's decisions; their times are in `decision_s`."""

    def __init__(
        self,
        profile: EngineProfile,
        policy: QueuePolicy,
        *,
        observer: Observer | None = None,
        jitter: Jitter | None = None,
        stopwatch: Callable[[], float] | None = None,
    ) -> None:
        self.profile = profile
        self.policy = policy
        self.now_s = 0.0
        self.kv_tokens = 0
        self.decisions = 0
        self.decision_s: list[float] = []
        self._observer = observer or Observer()
        self._jitter = jitter
        self._stopwatch = stopwatch
        self._waiting: dict[str, SimRequest] = {}
        self._set_up()

    @abstractmethod
    def _set_up(self) -> None:
        """Make the state of this kind of engine; profile and policy are there."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    @abstractmethod
    def running(self) -> int: ...

    @property
    @abstractmethod
    def saturation(self) -> float:
        """The part of the KV pool that is taken, 0 to 1."""

    @abstractmethod
    def next_s(self) -> float:
        """When its next event is due; infinity where it has nothing to do."""

    @abstractmethod
    def advance(self, until_s: float) -> list[SimRequest]:
        """Go on until requests finish, they are returned, or until `until_s`, with nothing finished.

        What is decided at `until_s` itself is left for the next call: whoever arrives at that instant is in the queue
        by then.
        """

    @abstractmethod
    def _could_hold(self, request: SimRequest, prompt: int) -> bool:
        """Whether the request fits an empty engine. `prompt`: its prompt tokens, with those that the server adds."""

    def submit(self, request: SimRequest, at_s: float) -> bool:
        """It arrives, at a time to which the engine was advanced. False: refused, `request.rejected` says why."""
        if not self.waiting and not self.running:
            self.now_s = max(self.now_s, at_s)
        if not self._could_hold(request, request.arrival.input_tokens + self.profile.prompt_extra_tokens):
            request.rejected = "too_large"
        elif not self._enqueue(request, at_s):
            request.rejected = "rate"
        if request.rejected is not None:
            self._observer.rejected(request, at_s)
            return False
        self._observer.enqueued(request, at_s)
        return True

    def _enqueue(self, request: SimRequest, at_s: float) -> bool:
        """Add the request to the queue. False: the policy refuses it."""
        if not self.policy.enqueue(as_policy_sees(request), at_s):
            return False
        self._waiting[request.request_id] = request
        return True

    def _jitter_factor(self, steps: int) -> float:
        """Draw the factor of the time of so many steps; 1 without jitter."""
        return 1.0 if self._jitter is None else self._jitter.factor(steps)

    def _peek(self) -> QueueRequest | None:
        if self._stopwatch is None:
            return self.policy.peek()
        before = self._stopwatch()
        head = self.policy.peek()
        self.decision_s.append(self._stopwatch() - before)
        return head


def output_tokens_max(output_tokens: int) -> int:
    """What the client asked for at most: the true length rounded up to a power of two, at least 16 tokens."""
    return max(16, 1 << max(0, output_tokens - 1).bit_length())


def as_policy_sees(request: SimRequest) -> QueueRequest:
    arrival = request.arrival
    return QueueRequest(
        request.request_id,
        arrival.tenant,
        arrival.input_tokens,
        request.weight,
        arrival.output_tokens,
        arrival.app or "",
        arrival.stage or 0,
        arrival.interaction or "",
        arrival.system_tokens,
        output_tokens_max(arrival.output_tokens),
        request.tier,
    )

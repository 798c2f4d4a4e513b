"""How other gateways choose the next tenant: five rules, each with its own state in every process that decides.

Each class is one rule, written from the public text that its docstring names; it contains no code of a product. Where a
text leaves something open, the docstring states the reading. Costs are known when a request arrives: the best case for
every rule. Units: seconds; a cost is in worker-seconds.

The state of a rule is that of one process. None of these products shares it between processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Head(NamedTuple):
    """The first waiting request of a tenant. `tag`: what the rule gave it at its arrival."""

    number: int
    cost: float
    arrival_s: float
    tag: float


class Rival(ABC):
    """`weights`: by tenant, 1 for the others. A rule that has no weights ignores them."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.weights = weights

    def tag(self, tenant: str, cost: float, now_s: float) -> float:
        """Return a key for a request that arrives."""
        return 0.0

    @abstractmethod
    def choose(self, heads: Mapping[str, Head], now_s: float) -> str:
        """Return the tenant to serve next. `heads`: of the tenants that wait, in the order in which they joined."""

    def on_ended(self, tenant: str, cost: float, now_s: float) -> None:
        """Note a request that ended."""


class RoundRobin(Rival):
    """One request of each waiting tenant in turn, whatever it costs.

    Source: llm-d's router, `round-robin-fairness-policy` (llm-d/llm-d-router issue 1182: it "assumes every request
    consumes the exact same resources").
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        super().__init__(weights)
        self._served: dict[str, int] = {}
        self._turns = 0

    def choose(self, heads: Mapping[str, Head], now_s: float) -> str:
        tenant = min(heads, key=lambda name: self._served.get(name, -1))
        self._turns += 1
        self._served[tenant] = self._turns
        return tenant


QUANTUM_S = 1.0


class DeficitRing(Rival):
    """Each waiting tenant in turn gets its quantum x weight, and is served while its deficit pays for its next request.

    A tenant that leaves loses its deficit. Source: Dynamo's queues of policy classes (ai-dynamo/dynamo pull request
    10744); issue 15187 reports that deficits stay in each process. The quantum is ours.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        super().__init__(weights)
        self._ring: deque[str] = deque()
        self._deficits: dict[str, float] = {}

    def choose(self, heads: Mapping[str, Head], now_s: float) -> str:
        for name in [name for name in self._ring if name not in heads]:
            self._ring.remove(name)
            del self._deficits[name]
        for name in heads:
            if name not in self._deficits:
                self._deficits[name] = 0.0
                self._ring.append(name)
        while self._deficits[self._ring[0]] < heads[self._ring[0]].cost:
            self._ring.rotate(-1)
            self._deficits[self._ring[0]] += QUANTUM_S * self.weights.get(self._ring[0], 1.0)
        self._deficits[self._ring[0]] -= heads[self._ring[0]].cost
        return self._ring[0]


HALF_LIFE_S = 60.0
_SERVICE_PART, _WAIT_PART = 0.8, 0.2


class AttainedService(Rival):
    """The tenant with the least service so far, which halves every minute; its head's age counts a little.

    Source: llm-d's router, `program-aware` fairness with strategy `las` (llm-d/llm-d-router pull requests 1534 and
    2116: parts 0.8 and 0.2, a half-life of 60 s). Our reading: both signals are relative to the largest among the
    tenants that wait, and service counts when the request ends.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        super().__init__(weights)
        self._attained: dict[str, tuple[float, float]] = {}
        """Service, and when it was brought up to date."""

    def _now(self, tenant: str, now_s: float) -> float:
        service, at_s = self._attained.get(tenant, (0.0, now_s))
        return float(service * 0.5 ** ((now_s - at_s) / HALF_LIFE_S))

    def choose(self, heads: Mapping[str, Head], now_s: float) -> str:
        service = {name: self._now(name, now_s) for name in heads}
        most = max(service.values()) or 1.0
        oldest_s = max(now_s - head.arrival_s for head in heads.values()) or 1.0

        def score(name: str) -> float:
            age = (now_s - heads[name].arrival_s) / oldest_s
            return _SERVICE_PART * (1.0 - service[name] / most) + _WAIT_PART * age

        return max(heads, key=score)

    def on_ended(self, tenant: str, cost: float, now_s: float) -> None:
        self._attained[tenant] = (self._now(tenant, now_s) + cost, now_s)


WINDOW_S = 300.0


class SlidingWindow(Rival):
    """The request with the lowest key; the key is the service of its tenant in the trailing window, and its own cost.

    Source: Kthena's router (volcano-sh/kthena issues 265 and 757, pull request 897; the window is five minutes by
    default; pull request 929: the history is not shared between routers). The key is computed when the request arrives,
    and service counts when a request ends.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        super().__init__(weights)
        self._ends: defaultdict[str, deque[tuple[float, float]]] = defaultdict(deque)
        self._within: defaultdict[str, float] = defaultdict(float)

    def tag(self, tenant: str, cost: float, now_s: float) -> float:
        ends = self._ends[tenant]
        while ends and ends[0][0] <= now_s - WINDOW_S:
            self._within[tenant] -= ends.popleft()[1]
        return self._within[tenant] + cost

    def choose(self, heads: Mapping[str, Head], now_s: float) -> str:
        return min(heads, key=lambda name: (heads[name].tag, heads[name].number))

    def on_ended(self, tenant: str, cost: float, now_s: float) -> None:
        self._ends[tenant].append((now_s, cost))
        self._within[tenant] += cost


class StartTimeFairQueueing(Rival):
    """The lowest start tag: max(V, finish tag of the tenant's request before); V is the tag of the last one served.

    Source: Goyal, Vin and Cheng (SIGCOMM 1996); per process as in Kubernetes' API servers (KEP 1040: each server has
    its own queues).
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        super().__init__(weights)
        self._virtual = 0.0
        self._finish: dict[str, float] = {}

    def tag(self, tenant: str, cost: float, now_s: float) -> float:
        start = max(self._virtual, self._finish.get(tenant, 0.0))
        self._finish[tenant] = start + cost / self.weights.get(tenant, 1.0)
        return start

    def choose(self, heads: Mapping[str, Head], now_s: float) -> str:
        tenant = min(heads, key=lambda name: (heads[name].tag, heads[name].number))
        self._virtual = heads[tenant].tag
        return tenant


RIVALS: Mapping[str, Callable[[Mapping[str, float]], Rival]] = {
    "round robin": RoundRobin,
    "deficit round robin": DeficitRing,
    "attained service": AttainedService,
    "sliding window": SlidingWindow,
    "start-time fair": StartTimeFairQueueing,
}
WEIGHTED = ("deficit round robin", "start-time fair")
"""The rules that have weights."""

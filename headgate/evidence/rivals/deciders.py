"""Several processes that decide, before workers that they share, in virtual time.

A worker runs one request (as in gates/cluster.py), and a request's cost is its service time. Each request enters at one
process. There are two fronts:

- `Replicas`: each process has its own queues and its own rule. A free worker goes to the processes that have waiting
  requests, in turn: none of them sees what the others have waiting.
- `OneLog`: ours. Every process sends its requests to one log, and the production's gate decides on it
  (dispatcher/shard/alone.py). Each request and each end reaches the log DELAY_S later, which the others do not pay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple, Protocol

from dispatcher.policies.clocks import Share
from dispatcher.shard.alone import EPOCH, CostGate, Decided
from headgate.evidence.rivals.policies import Head, Rival

DELAY_S = 0.02
"""Seconds to the log, for the append, and back. benchmarks/results/gate_latency.md has measured ones."""
OURS = "one log"


class Sent(NamedTuple):
    """A request. It enters at the process number `at`."""

    arrival_s: float
    tenant: str
    cost: float
    at: int


class Deciders(Protocol):
    delay_s: float

    def arrive(self, number: int, sent: Sent, now_s: float) -> list[int]:
        """Take a request. Return the numbers of the requests that start now."""
        ...

    def end(self, number: int, sent: Sent, now_s: float) -> list[int]:
        """Note the end of a request. Return the numbers of the requests that start now."""
        ...


class _Decider:
    def __init__(self, rule: Rival) -> None:
        self.rule = rule
        self.queues: dict[str, deque[Head]] = {}

    def take(self, number: int, sent: Sent, now_s: float) -> None:
        head = Head(number, sent.cost, now_s, self.rule.tag(sent.tenant, sent.cost, now_s))
        self.queues.setdefault(sent.tenant, deque()).append(head)

    def start_next(self, now_s: float) -> int:
        tenant = self.rule.choose({name: queue[0] for name, queue in self.queues.items()}, now_s)
        head = self.queues[tenant].popleft()
        if not self.queues[tenant]:
            del self.queues[tenant]
        return head.number


class Replicas:
    delay_s = 0.0

    def __init__(self, rule: Callable[[], Rival], processes: int, workers: int) -> None:
        self._processes = [_Decider(rule()) for _ in range(processes)]
        self._free = workers
        self._turns: deque[_Decider] = deque()
        """The processes with waiting requests; the one that is next stands first."""

    def arrive(self, number: int, sent: Sent, now_s: float) -> list[int]:
        process = self._processes[sent.at]
        if not process.queues:
            self._turns.append(process)
        process.take(number, sent, now_s)
        return self._start(now_s)

    def end(self, number: int, sent: Sent, now_s: float) -> list[int]:
        self._free += 1
        self._processes[sent.at].rule.on_ended(sent.tenant, sent.cost, now_s)
        return self._start(now_s)

    def _start(self, now_s: float) -> list[int]:
        started = []
        while self._free and self._turns:
            process = self._turns.popleft()
            started.append(process.start_next(now_s))
            self._free -= 1
            if process.queues:
                self._turns.append(process)
        return started


class OneLog:
    delay_s = DELAY_S

    def __init__(self, weights: Mapping[str, float], workers: int) -> None:
        self._gate = CostGate("bwfq", slots=workers)
        self._gate.set_shares({name: Share(weight) for name, weight in weights.items()})
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def arrive(self, number: int, sent: Sent, now_s: float) -> list[int]:
        process = f"p{sent.at}"
        name = self._gate.next_name(process)
        self._numbers[name], self._names[number] = number, name
        return self._numbers_of(self._gate.submit(sent.tenant, sent.cost, EPOCH + now_s, process=process))

    def end(self, number: int, sent: Sent, now_s: float) -> list[int]:
        return self._numbers_of(self._gate.settle(self._names.pop(number), sent.cost, EPOCH + now_s))

    def _numbers_of(self, decided: Decided) -> list[int]:
        return [self._numbers.pop(fact.id) for fact in decided.dispatched]


@dataclass(frozen=True, slots=True)
class Playback:
    """When each request started; infinite if it did not by the end of the run."""

    sent: Sequence[Sent]
    starts_s: Sequence[float]
    until_s: float

    def service(self, tenant: str, from_s: float, to_s: float) -> float:
        """Return the worker-seconds that the tenant received within the window."""
        parts = (
            min(to_s, start + each.cost) - max(from_s, start)
            for each, start in zip(self.sent, self.starts_s, strict=True)
            if each.tenant == tenant
        )
        return sum(part for part in parts if part > 0)

    def count_starts(self, tenant: str) -> int:
        pairs = zip(self.sent, self.starts_s, strict=True)
        return sum(each.tenant == tenant and start < inf for each, start in pairs)

    def waits_s(self, tenant: str, from_s: float, to_s: float) -> list[float]:
        """Return the waits of the requests that arrived within the window; until the end for one that never started."""
        return [
            min(start, self.until_s) - each.arrival_s
            for each, start in zip(self.sent, self.starts_s, strict=True)
            if each.tenant == tenant and from_s <= each.arrival_s < to_s
        ]


def play(front: Deciders, sent: Sequence[Sent], until_s: float) -> Playback:
    """Play requests, in order of arrival, until `until_s`. At one instant, requests end before others arrive."""
    starts_s = [inf] * len(sent)
    events: list[tuple[float, int, int]] = [
        (each.arrival_s + front.delay_s, 1, number) for number, each in enumerate(sent)
    ]
    while events:
        now_s, is_arrival, number = heappop(events)
        if now_s > until_s:
            break
        started = (front.arrive if is_arrival else front.end)(number, sent[number], now_s)
        for each in started:
            starts_s[each] = now_s
            heappush(events, (now_s + sent[each].cost + front.delay_s, 0, each))
    return Playback(sent, starts_s, until_s)

"""Locality with fairness, simulated: VTC, VTC with locality, DLPM and LPM on prompts with shared prefixes.

Four tenants keep OPEN requests each at one engine (a100-llama3-8b-chunked, a batch of BATCH, CACHE_TOKENS of prefix
cache): `docs` asks about 24 documents of 3,072 tokens, `few` about 8 such documents, `chat` has one system prompt of
1,536 tokens, and no two prompts of `solo` have a common prefix. Each figure is the mean over SEEDS runs of SECONDS.

    requests/s   served requests over the time, and the ratio to VTC
    hits         the part of the prompt tokens that the cache had
    difference   the largest difference of the service of two tenants over any interval (both always wait), as in
                 Theorem 4.4 of VTC, beside the theorem's bound: twice max(largest prompt, 2 x tokens of the batch)
    least        the least-served tenant's part of the service, and its requests/s beside those under VTC

Service is charged as in production: a cached token costs a tenth of a computed one.

    python -m benchmarks.locality
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from random import Random
from statistics import fmean

from gpu_worker.policies.fairness.interface import QueuePolicy
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.engines.interface import Observer, SimulatedEngine
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.measures.theorems import PairBounds
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import PREFIX_BLOCK_TOKENS, Arrival

PROFILE = "a100-llama3-8b-chunked"
OPEN = 72
BATCH = 48
CACHE_TOKENS = 20_480
SECONDS = 180.0
SEEDS = 3
ORDERS = ("vtc", "vtc+locality", "dlpm:1000", "dlpm:5000", "dlpm:20000", "lpm")
TENANTS = ("docs", "few", "chat", "solo")
_DOCUMENTS = {"docs": (24, 6), "few": (8, 6), "chat": (1, 3)}
"""Documents of a tenant, and the blocks of each."""


def main() -> int:
    print("order          requests/s  ratio   hits   difference    bound  least served   requests/s  ratio")
    base: Figures | None = None
    for order in ORDERS:
        figures = _mean([play(order, seed) for seed in range(1, SEEDS + 1)])
        base = base or figures
        print(_row(order, figures, base), flush=True)
    return 0


@dataclass(frozen=True, slots=True)
class Figures:
    rate: float
    hits: float
    difference: float
    bound: float
    service: dict[str, float]
    rates: dict[str, float]


def _row(order: str, figures: Figures, base: Figures) -> str:
    least = min(TENANTS, key=lambda name: figures.service[name])
    part = figures.service[least] / sum(figures.service.values())
    return (
        f"{order:14} {figures.rate:>10.2f} {figures.rate / base.rate:>6.2f} {figures.hits:>6.1%}"
        f" {figures.difference:>12,.0f} {figures.bound:>8,.0f}  {least:4} {part:>7.1%}"
        f" {figures.rates[least]:>12.2f} {figures.rates[least] / base.rates[least]:>6.2f}"
    )


def _mean(runs: list[Figures]) -> Figures:
    def by_tenant(name: str) -> dict[str, float]:
        return {tenant: fmean(getattr(run, name)[tenant] for run in runs) for tenant in TENANTS}

    def mean(name: str) -> float:
        return fmean(getattr(run, name) for run in runs)

    return Figures(
        mean("rate"), mean("hits"), mean("difference"), mean("bound"), by_tenant("service"), by_tenant("rates")
    )


def play(order: str, seed: int, seconds: float = SECONDS) -> Figures:
    """Run one order until `seconds`."""
    watch = ServiceWatch(policy := _policy(order))
    update = {"prefix_cache_tokens": CACHE_TOKENS, "batch_max": BATCH}
    profile = load_profile(PROFILE).model_copy(update=update)
    engine = make_engine(profile, policy, paged=True, observer=watch)
    callers = Callers(engine, Random(seed))
    for tenant in TENANTS * OPEN:
        callers.ask(tenant)
    watch.begin()
    served: list[SimRequest] = []
    while ended := engine.advance(seconds):
        for request in ended:
            served.append(request)
            callers.ask(request.tenant)
    return Figures(
        len(served) / seconds,
        sum(request.cached_tokens for request in served) / sum(request.arrival.input_tokens for request in served),
        watch.pairs.backlogged_worst,
        2 * max(watch.input_max, watch.batch_max),
        {tenant: received.service for tenant, received in policy.received.items()},
        {name: sum(request.tenant == name for request in served) / seconds for name in TENANTS},
    )


def _policy(order: str) -> QueuePolicy:
    name, plus, _ = order.partition("+")
    policy = make_policy(name)
    policy.locality = policy.locality or bool(plus)
    return policy


@dataclass
class Callers:
    """Each caller asks again when it has its answer."""

    engine: SimulatedEngine
    random: Random
    asked: int = 0

    def ask(self, tenant: str) -> None:
        self.asked += 1
        arrival = self._arrival(tenant)
        request = SimRequest(str(self.asked), arrival, self.engine.now_s)
        assert self.engine.submit(request, self.engine.now_s)

    def _arrival(self, tenant: str) -> Arrival:
        if tenant in _DOCUMENTS:
            documents, shared = _DOCUMENTS[tenant]
            document, tokens = self.random.randrange(documents), self.random.randint(50, 200)
        else:
            document, shared, tokens = 0, 0, self.random.randint(500, 1500)
        blocks = -(-tokens // PREFIX_BLOCK_TOKENS)
        own = range(1_000_000 + 10 * self.asked, 1_000_000 + 10 * self.asked + blocks)
        return Arrival(
            self.engine.now_s,
            tenant,
            shared * PREFIX_BLOCK_TOKENS + tokens,
            self.random.randint(50, 150),
            hash_ids=(*range(10 * document, 10 * document + shared), *own),
        )


@dataclass
class ServiceWatch(Observer):
    """The service of each tenant, by the policy's own account, and what the bound depends on. All tenants always
    wait."""

    policy: QueuePolicy
    pairs: PairBounds = field(default_factory=PairBounds)
    input_max: float = 0.0
    batch_max: float = 0.0
    """The most service that the requests of the batch could get for all their tokens."""
    _batch: float = 0.0

    def begin(self) -> None:
        for _ in TENANTS:
            self.pairs.add_tenant()
        for number in range(len(TENANTS)):
            self.pairs.begin(number, self._received())

    def on_admitted(self, request: SimRequest, now_s: float) -> None:
        self.input_max = max(self.input_max, request.arrival.input_tokens)
        self._batch += _largest(request)
        self.batch_max = max(self.batch_max, self._batch)
        self._compare()

    def on_decoded(self, steps: int, now_s: float) -> None:
        self._compare()

    def on_finished(self, request: SimRequest, now_s: float) -> None:
        self._batch -= _largest(request)
        self._compare()

    def _compare(self) -> None:
        received = self._received()
        for number in range(len(TENANTS)):
            self.pairs.compare(number, received)

    def _received(self) -> list[float]:
        received = self.policy.received
        return [received[name].service if name in received else 0.0 for name in TENANTS]


def _largest(request: SimRequest) -> float:
    return 2.0 * (request.arrival.input_tokens + request.arrival.output_tokens)


if __name__ == "__main__":
    sys.exit(main())

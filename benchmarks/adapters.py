"""Many LoRA adapters of one tenant beside a quiet tenant, simulated.

An engine (a100-llama3-8b-chunked, a batch of BATCH) has PLACES places for adapters, and a load stops the batch for
50 ms. `many` keeps OPEN requests and cycles through ADAPTERS adapters at random; `base` keeps OPEN without an adapter;
`quiet` sends a request with an adapter of its own every PAUSE_S seconds on average. All requests have 300 tokens and
get 100. Each figure is the mean over SEEDS runs of SECONDS.

    requests/s    of each tenant
    loads         of adapters, for each request of `many`
    wait          median and P99 of the time to the first token of `quiet`
    service       what `many` and `base` were charged, `many` over `base`: both always wait, so VTC keeps it near 1
    tokens        the same of the tokens alone

The rows: the lead up to which later requests pass one that lacks a place (`adapter_lead`), and what a load is charged
as (`adapter_load_tokens`). `+first`: within a tenant, requests with loaded adapters go first (loaded_first.py).

    python -m benchmarks.adapters
"""

from __future__ import annotations

import sys
from random import Random
from statistics import fmean, median

from dispatcher.policies.percentiles import percentile
from gpu_worker.policies.fairness.interface import QueuePolicy
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.tiers import TierSettings
from headgate.simulator.engines.interface import SimulatedEngine
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival

PROFILE = "a100-llama3-8b-chunked"
PLACES, ADAPTERS, BATCH, OPEN, PAUSE_S = 4, 16, 24, 40, 4.0
SECONDS, SEEDS = 60.0, 3
INPUT, OUTPUT = 300, 100
ROWS = (
    (0.0, 512, False),
    (8192.0, 0, False),
    (8192.0, 512, False),
    (1e9, 512, False),
    (0.0, 512, True),
    (8192.0, 0, True),
    (8192.0, 512, True),
    (1e9, 512, True),
)


def main() -> int:
    print("  lead  load          many/s  base/s   loads  wait p50     p99  service  tokens")
    for lead, load, first in ROWS:
        figures = [play(lead, load, seed, loaded_first=first) for seed in range(1, SEEDS + 1)]
        many, base, loads, p50, p99, service, tokens = map(fmean, zip(*figures, strict=True))
        print(
            f"{lead:>6.0g} {load:>5} {'+first' if first else '':7} {many:>6.2f} {base:>7.2f} {loads:>7.3f}"
            f" {p50:>9.2f} {p99:>7.2f} {service:>8.2f} {tokens:>7.2f}",
            flush=True,
        )
    return 0


def play(
    adapter_lead: float, adapter_load_tokens: int, seed: int, *, loaded_first: bool, seconds: float = SECONDS
) -> tuple[float, ...]:
    """Return the figures of a run, in the order of the table."""
    tiers = TierSettings(adapter_lead=adapter_lead, adapter_load_tokens=adapter_load_tokens)
    policy = make_policy("tiered:vtc", tiers=tiers)
    profile = load_profile(PROFILE).model_copy(update={"max_loras": PLACES, "batch_max": BATCH})
    callers = _Callers(make_engine(profile, policy, loaded_first=loaded_first), Random(seed))
    served = callers.run(seconds)
    many, base = ([each for each in served if each.tenant == name] for name in ("many", "base"))
    waits = sorted(each.ttft_s for each in served if each.tenant == "quiet")
    return (
        len(many) / seconds,
        len(base) / seconds,
        sum(each.adapter_loads for each in many) / len(many),
        median(waits),
        percentile(waits, 0.99) or 0.0,
        *_ratios(policy),
    )


def _ratios(policy: QueuePolicy) -> tuple[float, float]:
    """Return the service and the tokens of `many` over those of `base`."""
    many, base = policy.received["many"], policy.received["base"]
    tokens = [each.input_tokens + 2 * each.output_tokens for each in (many, base)]
    return many.service / base.service, tokens[0] / tokens[1]


class _Callers:
    """Callers of `many` and `base` ask again when they have their answer; those of `quiet` come at random."""

    def __init__(self, engine: SimulatedEngine, random: Random) -> None:
        self._engine = engine
        self._random = random
        self._asked = 0

    def run(self, seconds: float) -> list[SimRequest]:
        """Return the requests that were served until then."""
        for tenant in ("many", "base") * OPEN:
            self._ask(tenant)
        served: list[SimRequest] = []
        quiet_s = self._random.expovariate(1 / PAUSE_S)
        while True:
            now_s = min(quiet_s, seconds)
            ended = self._engine.advance(now_s)
            served += ended
            for request in ended:
                if request.tenant != "quiet":
                    self._ask(request.tenant)
            if not ended and now_s >= seconds:
                break
            if not ended:
                self._ask("quiet", now_s)
                quiet_s += self._random.expovariate(1 / PAUSE_S)
        return served

    def _ask(self, tenant: str, at_s: float | None = None) -> None:
        self._asked += 1
        at_s = self._engine.now_s if at_s is None else at_s
        adapters = {"many": f"m{self._random.randrange(ADAPTERS)}", "quiet": "q"}
        arrival = Arrival(at_s, tenant, INPUT, OUTPUT, adapter=adapters.get(tenant))
        assert self._engine.submit(SimRequest(str(self._asked), arrival, at_s), at_s)


if __name__ == "__main__":
    sys.exit(main())

"""How far the rate that a worker extrapolates from part-full batches is from the rate of a full one.

    python -m benchmarks.expected_capacity

Each row is a simulated engine with Poisson arrivals at a part of its full rate, and answers of exponential lengths. The
worker is asked each second, as by its heartbeats, until it was full for five seconds (then it is measured). The columns
are the extrapolated rate over that of a full batch (simulator/fleet/planners/interface.py, `full_rate_per_s`, which
plans of the simulator use) after some seconds: the median of SEEDS draws, and the range of all draws. A dash means that
nothing was extrapolated in half of the draws. `token`: after nothing but the time of one decode step, which a worker
knows of each model from its start.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from statistics import median

from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.engines.modelled.engine import PROFILE
from gpu_worker.policies.expected_capacity import ExpectedCapacity, FillTimes
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.engines.profile import EngineProfile, load_profile
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.fleet.planners.interface import ModelProfile, full_rate_per_s
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival

SEEDS = 8
AFTER_S = (2, 5, 15, 60, 240)
LOADS = (0.1, 0.3, 0.6, 0.85)


@dataclass(frozen=True)
class Case:
    name: str
    profile: EngineProfile
    slots: int
    inputs: int
    outputs: int

    @property
    def full_per_s(self) -> float:
        return full_rate_per_s(self.profile, self.slots, ModelProfile(1, self.inputs, self.outputs))


def modelled_profile() -> EngineProfile:
    """Return the profile of the local stack's engine (gpu_worker/engines/modelled/engine.py)."""
    return EngineProfile(
        name="modelled", fitted=False, source="modelled", pool_tokens=PROFILE.pool_tokens, batch_max=PROFILE.batch_max,
        chunk_tokens=1_000_000, prefill_base_s=PROFILE.prefill_base_s,
        prefill_per_token_s=PROFILE.prefill_per_token_s, decode_base_s=PROFILE.decode_base_s,
        decode_per_request_s=PROFILE.decode_per_request_s, decode_per_kv_token_s=PROFILE.decode_per_kv_token_s,
    )  # fmt: skip


def cases() -> list[Case]:
    chunked, large = load_profile("a100-llama3-8b-chunked"), load_profile("a100x8-llama3-70b")
    return [
        Case("modelled, 3 + 40", modelled_profile(), 8, 3, 40),
        Case("modelled, 200 + 100", modelled_profile(), 8, 200, 100),
        Case("a10g-llama2-7b, 250 + 250", load_profile("a10g-llama2-7b"), 16, 250, 250),
        Case("a100-llama2-13b, 250 + 250", load_profile("a100-llama2-13b"), 64, 250, 250),
        Case("a100-llama3-8b, 250 + 250", chunked, 128, 250, 250),
        Case("a100-llama3-8b, 2000 + 100", chunked, 64, 2000, 100),
        Case("a100x8-llama3-70b, 250 + 250", large, 64, 250, 250),
    ]


def heartbeats(case: Case, load: float, seed: int) -> Iterator[tuple[int, float]]:
    """Yield the second and the extrapolated rate until the worker was full for five seconds."""
    random, policy = Random(seed), make_policy("fcfs", WEIGHTED_TOKENS)
    engine = make_engine(case.profile, policy)
    rate = load * case.full_per_s / WEIGHTED_TOKENS(case.inputs, case.outputs)
    expected, fills, running, settled, full_s = ExpectedCapacity(), FillTimes(), dict[str, int](), 0.0, 0
    arrives_s, number = random.expovariate(rate), 0
    for second in range(1, AFTER_S[-1] + 1):
        while True:
            while ended := engine.advance(min(second, arrives_s)):
                for request in ended:
                    del running[request.request_id]
                fills.set_running(len(running), engine.now_s)
            if arrives_s > second:
                break
            number += 1
            inputs, outputs = (max(1, round(random.expovariate(1 / mean))) for mean in (case.inputs, case.outputs))
            engine.submit(SimRequest(str(number), Arrival(arrives_s, "t", inputs, outputs), arrives_s), arrives_s)
            running[str(number)] = inputs
            fills.set_running(len(running), arrives_s)
            arrives_s += random.expovariate(rate)
        full_s = full_s + 1 if len(running) >= case.slots else 0
        if full_s > 5:
            return
        served = sum(each.service for each in policy.received.values())
        before, settled = settled, max(settled, served - sum(running.values()))
        expected.observe(fills.take(second), settled - before)
        yield second, expected.service_per_s(case.slots)


def row(case: Case, load: float) -> list[str]:
    found: dict[int, list[float]] = {second: [] for second in AFTER_S}
    for seed in range(SEEDS):
        for second, rate in heartbeats(case, load, seed):
            if second in found and rate:
                found[second].append(rate / case.full_per_s)
    return [case.name, str(case.slots), f"{load:.0%}", *map(cell, found.values())]


def token_row(case: Case) -> list[str]:
    """Return the row of a worker that knows the time of one decode step and nothing else."""
    expected = ExpectedCapacity()
    step_s = case.profile.decode_base_s + case.profile.decode_per_request_s
    expected.observe_step(step_s, WEIGHTED_TOKENS(0, 1))
    found = expected.service_per_s(case.slots) / case.full_per_s
    return [case.name, str(case.slots), "token", f"{found:.2f}", *[""] * (len(AFTER_S) - 1)]


def cell(found: list[float]) -> str:
    return f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})" if len(found) > SEEDS / 2 else "—"


def main() -> int:
    head = ["engine, tokens in and out", "slots", "load", *(f"{second} s" for second in AFTER_S)]
    rows = [line for case in cases() for line in (token_row(case), *(row(case, load) for load in LOADS))]
    for line in (head, ["---"] * len(head), *rows):
        sys.stdout.write("| " + " | ".join(line) + " |\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

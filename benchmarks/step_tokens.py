"""Premium beside prompts of 60,000 tokens, simulated (a100-llama3-8b-chunked, steps of 2,048 tokens, tiered:vtc).

Premium sends a request of 300 tokens each second on average, with 50 tokens of output; the other tenant sends giant
prompts at a rate per minute. Each figure is the mean over SEEDS workloads of 300 s. `standard, no aging`: the giant
prompts are of the standard tier, and never rank with premium.

With `fair` as an argument, the same scenes under FairBatching (fair_batching.py) beside our rule, over FAIR_SEEDS
workloads: `fair P` has a target of P milliseconds for each of premium's tokens, and FIRST_S to the first. `all`: every
request has these targets and the policy is vtc without tiers, as the paper's scheduler.

    python -m benchmarks.step_tokens [fair]
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import fmean

from benchmarks.fair_batching import FairBatchingEngine
from dispatcher.policies.service import WEIGHTED_TOKENS
from dispatcher.policies.tiers import Tier
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.tiers import TierSettings
from headgate.simulator.drive import drive
from headgate.simulator.engines.paged import PagedEngine
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.measures.collector import TierCollector
from headgate.simulator.run import Run, RunSpec
from headgate.simulator.simulate import simulate
from headgate.workloads.sources import open_workload

SEEDS = 5
PROFILE = "a100-llama3-8b-chunked"
RATES_PER_MIN = (1, 2, 4, 6, 8, 12)
NEVER_WITH_PREMIUM = TierSettings(aging_max=0.9, deficit_factor=0.0, share_slack=1e6)
CASES = (
    ("background", "background", TierSettings()),
    ("standard", "standard", TierSettings()),
    ("standard, no aging", "standard", NEVER_WITH_PREMIUM),
)
_PREMIUM = """duration_s: 300
seed: SEED
tenants:
  gold:
    tier: premium
    arrivals: {kind: poisson, rate_per_s: 1.0}
    input: {kind: fixed, tokens: 300}
    output: {kind: fixed, tokens: 50}
"""


FAIR_SEEDS = 2
FAIR_RATES_PER_MIN = (2, 6, 12)
FIRST_S = 0.3
_AIMS = (None, 30, 60)


def main() -> int:
    if "fair" in sys.argv[1:]:
        return _main_fair()
    print("giant prompts        a minute  TTFT p50  TTFT p99  token ms   p99 s  tokens/s")
    _print("alone", 0, TierSettings(), _PREMIUM)
    for label, tier, settings in CASES:
        for rate in RATES_PER_MIN:
            _print(label, rate, settings, _PREMIUM + _giants(tier, rate))
    return 0


def _main_fair() -> int:
    print("giant prompts        a minute  rule       TTFT p50  TTFT p99  token ms   p99 s  giants p50  tokens/s")
    for tier in ("background", "standard"):
        for rate in FAIR_RATES_PER_MIN:
            for token_ms in _AIMS:
                _print_fair(tier, rate, token_ms, "tiered:vtc")
            _print_fair(tier, rate, 60, "vtc")
    return 0


def _print_fair(tier: str, rate: int, token_ms: int | None, policy: str) -> None:
    """Print the means of a rule: ours without a target for each token."""
    workload = _PREMIUM + _giants(tier, rate)
    seeds = range(1, FAIR_SEEDS + 1)
    figures = [_figures_of_rule(workload.replace("SEED", str(seed)), token_ms, policy) for seed in seeds]
    p50, p99, each_ms, latency, giants, throughput = map(fmean, zip(*figures, strict=True))
    rule = "ours" if token_ms is None else f"fair {token_ms}{' all' if policy == 'vtc' else ''}"
    print(
        f"{tier:20} {rate:>8}  {rule:10} {p50:>8.3f} {p99:>9.3f} {each_ms:>9.1f} {latency:>7.2f} {giants:>11.1f}"
        f" {throughput:>9.0f}",
        flush=True,
    )


def _figures_of_rule(workload: str, token_ms: int | None, policy: str) -> tuple[float, ...]:
    tiers = TierSettings()
    made = make_policy(policy, tiers=tiers if policy.startswith("tiered") else None)
    engine: PagedEngine = FairBatchingEngine(load_profile(PROFILE), made)
    if token_ms is None:
        engine = PagedEngine(load_profile(PROFILE), made)
    elif isinstance(engine, FairBatchingEngine):
        aimed = (FIRST_S, token_ms / 1000)
        others = aimed if policy == "vtc" else (inf, inf)
        engine.aim({tier: aimed if tier is Tier.PREMIUM else others for tier in Tier})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workload.yaml"
        path.write_text(workload)
        source = open_workload([str(path)])
        collector = TierCollector(WEIGHTED_TOKENS, 0.0)
        drive((replace(each, tier=source.tiers[each.tenant]) for each in source), engine, collector)
    measured = collector.scheduling(engine.counts).tiers
    premium, giants = measured["premium"], next(one for name, one in measured.items() if name != "premium")
    assert premium.ttft_s is not None and premium.latency_s is not None and premium.tpot_s is not None  # noqa: PT018
    assert giants.latency_s is not None
    throughput = collector.tokens / collector.total_time_s
    first, whole = premium.ttft_s, premium.latency_s
    return first.p50, first.p99, 1e3 * premium.tpot_s, whole.p99, giants.latency_s.p50, throughput


def _giants(tier: str, rate_per_min: int) -> str:
    return f"""  bulk:
    tier: {tier}
    arrivals: {{kind: poisson, rate_per_min: {rate_per_min}}}
    input: {{kind: fixed, tokens: 60000}}
    output: {{kind: fixed, tokens: 200}}
"""


def _print(label: str, rate: int, settings: TierSettings, workload: str) -> None:
    """Print the means of premium's first token, time per token and whole latency, and of the throughput."""
    runs = [_run(workload.replace("SEED", str(seed)), settings) for seed in range(1, SEEDS + 1)]
    figures = map(_figures, runs)
    p50, p99, token_ms, latency, throughput = map(fmean, zip(*figures, strict=True))
    print(
        f"{label:20} {rate:>8} {p50:>9.3f} {p99:>9.3f} {token_ms:>9.1f} {latency:>7.2f} {throughput:>9.0f}", flush=True
    )


def _run(workload: str, settings: TierSettings) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workload.yaml"
        path.write_text(workload)
        return simulate(RunSpec(open_workload([str(path)]), "tiered:vtc", load_profile(PROFILE), tiers=settings))


def _figures(run: Run) -> tuple[float, float, float, float, float]:
    assert run.scheduling is not None
    premium = run.scheduling.tiers["premium"]
    assert premium.ttft_s is not None and premium.latency_s is not None and premium.tpot_s is not None  # noqa: PT018
    return (
        premium.ttft_s.p50,
        premium.ttft_s.p99,
        1e3 * premium.tpot_s,
        premium.latency_s.p99,
        run.throughput_tokens_per_s,
    )


if __name__ == "__main__":
    sys.exit(main())

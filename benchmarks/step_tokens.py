"""Premium beside prompts of 60,000 tokens, simulated (a100-llama3-8b-chunked, steps of 2,048 tokens, tiered:vtc).

Premium sends a request of 300 tokens each second on average, with 50 tokens of output; the other tenant sends giant
prompts at a rate per minute. Each figure is the mean over SEEDS workloads of 300 s. `standard, no aging`: the giant
prompts are of the standard tier, and never rank with premium.

    python -m benchmarks.step_tokens
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import fmean

from gpu_worker.policies.tiers import TierSettings
from headgate.simulator.engines.profile import load_profile
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


def main() -> int:
    print("giant prompts        a minute  TTFT p50  TTFT p99  token ms   p99 s  tokens/s")
    _print("alone", 0, TierSettings(), _PREMIUM)
    for label, tier, settings in CASES:
        for rate in RATES_PER_MIN:
            _print(label, rate, settings, _PREMIUM + _giants(tier, rate))
    return 0


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

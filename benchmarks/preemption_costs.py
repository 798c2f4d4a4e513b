"""Measure the cost of a preemption by its victim's length, beside the prediction.

`python -m benchmarks.preemption_costs [--models random:2x128 …] [--times N] [--json]`

Real tokens on the transformers engine, with one slot in the batch. A background request of each length is evicted for a
premium request and resumed, TIMES times by swap and TIMES times by recompute. Lengths and strategies alternate, so that
other work on the machine affects all of them. The prediction uses the calibration that the engine measured at its
start. The measurement is the engine's own record of these preemptions: the copies out and back, or the steps that
recomputed the lost tokens; the median counts.

A strategy is forced by a calibration that makes the other one too expensive. The predictions use the true calibration.

A second table applies the cost model to Llama 3 70B on A100s by data sheets, beside the source's table
(docs/preemption-design.md, section 1.2).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import sys
import tempfile
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.generation import Generation
from gpu_worker.engines.interface import Token, own_order
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.preemption import Calibration, Strategy
from gpu_worker.policies.scheduling_stats import ObservedCosts, SchedulingStats

MODELS = ("random:2x128", "random:8x256")
LENGTHS = (32, 64, 128, 256, 512, 1024, 1536)
STEP_TOKENS = (2048, 512)
"""For whole prompts, and for prompts in pieces."""
TIMES = 5
SWAP_BYTES = 256 << 20
STRATEGIES = (Strategy.SWAP, Strategy.RECOMPUTE)
OFF_BY = 1.5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.preemption_costs", description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    options = parser.parse_args()
    if importlib.util.find_spec("transformers") is None:
        sys.stdout.write("skipped: transformers and torch are not installed\n")
        return 0
    found = [
        asyncio.run(measured(model, step, options.lengths, options.times))
        for model in options.models
        for step in STEP_TOKENS
    ]
    if options.json:
        from headgate.evidence.preemption.costs import by_data_sheet

        sys.stdout.write(json.dumps({"measured": found, "by_data_sheet": by_data_sheet()}) + "\n")
    else:
        sys.stdout.write("\n".join([*map(table, found), sheet_table()]))
    return 0


async def measured(model: str, step_tokens: int, lengths: tuple[int, ...], times: int) -> dict[str, Any]:
    from gpu_worker.engines.transformers.engine import TransformersEngine, TransformersShape

    shape = TransformersShape(batch=1, kv_tokens=4096, step_tokens=step_tokens, swap_bytes=SWAP_BYTES, calibrate=True)
    with tempfile.TemporaryDirectory() as home:
        engine = TransformersEngine.load(make_policy("tiered:vtc"), model=model, home=Path(home), shape=shape)
        await engine.start()
        true: Calibration = engine._admission.calibration
        seen: dict[tuple[int, Strategy], list[tuple[float, float]]] = {}
        for turn in range(times):
            for length in lengths:
                for strategy in STRATEGIES:
                    got = await preempted(engine, true, length, strategy, f"{turn}-{length}-{strategy}")
                    seen.setdefault((length, strategy), []).append(got)
        await engine.stop()
    rows = [row(true, length, [seen[length, strategy] for strategy in STRATEGIES]) for length in lengths]
    return {
        "model": model,
        "step_tokens": step_tokens,
        "rows": rows,
        "crossover_predicted": true.crossover_tokens(2048),
        "crossover_measured": crossover(rows),
        "bytes_a_token": true.kv_bytes_per_token,
        "worst": max(max(one["ratio"], 1 / one["ratio"]) for each in rows for one in each["by"].values()),
    }


GREEDY = Generation("", None, 0.0, None, (), {})
VICTIM_TOKENS = 256
"""Output of a victim at most; it is aborted when the cost of its preemption is known."""


async def preempted(engine: Any, true: Calibration, length: int, strategy: Strategy, name: str) -> tuple[float, float]:
    """Evict a request of `length` tokens. Return the seconds predicted by `true`, and the seconds measured."""
    rate = inf if strategy is Strategy.SWAP else 0.0  # copies without cost, or an engine that cannot swap
    forced = replace(true, copy_out_bytes_per_s=rate, copy_in_bytes_per_s=rate, copy_base_s=0.0)
    engine._admission.calibration = forced
    before = engine.stats().counts
    victim = own_order(f"victim-{name}", "batch", {}, VICTIM_TOKENS, tier=Tier.BACKGROUND)
    premium = own_order(f"premium-{name}", "paying", {}, 2, tier=Tier.PREMIUM)
    prompt = [7 + (place * 31 + length) % 200 for place in range(length - 2)]
    with engine._enter_request(victim, prompt, GREEDY) as evicted:
        async for event in evicted.events:
            if isinstance(event, Token) and event.output_tokens >= 2:
                break
        with engine._enter_request(premium, [9, 10, 11], GREEDY) as urgent:
            async for _ in urgent.events:
                pass
        async for _ in evicted.events:
            if _observed(engine.stats().counts, strategy).measured > _observed(before, strategy).measured:
                break
    after = engine.stats().counts
    if after.preemptions[strategy, Tier.BACKGROUND] != before.preemptions[strategy, Tier.BACKGROUND] + 1:
        raise RuntimeError(f"{name} was not evicted by {strategy}")
    seconds = _observed(after, strategy).measured_s - _observed(before, strategy).measured_s
    if strategy is Strategy.RECOMPUTE:
        tokens = after.recomputed_tokens - before.recomputed_tokens
        return true.prefill_s(tokens), seconds
    tokens = round((after.swapped_out_bytes - before.swapped_out_bytes) / true.kv_bytes_per_token)
    return true.swap_out_s(tokens) + true.swap_in_s(tokens), seconds


def _observed(counts: SchedulingStats, strategy: Strategy) -> ObservedCosts:
    return counts.costs.get(strategy, ObservedCosts())


def row(true: Calibration, length: int, seen: list[list[tuple[float, float]]]) -> dict[str, Any]:
    by = {}
    for strategy, pairs in zip(STRATEGIES, seen, strict=True):
        predicted, measured = (1e3 * median(pair[which] for pair in pairs) for which in (0, 1))
        by[strategy.value] = {"predicted_ms": predicted, "measured_ms": measured, "ratio": measured / predicted}
    return {"tokens": length, "mb": true.swap_bytes(length) / 1e6, "by": by}


def crossover(rows: list[dict[str, Any]]) -> int | None:
    """Return the length from which on the measured swap is always cheaper."""
    found = None
    for one in reversed(rows):
        if one["by"]["swap"]["measured_ms"] >= one["by"]["recompute"]["measured_ms"]:
            break
        found = one["tokens"]
    return found


def table(found: dict[str, Any]) -> str:
    lines = [
        f"{found['model']}, {found['bytes_a_token'] / 1e3:.1f} KB of KV a token, steps of {found['step_tokens']}",
        f"{'':>16} {'swap, ms':^33} {'recompute, ms':^33}",
        f"{'tokens':>7} {'MB':>8} " + f"{'predicted':>11} {'measured':>11} {'ratio':>9} " * 2,
    ]
    for one in found["rows"]:
        cells = "".join(
            f"{by['predicted_ms']:>11.2f} {by['measured_ms']:>11.2f} {by['ratio']:>9.2f} " for by in one["by"].values()
        )
        lines.append(f"{one['tokens']:>7} {one['mb']:>8.2f} {cells}")
    within = "all within" if found["worst"] <= OFF_BY else "not all within"
    lines.append(
        f"a swap is cheaper from {found['crossover_predicted']} tokens on, as predicted; measured: at"
        f" {found['crossover_measured']} and all lengths above"
    )
    lines.append(f"worst prediction: by a factor of {found['worst']:.2f}; {within} {OFF_BY}\n")
    return "\n".join(line.rstrip() for line in lines)


def sheet_table() -> str:
    from headgate.evidence.preemption.costs import SHEETS, by_data_sheet  # not where only torch is installed

    rows = by_data_sheet()
    names = [name for name in rows[0] if name != "tokens"]
    lines = [
        "Llama 3 70B, ms. The source's, and by data sheets: 327,680 bytes of KV a token, eight A100, 25 GB/s a link,",
        "prefill at half of 8 x 312 TFLOP/s. Nothing of this was measured.",
        f"{'tokens':>7} " + " ".join(f"{name:>{max(10, len(name))}}" for name in names),
    ]
    for one in rows:
        cells = " ".join(f"{one[name]:>{max(10, len(name))}.1f}" for name in names)
        lines.append(f"{one['tokens']:>7} {cells}")
    for name, known in SHEETS.items():
        where = next((n for most in (4096, 131_072) if (n := known.crossover_tokens(most))), None)
        lines.append(f"{name}: " + (f"a swap is cheaper from {where:,} tokens on" if where else "never cheaper"))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

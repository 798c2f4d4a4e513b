"""Measure mixed traffic beyond the capacity on a real engine.

`python -m benchmarks.tiers_measured [--seconds S] [--json]`

The transformers engine runs the built tiny model with real tokens, at this machine's scale. 20 % of the requests are
premium and short, 40 % standard, 40 % background and long, with four tenants each. Poisson arrivals come at OVERLOAD
times the capacity, which is measured first: the requests a second of a backlog of the same mix. All settings get the
same arrivals, each on an engine of its own that calibrates itself, in ROUNDS turns; accepted requests are served to
their end. Figures are of all rounds together; `others` is the share of the machine that other programs took.

    FIFO           first come, first served
    priority       tiers by effective rank, VTC within; no request is evicted for another
    + preemption   running requests are evicted for more urgent ones, by the cheapest strategy of the calibration
    no swap        as + preemption, without host memory to swap to: victims are recomputed
    + SLO          + preemption, and background, then standard, is shed while the tiers above are at risk
    + reserve      + preemption, and 30 % of the KV blocks are reserved for premium

TTFT counts from the planned arrival, so that a late event loop counts too. Attainment: premium and standard by TTFT,
background by its end, over accepted requests. Targets are SCALE times those of docs/preemption-design.md.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from random import Random
from typing import Any

from dispatcher.policies.percentiles import percentile
from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import EngineError, Finished, Started, Token, WorkOrder, own_order
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.fairness.tiered import TieredQueue
from gpu_worker.policies.preemption import Strategy
from gpu_worker.policies.scheduling_stats import SchedulingStats
from gpu_worker.policies.shedding import Shedder, ShedSettings
from gpu_worker.policies.slo import TARGETS, Slo, SloMonitor, SloSettings, SloTargets
from gpu_worker.policies.tiers import TierSettings
from gpu_worker.service.slo_watch import SloWatch

SECONDS = 16.0
ROUNDS = 1
OVERLOAD = 1.3
AT_ONCE = 240
"""Requests of the run that measures the capacity."""
TENANTS = 4
MIX = (Tier.PREMIUM, Tier.STANDARD, Tier.STANDARD, Tier.BACKGROUND, Tier.BACKGROUND)
LENGTHS = {
    Tier.PREMIUM: ((16, 48), (8, 24)),
    Tier.STANDARD: ((48, 160), (24, 64)),
    Tier.BACKGROUND: ((160, 320), (80, 160)),
}
"""Ranges of prompt and output tokens, uniform. Prompt tokens are approximate, since a prompt is text."""
BATCH, KV_TOKENS, STEP_TOKENS = 8, 2048, 256
SWAP_BYTES = 64 << 20
SCALE = 0.2
"""Times the source's targets."""
TIERS = tuple(LENGTHS)
TARGETS_HERE = {
    tier: SloTargets(*(SCALE * TARGETS[tier].of(kind) for kind in (Slo.TTFT, Slo.TPOT, Slo.E2E))) for tier in TIERS
}
SLO = SloSettings(targets=TARGETS_HERE, window_s=10.0)
SHEDDING = ShedSettings(patience_s=2.0, calm_s=5.0, calm_max_s=20.0)
"""A sixth of the default times, because a run takes seconds."""


@dataclass(frozen=True, slots=True)
class Setting:
    tiers: TierSettings | None
    """None: first come, first served."""
    sheds: bool = False
    swap_bytes: int = SWAP_BYTES


SETTINGS = {
    "FIFO": Setting(None),
    "priority": Setting(TierSettings(preemption=False)),
    "+ preemption": Setting(TierSettings()),
    "no swap": Setting(TierSettings(), swap_bytes=0),
    "+ SLO": Setting(TierSettings(), sheds=True),
    "+ reserve": Setting(TierSettings(premium_reserve=0.3)),
}


@dataclass(frozen=True, slots=True)
class PlannedArrival:
    at_s: float
    request: WorkOrder


@dataclass(slots=True)
class Answer:
    tier: Tier
    arrival_s: float
    input_tokens: int = 0
    token_s: list[float] = field(default_factory=list)
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """`seconds`: of arrivals; `tokens`: generated within them; `took_s`: until the last end."""

    answers: list[Answer]
    sheds: Counter[Tier]
    counts: SchedulingStats
    preempted_most: int
    seconds: float
    took_s: float
    tokens: int
    others: float


class CountingQueue(TieredQueue):
    """Records the most preemptions of one request."""

    preempted_most = 0

    def preempt(self, request_id: str, *, counts: bool = True) -> None:
        super().preempt(request_id, counts=counts)
        self.preempted_most = max(self.preempted_most, self.tier_state(request_id).preemptions)


class Monotonic:
    def now(self) -> float:
        return time.monotonic()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Machine:
    """Seconds of processor time since the start: of all programs, idle, and of this program."""

    busy_s: float
    idle_s: float
    own_s: float

    @classmethod
    def now(cls) -> Machine:
        ticks = [float(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n")[0].split()[1:9]]
        a_second = os.sysconf("SC_CLK_TCK")
        idle = ticks[3] + ticks[4]
        return cls((sum(ticks) - idle) / a_second, idle / a_second, time.process_time())

    def others_since(self, before: Machine) -> float:
        busy, idle = self.busy_s - before.busy_s, self.idle_s - before.idle_s
        return max(0.0, busy - (self.own_s - before.own_s)) / max(1e-9, busy + idle)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiers_measured", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of arrivals, a setting")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--overload", type=float, default=OVERLOAD)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    options = parser.parse_args()
    if importlib.util.find_spec("transformers") is None:
        sys.stdout.write("skipped: transformers and torch are not installed\n")
        return 0
    with tempfile.TemporaryDirectory() as home:
        capacity = max(asyncio.run(capacity_per_s(Path(home))) for _ in range(3))
        rounds = [
            arrivals(f"{options.seed} {number}", options.overload * capacity, options.seconds)
            for number in range(options.rounds)
        ]
        runs: dict[str, list[Measured]] = {name: [] for name in SETTINGS}
        for coming in rounds:
            for name, setting in SETTINGS.items():
                runs[name].append(asyncio.run(measured(Path(home), setting, coming, options.seconds)))
        rows = {name: row(of_one) for name, of_one in runs.items()}
        coming = [one for arrived in rounds for one in arrived]
    if options.json:
        sys.stdout.write(json.dumps({"capacity_per_s": capacity, "requests": len(coming), "tiers": rows}) + "\n")
    else:
        sys.stdout.write(table(rows, capacity, coming, options))
    return 0


def arrivals(seed: int | str, rate_per_s: float, seconds: float) -> list[PlannedArrival]:
    random = Random(f"tiers measured {seed}")
    found: list[PlannedArrival] = []
    now_s = 0.0
    while (now_s := now_s + random.expovariate(rate_per_s)) < seconds:
        tier = MIX[int(random.random() * len(MIX))]
        (least, most), (short, long) = LENGTHS[tier]
        tokens, output = random.randint(least, most), random.randint(short, long)
        tenant = f"{tier}-{int(random.random() * TENANTS)}"
        words = "".join(random.choice("abcdefghij ") for _ in range(tokens))
        request = own_order(f"{tier}-{len(found)}", tenant, {"prompt": words, "temperature": 0.0}, output, tier=tier)
        found.append(PlannedArrival(now_s, request))
    return found


@asynccontextmanager
async def running(home: Path, setting: Setting) -> AsyncIterator[tuple[Any, Any]]:
    from gpu_worker.engines.transformers.engine import TransformersEngine, TransformersShape

    policy: Any = make_policy("fcfs")
    if setting.tiers is not None:
        policy = CountingQueue(lambda: make_policy("vtc"), setting.tiers)
    shape = TransformersShape(
        batch=BATCH, kv_tokens=KV_TOKENS, step_tokens=STEP_TOKENS, swap_bytes=setting.swap_bytes, calibrate=True
    )
    engine = TransformersEngine.load(policy, model=None, home=home, shape=shape)
    await engine.start()
    try:
        yield engine, policy
    finally:
        await engine.stop()


async def capacity_per_s(home: Path) -> float:
    """Return requests a second, first come, first served, over the middle of a run in which all arrive at once."""
    requests = [one.request for one in arrivals("capacity", 1e4, 1.0)][:AT_ONCE]
    ends: list[float] = []

    async def listen(engine: Any, request: WorkOrder) -> None:
        async for event in engine.generate(request):
            if isinstance(event, Finished):
                ends.append(time.monotonic())

    async with running(home, SETTINGS["FIFO"]) as (engine, _):
        await asyncio.gather(*(listen(engine, request) for request in requests))
    first, last = len(ends) // 10, len(ends) * 9 // 10
    return (last - first) / (ends[last] - ends[first])


async def measured(home: Path, setting: Setting, coming: Sequence[PlannedArrival], seconds: float) -> Measured:
    watch = SloWatch(Monotonic(), Shedder(SloMonitor(SLO), replace(SHEDDING, enabled=setting.sheds)))
    answers: list[Answer] = []
    async with running(home, setting) as (engine, policy):
        before, began_s = Machine.now(), time.monotonic()
        tasks = []
        for one in coming:
            arrival_s = began_s + one.at_s
            await asyncio.sleep(max(0.0, arrival_s - time.monotonic()))
            if watch.shed_retry_after_s(one.request.tier) is None:
                answers.append(Answer(one.request.tier, arrival_s))
                watch.on_arrived(one.request.execution, one.request.tier, one.request.max_tokens)
                tasks.append(asyncio.create_task(listen(engine, one.request, answers[-1], watch)))
        await asyncio.gather(*tasks)
        took_s = time.monotonic() - began_s
        stats, others = engine.stats(), Machine.now().others_since(before)
    tokens = sum(began_s <= at_s < began_s + seconds for one in answers for at_s in one.token_s)
    return Measured(
        answers, watch.sheds, stats.counts, getattr(policy, "preempted_most", 0), seconds, took_s, tokens, others
    )


async def listen(engine: Any, request: WorkOrder, answer: Answer, watch: SloWatch) -> None:
    try:
        async for event in engine.generate(request):
            watch.note(request.execution, event)
            if isinstance(event, Started):
                answer.input_tokens = event.input_tokens
            elif isinstance(event, Token):
                answer.token_s.append(time.monotonic())
            elif isinstance(event, Finished):
                answer.ended = event.output_tokens == request.max_tokens or event.reason == "stop"
    except EngineError:
        watch.on_left(request.execution)


def row(runs: Sequence[Measured]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    answers = [one for run in runs for one in run.answers]
    for tier in TIERS:
        of_tier = [one for one in answers if one.tier is tier]
        ttft = [one.token_s[0] - one.arrival_s for one in of_tier if one.token_s]
        for name, fraction in (("p50", 0.5), ("p99", 0.99)):
            value = percentile(ttft, fraction)
            found[f"{tier}_{name}_s"] = nan if value is None else value
        found[f"{tier}_attained"] = sum(attained(one) for one in of_tier) / max(1, len(of_tier))
        found[f"{tier}_shed"] = sum(run.sheds[tier] for run in runs)
    found["tokens_per_s"] = sum(run.tokens for run in runs) / sum(run.seconds for run in runs)
    for strategy in (Strategy.SWAP, Strategy.RECOMPUTE):
        times = sum(run.counts.preemptions[strategy, tier] for run in runs for tier in Tier)
        found[f"{strategy}_per_min"] = 60 * times / sum(run.took_s for run in runs)
    again = sum(run.counts.recomputed_tokens for run in runs)
    computed = sum(one.input_tokens + len(one.token_s) for one in answers)
    found["accepted"], found["finished"] = len(answers), sum(one.ended for one in answers)
    found["preempted_most"] = max(run.preempted_most for run in runs)
    found["recomputed_share"] = again / (computed + again)
    found["others"] = sum(run.others * run.took_s for run in runs) / sum(run.took_s for run in runs)
    found["took_s"] = sum(run.took_s for run in runs)
    return found


def attained(one: Answer) -> bool:
    target = TARGETS_HERE[one.tier]
    if one.tier is Tier.BACKGROUND:
        return one.ended and one.token_s[-1] - one.arrival_s <= target.e2e_s
    return bool(one.token_s) and one.token_s[0] - one.arrival_s <= target.ttft_s


def table(rows: dict[str, dict[str, Any]], capacity: float, coming: Sequence[PlannedArrival], options: Any) -> str:
    asked = Counter(one.request.tier for one in coming)
    targets = ", ".join(
        f"{tier} {ms(TARGETS_HERE[tier].ttft_s)}"
        if tier is not Tier.BACKGROUND
        else f"{tier}'s end {ms(TARGETS_HERE[tier].e2e_s)}"
        for tier in TIERS
    )
    lines = [
        f"capacity {capacity:.1f} requests a second; {options.overload:g} times that, {options.rounds} x"
        f" {options.seconds:g} s: " + ", ".join(f"{asked[tier]} {tier}" for tier in TIERS),
        f"targets, {SCALE:g} of the source's: {targets}",
        f"{'':13} {'premium TTFT':>15} {'standard TTFT':>15} {'background TTFT':>16} {'attained':>20}"
        f" {'tokens':>7} {'a minute':>12} {'shed':>11}",
        f"{'':13} {'P50':>7} {'P99':>7} {'P50':>7} {'P99':>7} {'P50':>8} {'P99':>7} {'prem':>6} {'std':>6} {'back':>6}"
        f" {'/s':>7} {'swap':>5} {'again':>6} {'std':>5} {'back':>5}",
    ]
    for name, one in rows.items():
        times = [one[f"{tier}_{which}_s"] for tier in TIERS for which in ("p50", "p99")]
        cells = [f"{1e3 * at:>7.0f}" for at in times]
        cells[4] = f"{1e3 * times[4]:>8.0f}"
        cells += [f"{one[f'{tier}_attained']:>6.1%}" for tier in TIERS]
        cells += [f"{one['tokens_per_s']:>7.0f}", f"{one['swap_per_min']:>5.0f}", f"{one['recompute_per_min']:>6.0f}"]
        cells += [f"{one['standard_shed']:>5}", f"{one['background_shed']:>5}"]
        lines.append(f"{name:13} " + " ".join(cells))
    lines.append(
        f"\n{'':13} {'accepted':>9} {'finished':>9} {'preempted at most':>18} {'recomputed':>11}   bar 8   others"
    )
    for name, one in rows.items():
        good = one["finished"] == one["accepted"] and one["preempted_most"] <= 3 and one["recomputed_share"] <= 0.1
        lines.append(
            f"{name:13} {one['accepted']:>9} {one['finished']:>9} {one['preempted_most']:>18}"
            f" {one['recomputed_share']:>11.1%}   {'held' if good else 'broken':7} {one['others']:>6.0%}"
        )
    return "\n".join(lines) + "\n"


def ms(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms"


if __name__ == "__main__":
    sys.exit(main())

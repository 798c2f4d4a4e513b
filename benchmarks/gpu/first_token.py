"""Parts 4 and 5: how long a tenant waits for its first token beside other tenants, by time from its submission.

Part 4, a quiet tenant, with the same requests at the same times in four settings:

    alone               the engine has no other requests
    alone, half card    no other requests, and an engine that has half of the card: half of the places in the batch,
                        half of the KV cache, and half of the time: after each step the engine's thread sleeps as long
                        as the step took, as if another engine of the same size ran its own step in turn
    flood, vtc          another tenant keeps many more requests unfinished than fit
    flood, fcfs         the same, without a fair queue

With two tenants of equal weight, half of the card is the quiet tenant's guaranteed share. The aim is that the flood
makes it wait hardly longer than on its share: P99 in `flood, vtc` at most AIM times that of `alone, half card`.

Part 5, a premium tenant, beside background requests with long prompts (`tiered:vtc`). Both halves run on one engine,
which calibrates itself first and may swap.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count
from random import Random

from benchmarks.gpu.bench import Bench, Planned, StepMeter, first_token_s, plan, run_engine
from benchmarks.gpu.run import Report
from benchmarks.gpu.sizes import Range
from dispatcher.policies.percentiles import percentile
from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import Token
from gpu_worker.engines.transformers.engine import TransformersEngine, TransformersShape

AIM = 1.2
HALF = 0.5


@dataclass(frozen=True, slots=True)
class Flow:
    """Requests with a planned arrival each, in seconds from the beginning."""

    tenant: str
    tier: Tier
    requests: tuple[tuple[float, Planned], ...]


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds from submission to the first token."""

    requests: int
    p50_s: float
    p95_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Flood:
    """`at_once` requests are unfinished at any time."""

    at_once: int
    prompt: Range
    output: Range
    tier: Tier = Tier.STANDARD


async def compare_quiet_tenant(bench: Bench, report: Report) -> None:
    sizes = bench.sizes
    quiet = make_flow(
        bench, "quiet", Tier.STANDARD, sizes.quiet_requests, sizes.quiet_per_s, sizes.quiet_prompt, sizes.quiet_output
    )
    flood = Flood(sizes.flood_requests, sizes.flood_prompt, sizes.flood_output)
    whole = bench.shape
    half = replace(whole, batch=max(1, whole.batch // 2), kv_tokens=whole.kv_tokens // 2)
    report.say(waits_head())
    found: dict[str, Waits] = {}

    async def measure(name: str, policy: str, shape: TransformersShape, speed: float, beside: Flood | None) -> None:
        async with run_engine(bench, policy, shape, StepMeter(speed)) as engine:
            found[name] = await run_flow(bench, engine, quiet, beside)
        report.say(waits_line(name, found[name]))
        report.record("waits", {each: asdict(waits) for each, waits in found.items()})

    await measure("alone", "vtc", whole, 1.0, None)
    await measure("alone, half card", "vtc", half, HALF, None)
    await measure("flood, vtc", "vtc", whole, 1.0, flood)
    to_half = found["flood, vtc"].p99_s / found["alone, half card"].p99_s
    to_alone = found["flood, vtc"].p99_s / found["alone"].p99_s
    report.say(f"P99 of vtc to alone, half card: {to_half:.2f} (aim: at most {AIM}); to alone: {to_alone:.2f}")
    report.record("vtc_p99", {"to_half_card": to_half, "to_alone": to_alone, "aim": AIM})
    await measure("flood, fcfs", "fcfs", whole, 1.0, flood)
    report.say(f"P99 of fcfs to vtc: {found['flood, fcfs'].p99_s / found['flood, vtc'].p99_s:.1f}")


async def compare_premium_tenant(bench: Bench, report: Report) -> None:
    sizes = bench.sizes
    premium = make_flow(
        bench,
        "premium",
        Tier.PREMIUM,
        sizes.premium_requests,
        sizes.premium_per_s,
        sizes.premium_prompt,
        sizes.premium_output,
    )
    flood = Flood(sizes.background_requests, sizes.background_prompt, sizes.background_output, Tier.BACKGROUND)
    shape = replace(bench.shape, swap_bytes=sizes.swap_bytes, calibrate=True)
    report.say(waits_head())
    async with run_engine(bench, "tiered:vtc", shape) as engine:
        alone = await run_flow(bench, engine, premium, None)
        report.say(waits_line("premium alone", alone))
        report.record("alone", asdict(alone))
        beside = await run_flow(bench, engine, premium, flood, again=True)
        evictions = engine.stats().counts.preemptions
    report.say(waits_line("beside background", beside))
    report.record("beside", asdict(beside))
    report.record("preemptions", {strategy.value: number for (strategy, _), number in evictions.items()})
    report.say(
        f"P50 {beside.p50_s / alone.p50_s:.2f} and P99 {beside.p99_s / alone.p99_s:.2f} times those alone;"
        f" {sum(evictions.values())} preemptions of prompts of {flood.prompt[1]} tokens"
    )


def make_flow(bench: Bench, tenant: str, tier: Tier, requests: int, per_s: float, prompt: Range, output: Range) -> Flow:
    """Return Poisson arrivals; the same seed gives the same."""
    random = Random(f"{bench.seed} {tenant}")
    at_s = 0.0
    arrivals = []
    for number in range(requests):
        at_s += random.expovariate(per_s)
        arrivals.append((at_s, plan(bench, random, f"{tenant}-{number}", prompt, output)))
    return Flow(tenant, tier, tuple(arrivals))


async def run_flow(
    bench: Bench, engine: TransformersEngine, flow: Flow, flood: Flood | None, *, again: bool = False
) -> Waits:
    """Send the flow's requests at their times, in the flood once its requests fill the batch. `again`: the engine has
    served the flow before."""
    if flood is None:
        return await send_flow(engine, flow, again=again)
    async with keep_flooding(bench, engine, flood):
        return await send_flow(engine, flow, again=again)


async def send_flow(engine: TransformersEngine, flow: Flow, *, again: bool) -> Waits:
    clock = asyncio.get_running_loop().time
    began_s = clock()

    async def send(at_s: float, planned: Planned) -> float:
        due_s = began_s + at_s
        await asyncio.sleep(due_s - clock())
        named = replace(planned, name=f"{planned.name}-again") if again else planned
        return await first_token_s(engine, named.request(flow.tenant, tier=flow.tier), clock) - due_s

    return waits_of(await asyncio.gather(*(send(at_s, planned) for at_s, planned in flow.requests)))


@asynccontextmanager
async def keep_flooding(bench: Bench, engine: TransformersEngine, flood: Flood) -> AsyncIterator[None]:
    """Keep the flood's requests unfinished until the block ends. It begins when as many as fit have a token."""
    full = asyncio.Event()
    numbers = count()
    fit = min(bench.sizes.batch, flood.at_once, max(1, bench.sizes.kv_tokens // (flood.prompt[1] + flood.output[1])))
    running: set[int] = set()

    async def repeat(place: int) -> None:
        random = Random(f"{bench.seed} flood {place}")
        while True:
            planned = plan(bench, random, f"flood-{next(numbers)}", flood.prompt, flood.output)
            async for event in engine.generate(planned.request("flood", tier=flood.tier)):
                if isinstance(event, Token) and not full.is_set():
                    running.add(place)
                    if len(running) >= fit:
                        full.set()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(repeat(place)) for place in range(flood.at_once)]
        await full.wait()
        yield
        for task in tasks:
            task.cancel()


def waits_of(seconds: list[float]) -> Waits:
    p50_s, p95_s, p99_s = (percentile(seconds, fraction) or 0.0 for fraction in (0.50, 0.95, 0.99))
    return Waits(len(seconds), p50_s, p95_s, p99_s)


def waits_head() -> str:
    return f"{'first token, ms':20} {'requests':>9} {'P50':>9} {'P95':>9} {'P99':>9}"


def waits_line(name: str, waits: Waits) -> str:
    cells = " ".join(f"{1e3 * seconds:>9.1f}" for seconds in (waits.p50_s, waits.p95_s, waits.p99_s))
    return f"{name:20} {waits.requests:>9} {cells}"

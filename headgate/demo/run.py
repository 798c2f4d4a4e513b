"""The demo: measure the engine, play the workload without headgate's policies, then with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from rich.console import Console
from rich.live import Live

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.clocks import Share
from dispatcher.policies.service import WEIGHTED_TOKENS
from headgate.demo.live import tenant_now, view
from headgate.demo.measure import RunReport, report
from headgate.demo.player import Player
from headgate.demo.scene import FLOOD, QUIET, Scene, calibration, compose
from headgate.demo.verdict import Verdict, judge
from headgate.local.options import Addresses, StackOptions
from headgate.local.stack import Stack
from headgate.workloads.arrivals import Arrival
from headgate.workloads.described.profiles import CHAT, CODE, Profile, make_arrivals
from headgate.workloads.shape import fitted
from headgate.workloads.traces.files import read_trace

CALIBRATION_REQUESTS = 24
"""Three times the slots: the rate that the stack sustains, not that of one burst."""
SOURCE_REQUESTS_MIN = 20
SOURCE_REQUESTS = 2000
"""Requests made from the built-in profile: more than the engine can serve in the time of a demo."""
LAMBDA_EVERY = {QUIET: 6, FLOOD: 60}
"""Every n-th request goes through lambda.invoke; few of the flood's, as each holds a Lambda environment."""
GUARANTEE = 0.4
"""Each tenant's guaranteed rate, as a part of the measured capacity. Both together stay below it, so they hold."""
BURST_S = 4.0
LIVE_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Sources:
    """Traces with arrivals and lengths; None: the built-in profile with this seed."""

    quiet: Path | None
    flood: Path | None
    seed: int


@dataclass(frozen=True, slots=True)
class DemoOptions:
    stack: StackOptions
    sources: Sources
    seconds: float


async def run_demo(options: DemoOptions, console: Console) -> tuple[dict[str, RunReport], Verdict]:
    """Play both runs and judge them. A cancel stops every process first."""
    quiet, flood = load_sources(options.sources)
    plain = options.stack.model_copy(update={"order": "fcfs", "policy": "fcfs"})
    async with running(plain, console, "without headgate's policies") as (stack, addresses):
        capacity = await measure_capacity(stack, addresses, flood, options.sources.seed, console)
        scene = compose(quiet, flood, capacity, options.seconds)
        runs = {"fcfs": await play(stack, addresses, scene, "without headgate: first come, first served", console)}
    share = Share(rate_per_s=GUARANTEE * capacity, burst=GUARANTEE * capacity * BURST_S)
    tenants = {QUIET: share, FLOOD: share}
    fair = options.stack.model_copy(update={"order": "bwfq", "policy": "vtc", "tenants": tenants})
    async with running(fair, console, "with headgate") as (stack, addresses):
        await measure_capacity(stack, addresses, flood, options.sources.seed, console)
        runs["headgate"] = await play(stack, addresses, scene, "with headgate: BWFQ and VTC", console)
    return runs, judge(runs["fcfs"], runs["headgate"], QUIET)


@asynccontextmanager
async def running(options: StackOptions, console: Console, title: str) -> AsyncIterator[tuple[Stack, Addresses]]:
    """Run a stack for one run; stop it in any case."""
    stack = Stack(options)
    try:
        with console.status(f"[bold]{title}[/]: starting") as status:
            addresses = await stack.start(lambda step: status.update(f"[bold]{title}[/]: {step}"))
        yield stack, addresses
    finally:
        await stack.stop()


async def measure_capacity(
    stack: Stack, addresses: Addresses, source: Sequence[Arrival], seed: int, console: Console
) -> float:
    """Measure what the engine serves of such requests when it is full, in service units per second.

    Raises ConfigurationError if it serves none.
    """
    player = _player(stack, addresses, {})
    with console.status("measuring how fast the engine serves"):
        samples = await player.play(calibration(source, CALIBRATION_REQUESTS, Random(seed)))
    served = sum(WEIGHTED_TOKENS(sample.input_tokens, sample.output_tokens) for sample in samples)
    capacity = served / max(sample.end_s or 0.0 for sample in samples)
    if not capacity > 0:
        errors = sorted({sample.error or "" for sample in samples})
        raise ConfigurationError(
            f"the engine served no request when it was measured: {', '.join(errors)}; "
            f"the logs are in {stack.options.home / 'logs'}"
        )
    console.print(f"the engine serves about {capacity:.0f} service units per second")
    return capacity


async def play(stack: Stack, addresses: Addresses, scene: Scene, title: str, console: Console) -> RunReport:
    """Play the scene once, with a live view."""
    player = _player(stack, addresses, LAMBDA_EVERY)
    watching = asyncio.ensure_future(_watch(stack, player, scene, title, console))
    try:
        samples = await player.play(scene.arrivals)
    finally:
        watching.cancel()
        await asyncio.wait({watching})
    return report(samples)


def load_sources(sources: Sources) -> tuple[list[Arrival], list[Arrival]]:
    """Read or make the requests of both tenants, with lengths scaled to what a small engine can serve.

    Raises TraceError, with file, line and column, and ConfigurationError for a trace that is too short.
    """
    random = Random(sources.seed)
    quiet = read_trace(sources.quiet, tenant=QUIET) if sources.quiet else made(CHAT, QUIET, random)
    flood = read_trace(sources.flood, tenant=FLOOD) if sources.flood else made(CODE, FLOOD, random)
    for path, arrivals in ((sources.quiet, quiet), (sources.flood, flood)):
        if len(arrivals) < SOURCE_REQUESTS_MIN:
            raise ConfigurationError(f"{path}: {len(arrivals)} requests; the demo needs at least {SOURCE_REQUESTS_MIN}")
    return fitted(quiet), fitted(flood)


def made(profile: Profile, tenant: str, random: Random) -> list[Arrival]:
    return make_arrivals(profile, tenant, SOURCE_REQUESTS, random)


def _player(stack: Stack, addresses: Addresses, lambda_every: Mapping[str, int]) -> Player:
    return Player(
        base_url=addresses.openai_base_url,
        aws_url=addresses.aws_endpoint_url,
        keys=addresses.api_keys,
        model=stack.model,
        bytes_per_token=stack.bytes_per_token,
        lambda_every=lambda_every,
    )


async def _watch(stack: Stack, player: Player, scene: Scene, title: str, console: Console) -> None:
    """Redraw until cancelled. While the table does not answer, the view shows no queues and no credit."""
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while True:
            picture = await stack.picture()
            rows = [tenant_now(name, player.samples, picture, player.elapsed_s()) for name in (QUIET, FLOOD)]
            live.update(view(title, rows, len(player.samples), len(scene.arrivals), player.elapsed_s()))
            await asyncio.sleep(LIVE_EVERY_S)

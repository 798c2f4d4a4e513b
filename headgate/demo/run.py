"""The demo: play the same requests without headgate's policies, then with them, and judge the difference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from random import Random

from rich.console import Console
from rich.status import Status

from dispatcher.policies.clocks import Share
from headgate.demo.measure import RunReport
from headgate.demo.report import LABELS, WITH, WITHOUT, say
from headgate.demo.scene import FLOOD, FLOOD_LOAD, QUIET, QUIET_LOAD, Scene, compose
from headgate.demo.services import Service, running
from headgate.demo.sources import Sources, load_sources
from headgate.demo.stage import Stage, calibration_requests
from headgate.demo.verdict import DemoOutcome, Verdict, judge
from headgate.machine.options import FleetOptions
from headgate.workloads.arrivals import Arrival

GUARANTEE = 0.4
"""Each tenant's guaranteed rate, as a part of the measured capacity. Both together stay below it, so they hold."""
BURST_S = 4.0
IDLE_TTFTS = 32
"""The scene takes at least this many times the latency of a single request. Without headgate, a request then waits for
a multiple of this latency, on a busy machine too."""
POLICIES = {WITHOUT: {"order": "fcfs", "policy": "fcfs"}, WITH: {"order": "bwfq", "policy": "vtc"}}


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """`seconds`: the time in which requests arrive. `calibration_requests`: of one measurement of the engine.

    `together`: start both services at once. It saves time if the engine of the service that waits needs no machine.
    """

    service: FleetOptions
    sources: Sources
    seconds: float
    calibration_requests: int
    together: bool


@dataclass(frozen=True, slots=True)
class PlayedDemo:
    runs: dict[str, RunReport]
    verdict: Verdict


async def run_demo(options: DemoOptions, console: Console) -> PlayedDemo:
    """Play both runs and judge them; once more if the machine's speed changed. A cancel stops every process first."""
    demo = _Demo(options, console, *load_sources(options.sources))
    say(
        console,
        f"demo: two tenants share one engine. {FLOOD} sends {FLOOD_LOAD:g} times what the engine can serve, {QUIET} "
        f"{QUIET_LOAD:g} times. Service: input tokens + 2 x output tokens.",
    )
    played = await demo.play()
    if played.verdict.outcome is DemoOutcome.INCONCLUSIVE:
        say(console, f"demo: {played.verdict.line}; both runs are played again")
        played = await demo.play()
    return played


@dataclass(frozen=True, slots=True)
class _Demo:
    options: DemoOptions
    console: Console
    quiet: Sequence[Arrival]
    flood: Sequence[Arrival]

    async def play(self) -> PlayedDemo:
        if self.options.together:
            async with self._services(WITHOUT, WITH) as (first, second):
                scene, capacity, before = await self._without(first)
                after = await self._with(second, scene, capacity)
        else:
            async with self._services(WITHOUT) as (first,):
                scene, capacity, before = await self._without(first)
            async with self._services(WITH) as (second,):
                after = await self._with(second, scene, capacity)
        return PlayedDemo({WITHOUT: before, WITH: after}, judge(before, after, QUIET))

    async def _without(self, service: Service) -> tuple[Scene, float, RunReport]:
        """Play the first run. Return the scene and the engine's capacity too."""
        stage = await self._stage(service, WITHOUT)
        capacity = await stage.measure()
        seconds = max(self.options.seconds, IDLE_TTFTS * await stage.idle_ttft_s())
        scene = compose(self.quiet, self.flood, capacity, seconds)
        return scene, capacity, await stage.play(scene, Share(), capacity)

    async def _with(self, service: Service, scene: Scene, capacity: float) -> RunReport:
        stage = await self._stage(service, WITH)
        share = Share(rate_per_s=GUARANTEE * capacity, burst=GUARANTEE * capacity * BURST_S)
        return await stage.play(scene, share, await stage.measure())

    async def _stage(self, service: Service, run: str) -> Stage:
        random = Random(self.options.sources.seed)
        requests = calibration_requests(self.flood, self.options.calibration_requests, random)
        stage = Stage(service, requests, LABELS[run], self.console)
        await stage.warm_up()
        return stage

    @asynccontextmanager
    async def _services(self, *runs: str) -> AsyncIterator[list[Service]]:
        """Start the services of these runs at the same time, and stop them at the same time."""
        stacks = [AsyncExitStack() for _ in runs]
        starting: list[asyncio.Task[Service]] = []
        try:
            with self.console.status(f"{' and '.join(LABELS[run] for run in runs)}: starting") as status:
                for run, stack in zip(runs, stacks, strict=True):
                    service = running(self._options_of(run), partial(_show_step, status, LABELS[run]))
                    starting.append(asyncio.create_task(stack.enter_async_context(service)))
                services = await asyncio.gather(*starting)
            yield services
        finally:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
            await asyncio.gather(*(stack.aclose() for stack in stacks))

    def _options_of(self, run: str) -> FleetOptions:
        home = self.options.service.home / run
        return self.options.service.model_copy(update={**POLICIES[run], "home": home})


def _show_step(status: Status, label: str, step: str) -> None:
    status.update(f"{label}: {step}")

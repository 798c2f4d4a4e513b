"""The demo: play the same requests without headgate's policies, then with them, and judge the difference.

One run: measure the engine, play the scene with a live view, measure again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from random import Random

from rich.console import Console
from rich.live import Live
from rich.status import Status

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.clocks import Share
from dispatcher.policies.percentiles import percentile
from dispatcher.policies.service import WEIGHTED_TOKENS
from headgate.demo.measure import DemoOutcome, RunReport, Sample, Verdict, judge, report
from headgate.demo.player import Player
from headgate.demo.report import LABELS, WITH, WITHOUT, say, tenant_now, view
from headgate.demo.scene import FLOOD, FLOOD_LOAD, QUIET, QUIET_LOAD, Scene, Sources, compose, load_sources
from headgate.demo.services import CALIBRATION, Service, running
from headgate.machine.options import FleetOptions
from headgate.workloads.arrivals import Arrival

_GUARANTEE = 0.4
"""Each tenant's guaranteed rate, as a part of the measured capacity. Both together stay below it, so they hold."""
_BURST_S = 4.0
_IDLE_TTFTS = 32
"""The scene takes at least this many times the latency of a single request. Without headgate, a request then waits for
a multiple of this latency, on a busy machine too."""
_POLICIES = {WITHOUT: {"order": "fcfs", "policy": "fcfs"}, WITH: {"order": "bwfq", "policy": "vtc"}}


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
        seconds = max(self.options.seconds, _IDLE_TTFTS * await stage.idle_ttft_s())
        scene = compose(self.quiet, self.flood, capacity, seconds)
        return scene, capacity, await stage.play(scene, Share(), capacity)

    async def _with(self, service: Service, scene: Scene, capacity: float) -> RunReport:
        stage = await self._stage(service, WITH)
        share = Share(rate_per_s=_GUARANTEE * capacity, burst=_GUARANTEE * capacity * _BURST_S)
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
        return self.options.service.model_copy(update={**_POLICIES[run], "home": home})


def _show_step(status: Status, label: str, step: str) -> None:
    status.update(f"{label}: {step}")


_LAMBDA_EVERY = {QUIET: 6, FLOOD: 60}
"""Every n-th request goes through lambda.invoke; few of the flood's, as each holds a Lambda environment."""
_LIVE_EVERY_S = 0.5
_WARM_UP_REQUESTS = 4
"""The first requests of a service are slower: connections are opened and modules are loaded."""
_IDLE_REQUESTS = 3
"""Requests that measure the time to the first token of a service that does nothing else."""


@dataclass(frozen=True, slots=True)
class Stage:
    """`label` begins each line on the console. `calibration`: the requests of one measurement of the engine."""

    service: Service
    calibration: Sequence[Arrival]
    label: str
    console: Console

    async def warm_up(self) -> None:
        with self.console.status(f"{self.label}: warming up"):
            await self._play_calibration(self.calibration[:_WARM_UP_REQUESTS])

    async def idle_ttft_s(self) -> float:
        """Return the median time to the first token of single requests; 0 if none is answered."""
        with self.console.status(f"{self.label}: measuring the latency of a single request"):
            samples = [(await self._play_calibration([one]))[0] for one in self.calibration[:_IDLE_REQUESTS]]
        return percentile([sample.ttft_s for sample in samples if sample.ttft_s is not None], 0.5) or 0.0

    async def measure(self) -> float:
        """Return what the engine serves when it is full, in service units per second.

        Raises ConfigurationError if it serves none.
        """
        with self.console.status(f"{self.label}: measuring how fast the engine serves"):
            samples = await self._play_calibration(self.calibration)
        served = sum(WEIGHTED_TOKENS(sample.input_tokens, sample.output_tokens) for sample in samples)
        if not served > 0:
            errors = sorted({sample.error or "" for sample in samples})
            raise ConfigurationError(f"the engine served no request when it was measured: {', '.join(errors)}")
        return served / max(sample.end_s or 0.0 for sample in samples)

    async def play(self, scene: Scene, share: Share, before_per_s: float) -> RunReport:
        """Play the scene once, and measure the engine again. `share`: of both tenants. `before_per_s`: the engine's
        measured speed before the run."""
        say(self.console, f"{self.label}: the engine serves {before_per_s:.0f} service units per second when full")
        keys = await self.service.add_tenants({QUIET: share, FLOOD: share})
        player = self._player(keys, _LAMBDA_EVERY if self.service.aws_url else {})
        watching = asyncio.ensure_future(self._watch(player, scene))
        try:
            samples = await player.play(scene.arrivals)
        finally:
            watching.cancel()
            await asyncio.wait({watching})
        ended_s = player.elapsed_s()
        after_per_s = await self.measure()
        say(
            self.console,
            f"{self.label}: {len(samples)} requests played in {ended_s:.1f} s; "
            f"the engine serves {after_per_s:.0f} service units per second afterwards",
        )
        return report(samples, calibrations_per_s=(before_per_s, after_per_s))

    async def _play_calibration(self, requests: Sequence[Arrival]) -> list[Sample]:
        return await self._player({CALIBRATION: self.service.keys[CALIBRATION]}, {}).play(requests)

    def _player(self, keys: Mapping[str, str], lambda_every: Mapping[str, int]) -> Player:
        return Player(
            base_url=self.service.base_url,
            aws_url=self.service.aws_url,
            keys=keys,
            model=self.service.model,
            bytes_per_token=self.service.bytes_per_token,
            lambda_every=lambda_every,
        )

    async def _watch(self, player: Player, scene: Scene) -> None:
        """Redraw until cancelled. While the store does not answer, the view shows no queues and no credit."""
        with Live(console=self.console, refresh_per_second=4, transient=True) as live:
            while True:
                picture = await self.service.picture()
                rows = [tenant_now(name, player.samples, picture, player.elapsed_s()) for name in (QUIET, FLOOD)]
                live.update(view(self.label, rows, len(player.samples), len(scene.arrivals), player.elapsed_s()))
                await asyncio.sleep(_LIVE_EVERY_S)


def calibration_requests(flood: Sequence[Arrival], requests: int, random: Random) -> list[Arrival]:
    """Make a burst of typical requests that all arrive at once."""
    chosen = random.sample(list(flood), min(requests, len(flood)))
    return [Arrival(0.0, CALIBRATION, arrival.input_tokens, arrival.output_tokens) for arrival in chosen]

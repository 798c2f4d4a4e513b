"""One run of the demo on a service: measure the engine, play the scene with a live view, measure again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from rich.console import Console
from rich.live import Live

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.clocks import Share
from dispatcher.policies.percentiles import percentile
from dispatcher.policies.service import WEIGHTED_TOKENS
from headgate.demo.live import tenant_now, view
from headgate.demo.measure import RunReport, Sample, report
from headgate.demo.player import Player
from headgate.demo.report import say
from headgate.demo.scene import FLOOD, QUIET, Scene
from headgate.demo.services import CALIBRATION, Service
from headgate.workloads.arrivals import Arrival

LAMBDA_EVERY = {QUIET: 6, FLOOD: 60}
"""Every n-th request goes through lambda.invoke; few of the flood's, as each holds a Lambda environment."""
LIVE_EVERY_S = 0.5
WARM_UP_REQUESTS = 4
"""The first requests of a service are slower: connections are opened and modules are loaded."""
IDLE_REQUESTS = 3
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
            await self._play_calibration(self.calibration[:WARM_UP_REQUESTS])

    async def idle_ttft_s(self) -> float:
        """Return the median time to the first token of single requests; 0 if none is answered."""
        with self.console.status(f"{self.label}: measuring the latency of a single request"):
            samples = [(await self._play_calibration([one]))[0] for one in self.calibration[:IDLE_REQUESTS]]
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
        player = self._player(keys, LAMBDA_EVERY if self.service.aws_url else {})
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
                await asyncio.sleep(LIVE_EVERY_S)


def calibration_requests(flood: Sequence[Arrival], requests: int, random: Random) -> list[Arrival]:
    """Make a burst of typical requests that all arrive at once."""
    chosen = random.sample(list(flood), min(requests, len(flood)))
    return [Arrival(0.0, CALIBRATION, arrival.input_tokens, arrival.output_tokens) for arrival in chosen]

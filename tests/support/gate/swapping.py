"""Workers of several models that obey the shard: they report each second, drain, swap, and report the new model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dispatcher.model.commands import Attempts, Report
from dispatcher.model.fleet import LoadableModel
from tests.support.gate.lone_shard import LoneShard

HEARTBEAT_S = 1.0


def swap_report(
    worker: str, model: str, swap_s: Mapping[str, float], *, slots: int = 1, draining: bool = False
) -> Report:
    """Return the heartbeat of a worker that has `model`. `swap_s`: of each model that it can load."""
    models = tuple(
        LoadableModel(name, 0.0 if name == model else seconds, 4096, 4.0, 100.0)
        for name, seconds in sorted(swap_s.items())
    )
    return Report(worker, f"http://{worker}", model, slots, 4096, 4.0, 100.0, draining, 0.0, 0, (), (), models)


@dataclass
class SwappingWorker:
    """`drain_s`: how long its running calls take to end before a swap. `obeys`: whether it carries out orders."""

    name: str
    model: str
    swap_s: Mapping[str, float]
    drain_s: float = 0.0
    slots: int = 1
    obeys: bool = True
    loading: str = ""
    ready_at: float = 0.0
    swapping_s: float = 0.0
    """The seconds that all its swaps took."""

    def heartbeat(self, shard: LoneShard, now: float) -> None:
        if self.loading and now >= self.ready_at:
            self.model, self.loading = self.loading, ""
        report = swap_report(self.name, self.model, self.swap_s, slots=self.slots, draining=bool(self.loading))
        answer = shard.do(report, now)
        assert isinstance(answer, Attempts)
        if answer.load and self.obeys and not self.loading:
            self.loading = answer.load
            self.swapping_s += self.swap_s[answer.load]
            self.ready_at = now + self.drain_s + self.swap_s[answer.load]


def heartbeats(shard: LoneShard, workers: Sequence[SwappingWorker], now: float) -> None:
    for worker in workers:
        worker.heartbeat(shard, now)

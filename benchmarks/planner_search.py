"""Searches for scenes in which a planner without fairness dominates headgate's own by most (planner_dominance.py).

    python -m benchmarks.planner_search [--minutes N] [--seed N] [--write FILE]
    python -m benchmarks.planner_search --replay FILE [--write FILE]

Walks of annealing over random scenes (planner_scenes.py, `random_scene` and `vary`). A walk begins at the worst of
_FIRST random scenes, changes one thing _STEPS times, and accepts a scene that is better for the plan by so many points
with the probability exp(-points / T); T falls from _HOT to _COLD. What it seeks is the greatest of two distances, in
points, over the other planners: how much better off the worst-off entitled tenant is, and how much better the best of
the entitled tenants if none is worse off. Only this decides, so a walk can climb where nothing is dominated yet.

--write keeps the worst scenes, of each walk one, after every walk. --replay plays those of a file again; with --write
they are written with what happens now.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from math import exp
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, NamedTuple

from benchmarks.planner_dominance import PLANNERS, Played, distance, dominations, entitled_tenants, play, verdict
from benchmarks.planner_scenes import SceneShape, random_scene, vary

WORST = Path(__file__).parent / "results" / "planner_worst.json"
_KEPT = 10
_FIRST, _STEPS = 4, 20
_HOT, _COLD = 10.0, 1.0
_SEEDS = 1_000_000
"""Walks begin at random scenes from this seed on, which no other benchmark uses."""


class Judged(NamedTuple):
    """A scene under all planners. `distance`: in points, more is worse for the plan."""

    shape: SceneShape
    runs: Sequence[Played]
    entitled: set[str]
    distance: float

    @property
    def verdict(self) -> str:
        return verdict(dominations(self.runs, self.entitled))

    def as_json(self) -> dict[str, Any]:
        in_time = {run.planner: {name: round(100 * part) for name, part in run.in_time.items()} for run in self.runs}
        return {
            "verdict": self.verdict,
            "points": round(self.distance),
            "entitled": sorted(self.entitled),
            "in_time": in_time,
            "shape": self.shape.as_json(),
        }


def judge(shape: SceneShape) -> Judged:
    scene = shape.scene()
    runs, entitled = [play(scene, planner) for planner in PLANNERS], entitled_tenants(scene)
    return Judged(shape, runs, entitled, distance(runs, entitled))


def walk(seed: int) -> Iterator[Judged]:
    """Yield every scene that the walk judges."""
    random = Random(f"search {seed}")
    first = [judge(random_scene(_SEEDS + seed * _FIRST + at)) for at in range(_FIRST)]
    yield from first
    current = max(first, key=lambda each: each.distance)
    for step in range(_STEPS):
        temperature = _HOT * (_COLD / _HOT) ** (step / _STEPS)
        try:
            found = judge(vary(current.shape, random))
        except ValueError:  # no request arrives any more
            continue
        yield found
        if random.random() < exp(min(0.0, found.distance - current.distance) / temperature):
            current = found


def search(seed: int, minutes: float, write: Path | None) -> list[Judged]:
    """Return the worst scene of each of the worst walks. The last walk ends after its minutes."""
    worst: list[Judged] = []
    judged, end = 0, monotonic() + 60 * minutes
    while monotonic() < end:
        found = list(walk(seed))
        judged += len(found)
        worst = sorted([*worst, max(found, key=lambda each: each.distance)], key=lambda each: -each.distance)[:_KEPT]
        dominated = sum(each.verdict != "–" for each in found)
        print(f"walk {seed}: {dominated} of {len(found)} dominated; {judged} scenes so far, worst "
              f"{', '.join(f'{each.distance:.0f}' for each in worst)}", flush=True)  # fmt: skip
        if write:
            _write(write, worst)
        seed += 1
    return worst


def read_shapes(path: Path = WORST) -> list[SceneShape]:
    return [SceneShape.from_json(each["shape"]) for each in json.loads(path.read_text())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, default=None, metavar="FILE")
    parser.add_argument("--replay", type=Path, default=None, metavar="FILE")
    options = parser.parse_args()
    if not options.replay:
        search(options.seed, options.minutes, options.write)
        return
    again = sorted(map(judge, read_shapes(options.replay)), key=lambda each: -each.distance)
    for judged in again:
        print(f"{judged.shape.name}: {judged.verdict}")
        for run in judged.runs:
            print(run.line(judged.entitled))
    if options.write:
        _write(options.write, again)


def _write(path: Path, worst: Sequence[Judged]) -> None:
    path.write_text("[\n" + ",\n".join(json.dumps(each.as_json()) for each in worst) + "\n]\n")


if __name__ == "__main__":
    main()

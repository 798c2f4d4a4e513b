"""Whether every queued request gets an announced wait, and how often the wait that followed was within it.

    python -m benchmarks.announced_waits [--held-out | --fresh | --first SEED] [--scenes NAME,…] [--seeds N]

Each scene is played in the simulator before the production's gate (planner `plan`). Beside those of planner_scenes.py
there are scenes of one model and of several that swap, light, loaded and overloaded, and a tenant beyond its share;
each is played with several seeds, and the counts are added. `random`: fleets and loads by seed.

The weights and priors of the estimates were chosen with the scenes of the first seeds in view. With --held-out the same
kinds of scenes have other arrivals, and the fleets of `random` are others; nothing was chosen by them, but several
versions of the estimates were played before them. --fresh has further ones, for one look; --first 30 those that were
fresh in the version before.

    queued      requests that got no slot in the decision of their arrival
    announced   the part of them with a P50 and a P90; `of long`: of those that waited more than 1 s
    exact       the part of the announced waits that ended when P50 said, to the millisecond, as the rest of a swap does
    P50, P90    the part of the announced waits that were not exceeded; of the exact ones, half count for P50. Wanted
                are 0.4 to 0.6 and 0.85 to 0.97
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from benchmarks.planner_scenes import SLOW, Scene, Stream, fleet, named_scenes, random_scene, scene
from headgate.simulator.measures.announced_waits import WaitCoverage
from headgate.simulator.run import RunSpec
from headgate.simulator.simulate import simulate

P50_BAND, P90_BAND = (0.4, 0.6), (0.85, 0.97)
LONG_LEAST = 0.9
_LEAST = 100
"""A scene with fewer queued requests has no verdict: its coverage is noise."""
_LOADS = {"light": 0.5, "loaded": 0.95, "overloaded": 1.3}
_ONE_LIGHT = 0.8
"""Of one model at half load no request waits."""
_ONE_PER_S, _SWAPPING_PER_S = 2.5, 9.0
"""Requests per second that a worker of the slow kind serves of one model, and two fast ones about of four that swap."""
_RANDOM = 20
_HELD_OUT, _FRESH = 10, 40
"""The first seeds that are held out."""


def own_scenes(seed: int) -> Iterator[Scene]:
    """Yield the scenes that this file describes, with the arrivals of the seed."""
    four = {f"m{at}": 3.0 for at in range(4)}
    for load, part in _LOADS.items():
        one_per_s = _ONE_PER_S * max(part, _ONE_LIGHT)
        yield scene(
            f"one_{load} {seed}",
            fleet(1, {"m": 3.0}, kinds=(SLOW,)),
            [Stream(name, "m", one_per_s / 2, 600) for name in ("a", "b")],
        )
        yield scene(
            f"swap_{load} {seed}",
            fleet(2, four),
            [Stream(f"t{at}", f"m{at}", _SWAPPING_PER_S * part / 4, 300) for at in range(4)],
        )
    yield scene(
        f"beyond_share {seed}",
        fleet(2, {"a": 3.0, "b": 3.0}),
        [Stream("even", "a", 2, 300), Stream("flood", "a", 60, 150, 60), Stream("other", "b", 3, 300)],
    )


def measure(played: Scene) -> WaitCoverage:
    found = simulate(RunSpec(played.workload, "fcfs", played.fleet, planner="plan")).waits
    if found is None:
        raise RuntimeError("planner plan has a gate")
    return found


def rows(wanted: set[str], seeds: Sequence[int]) -> Iterator[tuple[str, WaitCoverage]]:
    """Yield the name and the counts of each scene."""
    groups: dict[str, list[Scene]] = {}
    for seed in seeds:
        for each in (*own_scenes(seed), *named_scenes(seed)):
            groups.setdefault(each.name.split()[0], []).append(each)
    first = seeds[0] * _RANDOM
    groups["random"] = [random_scene(seed).scene() for seed in range(first, first + _RANDOM)]
    for name, scenes in groups.items():
        if not wanted or name in wanted:
            total = WaitCoverage()
            for each in scenes:
                total.add(measure(each))
            yield name, total


def verdict(found: WaitCoverage) -> str:
    """Return what does not hold, or "holds"."""
    if found.queued < _LEAST:
        return "too few"
    missed = []
    if found.long_announced_part < LONG_LEAST:
        missed.append("estimates")
    for name, value, (low, high) in (("P50", found.p50, P50_BAND), ("P90", found.p90, P90_BAND)):
        if not low <= round(value, 2) <= high:
            missed.append(name)
    return "not " + ", ".join(missed) if missed else "holds"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", default="", help="comma-separated names; by default all")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--held-out", action="store_true", help="other seeds than those that were looked at")
    parser.add_argument("--fresh", action="store_true", help="other seeds again")
    parser.add_argument("--first", type=int, default=0, help="the first seed; random fleets begin at 20 times this")
    options = parser.parse_args()
    print("| scene | queued | announced | over 1 s | of long | exact | P50 | P90 | |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    first = _FRESH if options.fresh else _HELD_OUT if options.held_out else options.first
    for name, found in rows(set(filter(None, options.scenes.split(","))), range(first, first + options.seeds)):
        print(
            f"| {name} | {found.queued} | {found.announced_part:.2f} | {found.long} | {found.long_announced_part:.2f} "
            f"| {found.exact / max(1, found.announced):.2f} | {found.p50:.2f} | {found.p90:.2f} | {verdict(found)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

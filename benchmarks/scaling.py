"""How scaling follows a load, beside an oracle that knows the future. Virtual time, so the figures are exact.

    python -m benchmarks.scaling

The decision is production code (dispatcher/operations/worker_count.py); workers, launches and load are models
(tests/support/scaling). "Cost" is the paid time of workers over that of the oracle, which starts every worker in time,
has no failed launches and no interruptions, and uses workers up to 100 %. "Late" is the part of the work that waited
for more than 60 s. "Turns" are the changes of direction between scale-out and scale-in.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dispatcher.operations.worker_count import ScaleSettings
from tests.support.scaling import CAPACITY_PER_S, DAY_S, Pool, World, arrivals, bursts, day, flood, oracle_worker_s

SEEDS = (1, 2, 3)
SMOOTH = ScaleSettings(workers_min=1, workers_max=20)
ZERO = ScaleSettings(workers_min=0, workers_max=20, scale_to_zero=True)
WORLDS = {
    "start 90 s": World((80, 100)),
    "start 300 s": World((240, 360)),
    "start 600 s": World((540, 660)),
    "start 90 to 600 s": World((90, 600)),
    "a third of the launches fails": World((90, 600), fails=0.33),
    "an interruption in 2 h": World((90, 600), interrupted_per_hour=0.5),
    "both": World((90, 600), fails=0.33, interrupted_per_hour=0.5),
}
LOADS: dict[str, tuple[ScaleSettings, Callable[[Random], list[float]]]] = {
    "a day, up to 10 workers' work": (SMOOTH, lambda _: day(10)),
    "bursts of 8 workers' work": (SMOOTH, lambda random: bursts(10, DAY_S, random)),
    "4 workers' work for an hour, from zero": (ZERO, lambda _: flood(4, 3600, 3600, 5 * 3600)),
}


def main() -> None:
    for load, (settings, make) in LOADS.items():
        print(f"\n{load}; means of {len(SEEDS)} seeds, longest wait and turns of the worst")
        print(f"{'':32} {'cost':>6} {'late %':>7} {'longest wait s':>15} {'turns':>6} {'lost':>5}")
        for name, world in WORLDS.items():
            print(f"{name:32} {_row(settings, world, make)}")


def _row(settings: ScaleSettings, world: World, make: Callable[[Random], list[float]]) -> str:
    cost = late = wait_s = lost = 0.0
    turns = 0
    for seed in SEEDS:
        random = Random(seed)
        played = arrivals(make(random), random)
        pool = Pool(settings, world, seed)
        figures = pool.run(played, after_s=3600)
        start_s = sum(world.start_s) / 2
        best_s = oracle_worker_s([*played, *[0.0] * 3600], CAPACITY_PER_S, start_s, settings.floor)
        cost += figures.worker_s / best_s / len(SEEDS)
        late += 100 * figures.late_service / figures.arrived / len(SEEDS)
        wait_s, turns = max(wait_s, figures.wait_max_s), max(turns, figures.turns)
        lost += figures.arrived - figures.served
    return f"{cost:>6.2f} {late:>7.2f} {wait_s:>15.0f} {turns:>6} {abs(lost):>5.0f}"


if __name__ == "__main__":
    main()

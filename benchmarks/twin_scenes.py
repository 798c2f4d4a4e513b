"""Two scenes that begin alike: in one of them each planner is dominated that does not know what comes.

    python -m benchmarks.twin_scenes

One worker has model a, a swap takes 15 s, and requests are due after 20 s. At 0 s tenant x sends one request for b. It
is in time only if the swap begins within 5 s. What comes after 5 s differs:

    calm    nothing. A planner without a swap serves none of x in time, and qlm all.
    rush    y sends forty requests for a, which are due at 25 to 29 s, and later x sends 99 for a. After a swap to b,
            a is back at 30 s at the soonest: none of y is in time. Without it all of y are, and 99 of 100 of x.

A planner that learns of a request when it arrives does the same in both until 5 s. If it swaps, static dominates it in
`rush` by 99 points; if not, qlm dominates it in `calm` by 100. So no such planner can keep the statement of
planner_dominance.py in every scene, and a planner that draws lots breaks it in one of the two in half of its runs.
`static` breaks it in neither, because its partition is made with the knowledge of all arrivals to come.
"""

from __future__ import annotations

from benchmarks.planner_dominance import PLANNERS, WITHOUT_PLAN, Played, dominations, entitled_tenants, play, verdict
from benchmarks.planner_scenes import Scene, fleet
from headgate.workloads.arrivals import Arrival
from headgate.workloads.sources import ListWorkload

SWAP_S = 15.0
LAST_SWAP_S = 5.0
"""A swap that begins later is too late for the first request."""
_LENGTHS = 100, 20


def twin_scenes() -> tuple[Scene, Scene]:
    """Return `calm` and `rush`. Their arrivals are the same until LAST_SWAP_S."""
    first = [Arrival(0.0, "x", *_LENGTHS, model="b", slo_class="interactive")]
    rush = [Arrival(LAST_SWAP_S + 0.1 * at, "y", *_LENGTHS, model="a", slo_class="interactive") for at in range(40)]
    later = [Arrival(40.0 + 0.5 * at, "x", *_LENGTHS, model="a", slo_class="interactive") for at in range(99)]
    return _scene("calm", first), _scene("rush", [*first, *rush, *later])


def _scene(name: str, arrivals: list[Arrival]) -> Scene:
    return Scene(name, fleet(1, {"a": SWAP_S, "b": SWAP_S}, loaded=("a",)), ListWorkload(name, arrivals))


def judge_all(scene: Scene) -> list[tuple[Played, list[tuple[str, str, float]]]]:
    """Return the run of each planner, and what dominates it."""
    runs, entitled = [play(scene, planner) for planner in (*PLANNERS, WITHOUT_PLAN)], entitled_tenants(scene)
    return [(run, dominations(runs, entitled, run.planner)) for run in runs]


def main() -> None:
    for scene in twin_scenes():
        print(f"{scene.name}:")
        for run, found in judge_all(scene):
            print(f"{run.line(entitled_tenants(scene))}   {verdict(found)}")


if __name__ == "__main__":
    main()

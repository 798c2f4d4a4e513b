"""Which planner dominates which, over many draws of the arrivals of a scene.

    python -m benchmarks.planner_draws [--draws N] [--scenes NAME,… | --named | --reported] [--random FROM:TO] [--all]
        [--causal] [--processes N]

One draw says little. A tenant may have three requests in it, and one of them is 33 points. So each scene is played with
N draws of the arrivals of its streams, each of them under every planner. Draw 0 is the one of planner_dominance.py.

    part        of a tenant: its requests in time in all draws, divided by its requests in all draws
    entitled    a tenant with a mean demand within its share
    dominated   in a tenant, if another planner is better for an entitled tenant by 2 points, and worse for none by more
                than 1 point (`LOSS`); or in the worst, if its worst-off entitled tenant is better by 2 points

The worst-off tenant is the one with the least part over all draws. It is not the least of each draw: the least of a few
noisy figures is low by chance alone. `LOSS` is not 0, as it is for one draw. The part of a tenant that is not always in
time differs by a little between any two planners, so that with 0 more draws alone would end domination in a tenant.

The draws are a sample. To see how much they say, they are drawn again with replacement, 1,000 times. A draw is taken
whole, with all planners: they served the same arrivals, so luck with the arrivals is in none of the differences. The
rules are applied to each of these resamples. That a planner is dominated is

    shown        if it is dominated by the parts, and in at least 95 % of the resamples,
    ruled out    if it is dominated in at most 5 % of the resamples,

and open otherwise. Points have the interval from the 5 % to the 95 % point of the resamples. The rules have the least
and the greatest of several dependent figures, for which no formula of the variance holds. This is why resamples serve
here. Of fewer than 10 draws they are too alike, and the intervals too short.

The last table has base rates: each planner judged by the same rules against the three others. The figures of one mean
something only beside those of the others, because chance alone has every planner dominated in some scenes. `static` is
made with the knowledge of all arrivals to come. What it alone dominates is counted apart, because a planner that learns
of a request when it arrives cannot always reach it. --causal plays `static-seen` too: the same partition, of what
arrived in the first 15 s. It is no rival; a column says in how many scenes it would dominate. The row "one draw" has
the strict count of planner_dominance.py, by draw 0 and without a loss.

Source of the resamples: Efron, "Bootstrap Methods: Another Look at the Jackknife", Annals of Statistics 7 (1979), with
percentile intervals. The interval of a number of scenes is Wilson's (JASA 22, 1927).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from math import sqrt
from random import Random
from statistics import fmean
from typing import NamedTuple

from benchmarks.planner_dominance import (
    MARGIN,
    PLANNERS,
    Gap,
    Played,
    dominations,
    entitled_tenants,
    gap_between,
    play,
    rivals_of,
)
from benchmarks.planner_scenes import Scene, named_scenes, random_scene, reported_scenes
from benchmarks.published_scenes import published_scenes
from dispatcher.policies.percentiles import percentile

LOSS = 0.01
"""Half of the margin. Chosen before any result was seen."""
SURE = 0.95
DRAWS = 20
KNOWS_ARRIVALS = "static"
CAUSAL = "static-seen"
_RESAMPLES = 1000
_OWN = "plan"


class Gain(NamedTuple):
    """What a rival is better by, in points, with the interval of the resamples. `what`: "tenant" or "worst"."""

    rival: str
    what: str
    points: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.rival} in the {self.what}: {self.points:.0f} points ({self.low:.0f} to {self.high:.0f})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of a planner in a scene. `gains`: of the rivals that dominate it by the parts. `support`: the part of the
    resamples in which some rival dominates it. `worst_off`: the least part of an entitled tenant."""

    gains: Sequence[Gain]
    support: float
    worst_off: float

    @property
    def is_shown(self) -> bool:
        return bool(self.gains) and self.support >= SURE

    @property
    def is_ruled_out(self) -> bool:
        return self.support <= 1 - SURE

    @property
    def only_by_static(self) -> bool:
        return {gain.rival for gain in self.gains} == {KNOWS_ARRIVALS}

    @property
    def points(self) -> float:
        return max((gain.points for gain in self.gains), default=0.0)

    def __str__(self) -> str:
        sure = "shown" if self.is_shown else "ruled out" if self.is_ruled_out else f"open, in {self.support:.0%}"
        return f"dominated by {'; by '.join(map(str, self.gains))} ({sure})" if self.gains else f"– ({sure})"


class Counts:
    """The requests of each draw by tenant, and how many of them were in time under each planner."""

    def __init__(self, runs: Mapping[str, Sequence[Played]], tenants: set[str]) -> None:
        """`runs`: of each planner, in the same order of draws. Tenants without a request are left out."""
        first = next(iter(runs.values()))
        self.draws = len(first)
        requests = {name: [run.requests.get(name, 0) for run in first] for name in sorted(tenants)}
        self._requests = {name: counts for name, counts in requests.items() if any(counts)}
        self._in_time = {
            planner: {
                name: [round(run.in_time.get(name, 0.0) * run.requests.get(name, 0)) for run in each]
                for name in self._requests
            }
            for planner, each in runs.items()
        }

    def parts(self, drawn: Sequence[int]) -> dict[str, Played]:
        """Return the parts in time of these draws together, by planner."""
        totals = {name: sum([counts[at] for at in drawn]) for name, counts in self._requests.items()}
        return {
            planner: Played(
                planner,
                {
                    name: sum([counts[at] for at in drawn]) / totals[name]
                    for name, counts in each.items()
                    if totals[name]
                },
                0.0,
                0,
            )
            for planner, each in self._in_time.items()
        }


def judge_draws(runs: Mapping[str, Sequence[Played]], entitled: set[str]) -> dict[str, Verdict]:
    """Judge each planner against its rivals among those that were played."""
    counts = Counts(runs, entitled)
    known = counts.parts(range(counts.draws))
    random = Random(f"draws {counts.draws}")
    resamples = [counts.parts(random.choices(range(counts.draws), k=counts.draws)) for _ in range(_RESAMPLES)]
    return {planner: _verdict(planner, known, resamples) for planner in runs}


def _verdict(planner: str, known: Mapping[str, Played], resamples: Sequence[Mapping[str, Played]]) -> Verdict:
    if not known[planner].in_time:
        return Verdict((), 0.0, 1.0)
    found = [_gaps(planner, each) for each in resamples]
    support = sum(any(max(gap.tenant, gap.worst) >= MARGIN for gap in gaps.values()) for gaps in found) / len(found)
    gains = []
    for rival, gap in _gaps(planner, known).items():
        for what in ("tenant", "worst"):
            if (part := getattr(gap, what)) >= MARGIN:
                drawn = sorted(100 * getattr(gaps[rival], what) for gaps in found if rival in gaps)
                low, high = (percentile(drawn, each) or 0.0 for each in (1 - SURE, SURE))
                gains.append(Gain(rival, what, 100 * part, low, high))
    return Verdict(gains, support, min(known[planner].in_time.values()))


def _gaps(planner: str, runs: Mapping[str, Played]) -> dict[str, Gap]:
    own = runs[planner]
    rivals = [each for each in rivals_of(planner) if each in runs] if own.in_time else []
    return {each: gap_between(runs[each], own, own.in_time, LOSS) for each in rivals}


class SceneName(NamedTuple):
    """`seed`: of a random scene; None: one of the written ones."""

    name: str
    seed: int | None = None

    def scene(self, draw: int) -> Scene:
        """Raises ValueError if no request arrives."""
        return _written(draw)[self.name] if self.seed is None else random_scene(self.seed).scene(draw)


@lru_cache(maxsize=1)
def _written(draw: int) -> dict[str, Scene]:
    scenes = (*named_scenes(draw), *reported_scenes(draw), *published_scenes(draw))
    return {each.name: each for each in scenes}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A scene in all its draws. `strict`: by planner, the greatest number of points by which a rival dominates it in
    draw 0 without a loss; 0 if none does. `causal`: what `static-seen` dominates headgate's own by; empty if it was not
    played."""

    name: str
    entitled: set[str]
    rows: Sequence[Played]
    verdicts: Mapping[str, Verdict]
    strict: Mapping[str, float]
    causal: Sequence[Gain] = ()


def play_draws(name: SceneName, draws: int, *, causal: bool = False) -> Drawn:
    """Play the scene under every planner, with the draws in which a request arrives."""
    scenes = []
    for draw in range(draws):
        try:
            scenes.append(name.scene(draw))
        except ValueError:
            continue
    runs = {planner: [play(scene, planner) for scene in scenes] for planner in PLANNERS}
    entitled, first = entitled_tenants(*scenes), entitled_tenants(scenes[0])
    of_first = [each[0] for each in runs.values()]
    strict = {each: max((gap[2] for gap in dominations(of_first, first, each)), default=0.0) for each in PLANNERS}
    seen: Sequence[Gain] = ()
    if causal:
        alone = {_OWN: runs[_OWN], KNOWS_ARRIVALS: [play(scene, CAUSAL) for scene in scenes]}
        seen = [gain._replace(rival=CAUSAL) for gain in judge_draws(alone, entitled)[_OWN].gains]
    rows = [_mean(each, set().union(*(run.in_time for run in each))) for each in runs.values()]
    return Drawn(name.name, entitled, rows, judge_draws(runs, entitled), strict, seen)


def _mean(runs: Sequence[Played], tenants: set[str]) -> Played:
    """Return a planner's runs of all draws as one: parts of all requests, and means of the rest."""
    parts = Counts({runs[0].planner: runs}, tenants).parts(range(len(runs)))[runs[0].planner]
    served_per_s, swaps = fmean(run.served_per_s for run in runs), round(fmean(run.swaps for run in runs))
    return Played(runs[0].planner, parts.in_time, served_per_s, swaps)


def wilson(found: int, of: int) -> tuple[float, float]:
    """Return the 95 % interval of a part that was found so often."""
    z = 1.96
    part, more = found / of, z * z / of
    middle, half = part + more / 2, z * sqrt(part * (1 - part) / of + more / of / 4)
    return (middle - half) / (1 + more), (middle + half) / (1 + more)


def base_rates(scenes: Sequence[Drawn]) -> str:
    """Return the table of all planners, each judged against the others."""
    head = ("planner", "one draw", "dominated", "shown", "not ruled out", "only by static", "points", "worst-off")
    lines = [" | ".join(head), " | ".join(["---"] * len(head))]
    for planner in PLANNERS:
        verdicts, strict = [each.verdicts[planner] for each in scenes], [each.strict[planner] for each in scenes]
        dominated = sum(bool(each.gains) for each in verdicts)
        low, high = wilson(dominated, len(scenes))
        only = "" if planner == KNOWS_ARRIVALS else str(sum(each.only_by_static for each in verdicts))
        cells = (
            planner,
            f"{sum(each > 0 for each in strict)} ({fmean(strict):.2f})",
            f"{dominated} ({low:.0%} to {high:.0%})",
            str(sum(each.is_shown for each in verdicts)),
            str(sum(not each.is_ruled_out for each in verdicts)),
            only,
            f"{fmean(each.points for each in verdicts):.2f}",
            f"{100 * fmean(each.worst_off for each in verdicts):.1f} %",
        )
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--scenes", default="", help="names of written scenes, with commas")
    parser.add_argument("--named", action="store_true", help="the scenes that outsiders described")
    parser.add_argument("--reported", action="store_true", help="the scenes of reports and published workloads")
    parser.add_argument("--random", default="", metavar="FROM:TO", help="seeds of random scenes")
    parser.add_argument("--all", action="store_true", help="print each scene, not only those with a domination")
    parser.add_argument("--causal", action="store_true", help=f"also play {CAUSAL}")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    names = [SceneName(name) for name in filter(None, options.scenes.split(","))]
    names += [SceneName(each.name) for each in named_scenes()] if options.named else []
    names += [SceneName(each.name) for each in (*reported_scenes(), *published_scenes())] if options.reported else []
    if options.random:
        first, last = map(int, options.random.split(":"))
        names += [SceneName(f"random {seed}", seed) for seed in range(first, last)]
    if not names or options.draws < 1:
        parser.error("needs a scene and a draw")
    scenes = []
    with ProcessPoolExecutor(options.processes) as pool:
        for drawn in pool.map(partial(play_draws, draws=options.draws, causal=options.causal), names):
            scenes.append(drawn)
            own = drawn.verdicts[_OWN]
            if options.all or not own.is_ruled_out or own.gains:
                seen = f"; would be dominated by {'; by '.join(map(str, drawn.causal))}" if drawn.causal else ""
                print(f"{drawn.name}: {own}{seen}", *(row.line(drawn.entitled) for row in drawn.rows), sep="\n")
    print(f"\n{len(scenes)} scenes, {options.draws} draws each; points: the mean of the worst over all scenes\n")
    print(base_rates(scenes))
    if options.causal:
        only = [each for each in scenes if each.verdicts[_OWN].only_by_static]
        print(f"\n{CAUSAL} would dominate plan in {sum(bool(each.causal) for each in scenes)} scenes, among them "
              f"{sum(bool(each.causal) for each in only)} of the {len(only)} that only static dominates")  # fmt: skip


if __name__ == "__main__":
    main()

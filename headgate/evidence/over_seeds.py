"""The same runs over many seeds: their statistics, and checks of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import TypeVar

from headgate.evidence.document.sections import Check, Setting
from headgate.simulator.measures.service_difference import Difference
from headgate.simulator.run import Run, RunSpec
from headgate.simulator.simulate import simulate

K = TypeVar("K")
R = TypeVar("R")


def over_seeds(setting: Setting, specs: Mapping[K, RunSpec]) -> dict[K, list[Run]]:
    """Run each spec with the seeds 1 to `setting.seeds` and the setting's jitter."""
    jobs = [
        (key, replace(spec, seed=seed, jitter=setting.jitter))
        for key, spec in specs.items()
        for seed in range(1, setting.seeds + 1)
    ]
    runs = setting.map(simulate, [spec for _, spec in jobs])
    found: dict[K, list[Run]] = {key: [] for key in specs}
    for (key, _), run in zip(jobs, runs, strict=True):
        found[key].append(run)
    return found


def mean(runs: Sequence[R], figure: Callable[[R], float]) -> float:
    return fmean(figure(run) for run in runs)


def spread(runs: Sequence[Run], figure: Callable[[Run], float]) -> str:
    """Return mean and standard deviation as text."""
    values = [figure(run) for run in runs]
    sd = stdev(values) if len(values) > 1 else 0.0
    return f"{_short(fmean(values))} ± {_short(sd)}"


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"


def ratio(ours: float, theirs: float | None, digits: int = 2) -> str | None:
    """Return ours over theirs as text; None without theirs."""
    return None if not theirs else f"{ours / theirs:.{digits}f}"


def within(what: str, ours: float, theirs: float, tolerance: float) -> Check:
    """Check that ours differs from theirs by at most `tolerance`, relative."""
    return Check(
        f"{what} within {tolerance:.0%}",
        abs(ours / theirs - 1) <= tolerance,
        f"{ours:.4g} against {theirs:.4g}: {ours / theirs - 1:+.1%}",
    )


def above(what: str, higher: tuple[str, float], lower: tuple[str, float]) -> Check:
    """Check that the first of two named values is above the second."""
    found = f"{higher[0]} {higher[1]:.4g}, {lower[0]} {lower[1]:.4g}"
    return Check(f"{what}: {higher[0]} > {lower[0]}", higher[1] > lower[1], found)


def _difference(run: Run) -> Difference:
    if run.difference is None:
        raise ValueError(f"the run of {run.policy} has no service difference: its horizon is 0")
    return run.difference


def max_difference(run: Run) -> float:
    return _difference(run).max


def avg_difference(run: Run) -> float:
    return _difference(run).avg


def var_difference(run: Run) -> float:
    return _difference(run).var


def throughput(run: Run) -> float:
    return run.throughput_tokens_per_s


def total_time(run: Run) -> float:
    return run.total_time_s

"""Every measured run of the VTC paper beside its simulation: whole runs, and each tenant's waits.

Each run's own requests are simulated once, under its own scheduler and without jitter. A profile's step times are
fitted to some runs of its machine together, with the code of `headgate simulate --fit`; the other runs are held out.
These tolerances were written down before the first comparison:

- the total time of a run: within 3 %
- of each tenant with at least 20 served requests, the P50, P90 and P99 of first tokens: within 25 % or 0.5 s
- the same quantiles of whole answers: within 15 % or 1 s

The runs under a profiled cost function are charged by it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean

from dispatcher.policies.percentiles import percentile
from dispatcher.policies.service import service_function
from gpu_worker.policies.fairness.registry import make_policy
from headgate.evidence.document import Cell, Check, Section, Setting, Table, experiment
from headgate.simulator.drive import drive
from headgate.simulator.engines.interface import Jitter
from headgate.simulator.engines.profile import EngineProfile, load_profile
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.fit.log import LoggedRequest
from headgate.simulator.fit.step_times import BatchHistory
from headgate.simulator.measures.collector import Collector
from headgate.simulator.report.drawing import Plot, Series
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival

A10G, A100 = "a10g-llama2-7b", "a100-llama2-13b"
FITTED_A100 = ("a100-13b-35000-256.vtc", "a100-13b-35000-768.vtc", "a100-13b-65000-256.fcfs")
TOTAL_WITHIN = 0.03
REQUESTS_MIN = 20
_OURS, _JITTER = 5, 0.05
"""Simulations of a run with misses that are compared with ours, and the standard deviation of their steps' times."""
_QUANTILES = (0.50, 0.90, 0.99)
_WITHIN = {"first tokens": (0.25, 0.5), "whole answers": (0.15, 1.0)}
"""Relative, and seconds; the wider of the two holds."""
_POLICIES = {"vtc_predict": "vtc-predict", "vtc_pred_50": "vtc-noisy:0.5", "vtc_oracle": "vtc-oracle"}
_MINIBATCH_TOKENS_MIN = 3072


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """Seconds from the arrival to the first token and to the end."""

    tenant: str
    arrival_s: float
    first_s: float
    whole_s: float


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A figure of a run, measured and simulated."""

    what: str
    measured: float
    simulated: float
    is_within: bool


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """`waits`: of each tenant, the mean seconds to the first token, measured and simulated. `among_ours`: of so many
    figures, each of some simulations with jitter is within the tolerance of that without; only of a run with misses."""

    name: str
    engine: str
    is_fitted: bool
    figures: tuple[ComparedFigure, ...]
    waits: tuple[tuple[float, float], ...]
    among_ours: tuple[int, ...] = ()

    @property
    def within(self) -> int:
        return len(self.figures) - len(self.misses)

    @property
    def misses(self) -> list[ComparedFigure]:
        return [figure for figure in self.figures if not figure.is_within]


def measured_logs(traces: Path) -> list[Path]:
    return sorted((traces / "vtc" / "measured").glob("*.csv"))


def engine_of(path: Path) -> str:
    """Return the profile of the machine that a run was measured on."""
    return A100 if path.name.startswith("a100") else A10G


def is_fitted(path: Path) -> bool:
    """Return whether its machine's profile was fitted to this run: on the A10G, the runs under fcfs."""
    return path.stem in FITTED_A100 if engine_of(path) == A100 else path.stem.endswith(".fcfs")


def profile_of(path: Path) -> EngineProfile:
    """Return the profile of a run's machine, with the pool that the A100's runs have in their names."""
    profile = load_profile(engine_of(path))
    if profile.name == A10G:
        return profile
    pool = int(path.stem.split("-")[2])
    sizes = {"pool_tokens": pool, "minibatch_tokens_max": max(pool // 6, _MINIBATCH_TOKENS_MIN)}
    return profile.model_copy(update=sizes)


def history_of(path: Path) -> BatchHistory:
    """Return the batch of a measured run over time, with the two tokens that the client adds to each prompt."""
    rows = [
        LoggedRequest(
            arrival.arrival_s,
            arrival.arrival_s + first_s,
            arrival.arrival_s + whole_s,
            arrival.input_tokens,
            arrival.output_tokens,
            arrival.tenant,
        )
        for arrival, first_s, whole_s in _read_run(path)
        if whole_s >= 0
    ]
    return BatchHistory(rows, extra=2)


def _read_run(path: Path) -> Iterator[tuple[Arrival, float, float]]:
    """Yield each request with its seconds to the first token and to the end, -1 if it was rejected."""
    with path.open(newline="") as file:
        for row in sorted(csv.DictReader(file), key=lambda row: float(row["arrival_s"])):
            tokens = int(row["input_tokens"]), int(row["output_tokens"])
            arrival = Arrival(float(row["arrival_s"]), row["tenant"], *tokens)
            yield arrival, float(row["ttft_s"]), float(row["latency_s"])


class _RunAnswers(Collector):
    """Keeps the answers of the served requests."""

    def __init__(self) -> None:
        super().__init__(service_function("weighted"), 0.0)
        self.answers: list[RunAnswer] = []

    def on_served(self, request: SimRequest) -> None:
        self.answers.append(RunAnswer(request.tenant, request.release_s, request.ttft_s, request.latency_s))


def compare_run(path: Path, profile: EngineProfile | None = None) -> ComparedRun:
    """Simulate a run's requests under its own policy, and compare. `profile`: None for that of its machine."""
    rows = list(_read_run(path))
    measured = [RunAnswer(arrival.tenant, arrival.arrival_s, *seconds) for arrival, *seconds in rows if seconds[1] >= 0]
    arrivals, engine = [arrival for arrival, _, _ in rows], profile or profile_of(path)
    simulated = _simulate(path, arrivals, engine, None)
    found = ComparedRun(
        path.stem,
        engine_of(path),
        is_fitted(path),
        tuple(figures_of(measured, simulated)),
        tuple(_waits(measured, simulated)),
    )
    if not found.misses:
        return found
    jittered = [
        _simulate(path, arrivals, engine, Jitter(Random(f"{path.stem} {number}"), _JITTER)) for number in range(_OURS)
    ]
    among_ours = (sum(each.is_within for each in figures_of(simulated, answers)) for answers in jittered)
    return replace(found, among_ours=tuple(sorted(among_ours)))


def _simulate(
    path: Path, arrivals: Sequence[Arrival], profile: EngineProfile, jitter: Jitter | None
) -> list[RunAnswer]:
    name = path.stem.rpartition(".")[2]
    scheduler = name.removesuffix("_profile")
    policy = _POLICIES.get(scheduler, scheduler.replace("rpm", "rpm:"))
    service = service_function("profiled" if name.endswith("_profile") else "weighted")
    simulated = _RunAnswers()
    drive(arrivals, make_engine(profile, make_policy(policy, service), jitter=jitter), simulated)
    return simulated.answers


def figures_of(measured: Sequence[RunAnswer], simulated: Sequence[RunAnswer]) -> Iterator[ComparedFigure]:
    """Yield the total time, and the quantiles of each tenant with enough requests."""
    total_s, found_s = (max(each.arrival_s + each.whole_s for each in answers) for answers in (measured, simulated))
    yield ComparedFigure("total", total_s, found_s, abs(found_s - total_s) <= TOTAL_WITHIN * total_s)
    for tenant in sorted({answer.tenant for answer in measured}):
        own = [[answer for answer in answers if answer.tenant == tenant] for answers in (measured, simulated)]
        if min(map(len, own)) < REQUESTS_MIN:
            continue
        for part, (relative, seconds) in _WITHIN.items():
            for fraction in _QUANTILES:
                first, second = (percentile([_seconds(each, part) for each in answers], fraction) for answers in own)
                assert first is not None
                assert second is not None
                what = f"{tenant} {part} P{100 * fraction:.0f}"
                yield ComparedFigure(what, first, second, abs(second - first) <= max(relative * first, seconds))


def _seconds(answer: RunAnswer, part: str) -> float:
    return answer.first_s if part == "first tokens" else answer.whole_s


def _waits(measured: Sequence[RunAnswer], simulated: Sequence[RunAnswer]) -> Iterator[tuple[float, float]]:
    for tenant in sorted({answer.tenant for answer in measured} & {answer.tenant for answer in simulated}):
        first, second = (
            fmean(each.first_s for each in answers if each.tenant == tenant) for answers in (measured, simulated)
        )
        yield first, second


_MANY_CLIENTS = (
    "27 clients with some tens of requests each: P90 and P99 are of one to six requests, and a slightly different "
    "batch changes the order for the rest of the run"
)
_OURS_ARE_NO_NEARER = "Runs of ours with other step times are no nearer to each other (*among ours*)"
_OTHER_CAUSE = "But runs of ours are nearer to each other (*among ours*), so there is another cause, which is not known"
_NOT_THE_LIMIT = (
    "runs of ours are nearer to each other (*among ours*), so chance is not the cause. Nor is it the limit: with the "
    "requests that the log's limit accepted, which are all but 16, as many figures are within, give or take two. Nor "
    "are it steps that are up to 2 % slower. The cause is not known"
)
TURNS = (
    "requests of one length end together, so a request waits for the next turn of the batch, and in how many groups "
    "the batch turns over decides for how long"
)
_REASONS = {
    "increase": (
        "the log's server is 0.8 % slower over the run, so the queue of client-1 begins to grow earlier, and the "
        "median of its waits lies where it begins; with steps 1.5 % longer every figure is within"
    ),
    "on_off_less": (
        f"{TURNS}: the log has 169 mini-batches of 5 requests in eight minutes, ours 141 of 6. Why is not known"
    ),
    "proportional.fcfs": (
        f"{TURNS}: the log has 91 mini-batches of 9 requests in eight minutes, ours 141 of 6. The run took 807 s, and "
        "the same requests under vtc 782 s. Why is not known"
    ),
    "a100-13b-65000": (
        "the fit has few requests in few batches: it takes a decode of 45 to 90 requests in the large pool for 15 to "
        "20 % longer than it was; no linear step time repeats all seven runs"
    ),
}
"""Why a run has figures outside, by the beginning of its name."""


def _reason(run: ComparedRun) -> str:
    if run.name.startswith("real.rpm"):
        return _NOT_THE_LIMIT
    if run.name.startswith("real"):
        return (
            f"{_MANY_CLIENTS}. {_OURS_ARE_NO_NEARER if run.within >= min(run.among_ours, default=0) else _OTHER_CAUSE}"
        )
    return next((reason for start, reason in _REASONS.items() if run.name.startswith(start)), "")


def _among_ours(run: ComparedRun) -> str | None:
    if not run.among_ours:
        return None
    least, most = run.among_ours[0], run.among_ours[-1]
    return f"{least}" if least == most else f"{least} to {most}"


@experiment(
    "vtc-measured",
    "Every measured run, beside its simulation",
    "VTC, sections 5.2 to 5.4 and Appendix B: the logs of its artifact",
    needs_traces=True,
)
def every_measured_run(setting: Setting) -> Section:
    runs = setting.map(compare_run, measured_logs(setting.traces_folder))
    return Section(
        text=(
            f"All {len(runs)} published runs; each is simulated once, without jitter. *Fitted*: the step times of its "
            "machine's profile come from this run and the others so marked, together. All other runs are held out: "
            "nothing was fitted to them. A run's figures are its total time (within 3 %) and, of each tenant with at "
            "least 20 served requests, P50, P90 and P99 of first tokens (25 % or 0.5 s) and of whole answers (15 % or "
            "1 s). These tolerances were written down before the first comparison.",
            f"*Among ours*: {_OURS} more simulations of a run with misses, whose step times have {100 * _JITTER:.0f} % "
            "jitter, are compared with that without in the same way: no simulation can be expected to be nearer to the "
            "log than these are to each other.",
        ),
        tables=[_runs_table(runs)],
        checks=[_check(run) for run in runs],
        plots=[_waits_plot(runs)],
    )


def _runs_table(runs: Sequence[ComparedRun]) -> Table:
    columns = ("run", "profile", "total s: measured", "ours", "figures", "within", "among ours", "largest miss (s)")
    return Table("Measured and simulated", columns, [_row(run) for run in runs])


def _row(run: ComparedRun) -> tuple[Cell, ...]:
    total = run.figures[0]
    role = "fitted" if run.is_fitted else "held out"
    counts = (len(run.figures), run.within, _among_ours(run))
    return (run.name, role, total.measured, total.simulated, *counts, _largest_miss(run))


def _largest_miss(run: ComparedRun) -> str | None:
    if not run.misses:
        return None
    worst = max(run.misses, key=lambda each: abs(each.simulated - each.measured) / max(each.measured, 0.5))
    return f"{worst.what} {worst.measured:.2f} → {worst.simulated:.2f}"


def _check(run: ComparedRun) -> Check:
    among_ours = _among_ours(run)
    found = f"{run.within} of {len(run.figures)}" + (f"; among ours {among_ours}" if among_ours else "")
    return Check(f"{run.name}: every figure within its tolerance", not run.misses, found, reason=_reason(run))


def _waits_plot(runs: Sequence[ComparedRun]) -> Plot:
    series = []
    for engine in (A10G, A100):
        for fitted in (False, True):
            points = [wait for run in runs if (run.engine, run.is_fitted) == (engine, fitted) for wait in run.waits]
            label = f"{engine}, {'fitted' if fitted else 'held out'}"
            series.append(Series(label, [first for first, _ in points], [second for _, second in points]))
    ends = (0.1, 2000.0)
    series.append(Series("equal", ends, ends, limit=True))
    return Plot(
        "vtc-measured",
        "Mean time to first token of each tenant of each measured run",
        "measured (s)",
        "simulated (s)",
        series,
        kind="points",
        log_x=True,
        log_y=True,
    )

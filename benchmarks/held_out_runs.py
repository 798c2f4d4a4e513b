"""Fit the VTC paper's server to eight measured runs and test it on the others: `python -m benchmarks.held_out_runs`.

The profile `a10g-llama2-7b-measured` has the rules of that server (../shared/traces/README.md) with
`repeats_failed_attempts`, and step times that `headgate simulate --fit`'s code fits to the eight runs of the A10G under
fcfs together. Every other run of that machine is held out: its own requests are simulated, without jitter, and compared
with what the authors measured. These tolerances were written down before the first comparison:

- the total time of a run: within 3 %
- of each tenant with at least 20 served requests, the P50, P90 and P99 of first tokens: within 25 % or 0.5 s
- the same quantiles of whole answers: within 15 % or 1 s

`--engine` tests another profile; `--fitted` tests the eight runs too; `--fit` prints the fitted step times instead.
Exit code 1 if a figure of a run is outside. The runs under a profiled cost function are charged by it.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dispatcher.policies.percentiles import percentile
from dispatcher.policies.service import service_function
from gpu_worker.policies.fairness.registry import make_policy
from headgate.simulator.drive import drive
from headgate.simulator.engines.profile import EngineProfile, load_profile
from headgate.simulator.engines.registry import make_engine
from headgate.simulator.fit.log import LoggedRequest
from headgate.simulator.fit.step_times import BatchHistory, fit_step_times
from headgate.simulator.measures.collector import Collector
from headgate.simulator.requests import SimRequest
from headgate.workloads.arrivals import Arrival

ENGINE = "a10g-llama2-7b-measured"
MEASURED = Path(__file__).parents[2] / "shared" / "traces" / "vtc" / "measured"
TOTAL_WITHIN = 0.03
REQUESTS_MIN = 20
QUANTILES = (0.50, 0.90, 0.99)
WITHIN = {"first tokens": (0.25, 0.5), "whole answers": (0.15, 1.0)}
"""Relative, and seconds; the wider of the two holds."""
POLICIES = {"vtc_predict": "vtc-predict", "vtc_pred_50": "vtc-noisy:0.5", "vtc_oracle": "vtc-oracle"}


@dataclass(frozen=True, slots=True)
class Answer:
    """Seconds from the arrival to the first token and to the end."""

    tenant: str
    arrival_s: float
    first_s: float
    whole_s: float


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run, measured and simulated."""

    what: str
    measured: float
    simulated: float
    is_within: bool


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.held_out_runs", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", help="names of runs, such as increase.vtc; all that are held out")
    parser.add_argument("--engine", default=ENGINE, help=f"a profile ({ENGINE})")
    parser.add_argument("--fitted", action="store_true", help="also the runs that the profile was fitted to")
    parser.add_argument("--fit", action="store_true", help="print the fitted step times instead")
    options = parser.parse_args()
    if not MEASURED.is_dir():
        sys.stderr.write(f"no measured runs: {MEASURED} is not there\n")
        return 2
    if options.fit:
        sys.stdout.write(f"{fit_step_times(*(history_of(path) for path in fitted_runs())).times}\n")
        return 0
    profile = load_profile(options.engine)
    paths = [path for path in runs() if path.stem in options.runs or not options.runs]
    paths = [path for path in paths if options.fitted or path not in fitted_runs()]
    outside = 0
    sys.stdout.write("| run | figures | within | outside: measured → simulated |\n| --- | ---: | ---: | --- |\n")
    for path in paths:
        figures = compare_run(path, profile)
        missed = [figure for figure in figures if not figure.is_within]
        outside += len(missed)
        listed = "; ".join(f"{each.what} {each.measured:.2f} → {each.simulated:.2f}" for each in missed)
        sys.stdout.write(f"| {path.stem} | {len(figures)} | {len(figures) - len(missed)} | {listed} |\n")
        sys.stdout.flush()
    return 1 if outside else 0


def runs() -> list[Path]:
    """Return the measured runs of the A10G."""
    return sorted(path for path in MEASURED.glob("*.csv") if not path.name.startswith("a100"))


def fitted_runs() -> list[Path]:
    return [path for path in runs() if path.stem.endswith(".fcfs")]


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
        for arrival, first_s, whole_s in read_run(path)
        if whole_s >= 0
    ]
    return BatchHistory(rows, extra=2)


def read_run(path: Path) -> Iterator[tuple[Arrival, float, float]]:
    """Yield each request with its seconds to the first token and to the end, -1 if it was rejected."""
    with path.open(newline="") as file:
        for row in sorted(csv.DictReader(file), key=lambda row: float(row["arrival_s"])):
            tokens = int(row["input_tokens"]), int(row["output_tokens"])
            arrival = Arrival(float(row["arrival_s"]), row["tenant"], *tokens)
            yield arrival, float(row["ttft_s"]), float(row["latency_s"])


class Answers(Collector):
    """Keeps the answers of the served requests."""

    def __init__(self) -> None:
        super().__init__(service_function("weighted"), 0.0)
        self.answers: list[Answer] = []

    def on_served(self, request: SimRequest) -> None:
        self.answers.append(Answer(request.tenant, request.release_s, request.ttft_s, request.latency_s))


def compare_run(path: Path, profile: EngineProfile) -> list[Figure]:
    """Simulate a run's requests under its own policy; return its figures."""
    rows = list(read_run(path))
    name = path.stem.rpartition(".")[2]
    scheduler = name.removesuffix("_profile")
    policy = POLICIES.get(scheduler, scheduler.replace("rpm", "rpm:"))
    service = service_function("profiled" if name.endswith("_profile") else "weighted")
    simulated = Answers()
    drive([arrival for arrival, _, _ in rows], make_engine(profile, make_policy(policy, service)), simulated)
    served = [Answer(arrival.tenant, arrival.arrival_s, *seconds) for arrival, *seconds in rows if seconds[1] >= 0]
    return list(figures_of(served, simulated.answers))


def figures_of(measured: list[Answer], simulated: list[Answer]) -> Iterator[Figure]:
    """Yield the total time, and the quantiles of each tenant with enough requests."""
    total_s, found_s = (max(each.arrival_s + each.whole_s for each in answers) for answers in (measured, simulated))
    yield Figure("total", total_s, found_s, abs(found_s - total_s) <= TOTAL_WITHIN * total_s)
    for tenant in sorted({answer.tenant for answer in measured}):
        own = [[answer for answer in answers if answer.tenant == tenant] for answers in (measured, simulated)]
        if min(map(len, own)) < REQUESTS_MIN:
            continue
        for part, (relative, seconds) in WITHIN.items():
            for fraction in QUANTILES:
                first, second = (percentile([_seconds(each, part) for each in answers], fraction) for answers in own)
                assert first is not None
                assert second is not None
                what = f"{tenant} {part} P{100 * fraction:.0f}"
                yield Figure(what, first, second, abs(second - first) <= max(relative * first, seconds))


def _seconds(answer: Answer, part: str) -> float:
    return answer.first_s if part == "first tokens" else answer.whole_s


if __name__ == "__main__":
    sys.exit(main())

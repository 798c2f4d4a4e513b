"""Compare predicted waiting times with simulated and measured waits.

`python -m benchmarks.planning_waiting [--traces DIR] [--seeds N]`

First table: R² at 1 to 16 request groups that wait from time 0, on four engine profiles of the simulator; equation 2 of
QLM alone, and the corrected form (dispatcher/policies/planning/waiting.py). The worst of N seeds.

Second table: the measured runs of the VTC artifact. Each arrival gets P50 and P90 from the run's past only. `spread` is
the sum of P90 over the sum of P50, `median` the median of P90 / P50, `error` the median of |P50 - actual| / actual.
A `-` in the last column: no miss. Otherwise it names the figures that are outside the bands of issue 12.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.waiting.measured import replay
from benchmarks.waiting.scores import Score, score
from headgate.evidence.qlm.full_queue import BATCHES, FLOORS, fits

GROUPS = (1, 2, 4, 8, 16)
IN_ORDER_FLOOR, OTHER_FLOOR = 0.85, 0.8
COVERAGE = (0.85, 0.97)
SPREAD_MAX = 1.6
OUTCOMES_MIN = 20
TRACES = Path(__file__).parents[2] / "shared" / "traces"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning_waiting", description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, default=TRACES, help="the folder of the published traces")
    parser.add_argument("--seeds", type=int, default=3, help="simulated runs of each size (3)")
    options = parser.parse_args()
    for line in simulated(options.seeds):
        sys.stdout.write(line + "\n")
    folder = options.traces / "vtc" / "measured"
    if not folder.is_dir():
        sys.stdout.write(f"\nno measured runs: {folder} is absent (--traces DIR)\n")
        return 0
    for line in measured(folder):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return 0


def simulated(seeds: int) -> Iterator[str]:
    yield (
        f"{'R²: eq. 2 / corrected':24}"
        + "".join(f"{f'{groups} groups':>16}" for groups in GROUPS)
        + f"{'floor at 4':>12}"
    )
    for profile in BATCHES:
        cells = []
        for groups in GROUPS:
            worst = [
                min(values) for values in zip(*(fits(profile, groups, seed) for seed in range(seeds)), strict=True)
            ]
            cells.append(f"{worst[0]:.2f} / {worst[1]:.3f}")
        yield f"{profile:24}" + "".join(f"{cell:>16}" for cell in cells) + f"{FLOORS[profile]:>12}"


def measured(folder: Path) -> Iterator[str]:
    columns = ("announced", "wait s", "R²", "error", "coverage", "spread", "median")
    yield "\n" + f"{'measured run':36}" + "".join(f"{name:>10}" for name in columns) + "  outside"
    for path in sorted(folder.glob("*.csv"), key=lambda path: (is_fair(path), path.name)):
        outcomes = replay(path, fair=is_fair(path))
        if len(outcomes) < OUTCOMES_MIN:
            yield f"{path.stem:36}{len(outcomes):>10}  no throughput was measured: no waiting time is announced"
            continue
        found = score(outcomes)
        cells = [f"{found.requests:,}", f"{found.wait_mean_s:.1f}", f"{found.r_squared:.3f}", f"{found.error:.2f}"]
        cells += [f"{found.coverage:.3f}", f"{found.spread:.2f}", f"{found.spread_median:.2f}"]
        yield f"{path.stem:36}" + "".join(f"{cell:>10}" for cell in cells) + f"  {misses(path, found)}"


def is_fair(path: Path) -> bool:
    """Return whether the run's scheduler picks by tenant; otherwise it serves in order of arrival."""
    return not path.name.split(".")[1].startswith(("fcfs", "rpm"))


def misses(path: Path, found: Score) -> str:
    floor = IN_ORDER_FLOOR if ".fcfs." in path.name else OTHER_FLOOR
    outside = {
        "R²": found.r_squared < floor,
        "coverage": not COVERAGE[0] <= found.coverage <= COVERAGE[1],
        "spread": found.spread > SPREAD_MAX,
    }
    return ", ".join(name for name, is_outside in outside.items() if is_outside) or "-"


if __name__ == "__main__":
    sys.exit(main())

"""Fit the VTC paper's servers to some measured runs and test them on the others: `python -m benchmarks.held_out_runs`.

The profiles `a10g-llama2-7b` and `a100-llama2-13b` have the rules of that server (../shared/traces/README.md) with
`repeats_failed_attempts`, and step times that `headgate simulate --fit`'s code fits to some of its runs together. Every
other run of that machine is held out. headgate/evidence/vtc/measured.py has the runs and the tolerances, which were
written down before the first comparison; docs/evidence.md has the result. This command prints every figure outside.

`--engine` tests another profile; `--fitted` tests the fitted runs too; `--fit` prints the fitted step times instead.
Exit code 1 if a figure of a run is outside.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from headgate.evidence.vtc.measured import A10G, A100, compare_run, engine_of, history_of, is_fitted, measured_logs
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.fit.step_times import fit_step_times

TRACES = Path(__file__).parents[2] / "shared" / "traces"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.held_out_runs", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", help="names of runs, such as increase.vtc; all that are held out")
    parser.add_argument("--engine", help="a profile; that of the run's machine")
    parser.add_argument("--fitted", action="store_true", help="also the runs that the profiles were fitted to")
    parser.add_argument("--fit", action="store_true", help="print the fitted step times instead")
    options = parser.parse_args()
    logs = measured_logs(TRACES)
    if not logs:
        sys.stderr.write(f"no measured runs: {TRACES} is not there\n")
        return 2
    if options.fit:
        for engine in (A10G, A100):
            fitted = [path for path in logs if is_fitted(path) and engine_of(path) == engine]
            sys.stdout.write(f"{engine}: {fit_step_times(*map(history_of, fitted)).times}\n")
        return 0
    profile = load_profile(options.engine) if options.engine else None
    outside = 0
    sys.stdout.write("| run | figures | within | outside: measured → simulated |\n| --- | ---: | ---: | --- |\n")
    for path in logs:
        if (options.runs and path.stem not in options.runs) or (is_fitted(path) and not options.fitted):
            continue
        run = compare_run(path, profile)
        outside += len(run.misses)
        listed = "; ".join(f"{each.what} {each.measured:.2f} → {each.simulated:.2f}" for each in run.misses)
        sys.stdout.write(f"| {run.name} | {len(run.figures)} | {len(run.figures) - len(run.misses)} | {listed} |\n")
        sys.stdout.flush()
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())

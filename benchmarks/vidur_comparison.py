"""The simulator beside Vidur (MLSys 2024), on the same requests: `python -m benchmarks.vidur_comparison --venv DIR`.

DIR is a virtual environment for Vidur. If it does not exist it is made, and pip installs vidur and its dependencies,
about a hundred packages. Both simulators play the same requests with the same step times: lengths drawn from the arena
trace of the VTC paper, Poisson arrivals. Vidur serves first come, first served (vidur_side.py gives its settings, and
the reasons); headgate plays fcfs and vtc.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from benchmarks.sampled import SampledWorkload
from benchmarks.simulate_million import TRACE, sampled
from headgate.simulator.engines.profile import load_profile
from headgate.simulator.run import RunSpec
from headgate.simulator.simulate import simulate

VIDUR = "vidur==0.0.26"
REQUESTS = 5_000
BATCH_MAX = 25
"""About the number of requests that the engine runs at once with these lengths."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vidur_comparison", description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, help=f"a virtual environment with {VIDUR}; made if it does not exist")
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--trace", type=Path, default=TRACE, help=f"lengths are drawn from it ({TRACE})")
    options = parser.parse_args()
    if options.venv is None or not options.trace.is_file():
        missing = "--venv DIR names no environment for Vidur" if options.venv is None else f"no {options.trace}"
        sys.stdout.write(f"skipped: {missing}\n")
        return 0
    workload = sampled(options.trace, options.requests)
    try:
        python = made(options.venv)
    except subprocess.CalledProcessError as error:
        sys.stdout.write(f"skipped: no environment with {VIDUR} could be made ({error})\n")
        return 0
    rows = [theirs(python, workload), *(ours(workload, policy) for policy in ("fcfs", "vtc"))]
    sys.stdout.write(table(rows))
    return 0


Row = tuple[str, int, float, float]

GIVEN = f"""
Vidur's time is that of its simulator alone. Its own step times are not in the package, so it gets headgate's. It gets
ten times the pool and at most {BATCH_MAX} requests at once, because it fails an assertion of its own when it preempts.
Its metrics and its Chrome trace are off, while headgate measures. It prefills in chunks beside decoding; headgate
prefills in separate steps.
"""


def made(venv: Path) -> Path:
    """Return the interpreter of an environment with Vidur. Raises CalledProcessError if pip cannot install it."""
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    if subprocess.call([str(python), "-c", "import vidur"], stderr=subprocess.DEVNULL):  # also where pip failed before
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", VIDUR], check=True)
    return python.absolute()


def theirs(python: Path, workload: SampledWorkload) -> Row:
    profile = load_profile()
    step = {
        "base": profile.decode_base_s + profile.overhead_s,
        "per_request": profile.decode_per_request_s,
        "per_kv_token": profile.decode_per_kv_token_s,
        "per_prompt_token": profile.prefill_per_token_s,
        "pool_tokens": profile.pool_tokens,
        "minibatch_tokens": profile.minibatch_tokens_max,
        "batch_max": BATCH_MAX,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "trace.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("Date", "Time", "PromptTokenCount", "CompletionTokenCount"))
            rows.writerows(("2023-08-21", a.arrival_s, a.input_tokens, a.output_tokens) for a in workload)
        (folder / "step.json").write_text(json.dumps(step))
        side = Path(__file__).with_name("vidur_side.py").absolute()
        command = [str(python), str(side), "trace.csv", "step.json"]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    report = json.loads(done.stdout.splitlines()[-1])
    return "vidur, sarathi", report["completed"], report["setup_s"] + report["run_s"], report["simulated_s"]


def ours(workload: SampledWorkload, policy: str) -> Row:
    began = perf_counter()
    run = simulate(RunSpec(workload, policy, load_profile()))
    return f"headgate, {policy}", run.served, perf_counter() - began, run.total_time_s


def table(rows: list[Row]) -> str:
    lines = ["simulator         requests   seconds   µs a request   simulated s   times as fast as Vidur"]
    theirs_s = rows[0][2]
    for name, requests, seconds, simulated_s in rows:
        lines.append(
            f"{name:16} {requests:9,} {seconds:9.2f} {1e6 * seconds / requests:14.0f} {simulated_s:13,.0f} "
            f"{theirs_s / seconds:12.1f}"
        )
    return "\n".join(lines) + "\n" + GIVEN


if __name__ == "__main__":
    sys.exit(main())

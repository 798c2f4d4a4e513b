"""Measure everything that needs a GPU, once: nine minutes on one large card, with nothing but this repository.

`make gpu` or `python -m benchmarks.gpu_once [--seconds S] [--out FILE] [--tiny]`

It needs Python, torch and the pinned transformers, no network and no model's files. Without CUDA, or with --tiny, the
same parts run with a tiny model on the CPU: that checks the script, and its figures mean nothing for a card. After each
part the table is on the screen and in FILE, so that a run that is cut keeps what it has. The exit status is 1 if a part
fails or tokens differ, 2 without the pinned transformers, and else 0, whatever the figures are. How to read them:
benchmarks/results/gpu.md.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
import tomllib
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.gpu.run import Part, Report, run_parts
from benchmarks.gpu.sizes import LARGE, TINY, add_arguments, sizes_of

ROOT = Path(__file__).parents[1]
SECONDS = 540.0
OUT = Path("build/gpu.json")


@dataclass(frozen=True, slots=True)
class Entry:
    """A part: its title, its seconds at most, and where its work is: `module:function` in benchmarks/gpu. The module is
    imported when the part begins, so that a part which cannot be imported fails alone."""

    title: str
    budget_s: float
    work: str


PARTS = {
    "card": Entry("1. the card", 15.0, "card:measure_card"),
    "tokens": Entry("2. the engine's tokens beside those of generate", 45.0, "equal_tokens:compare_tokens"),
    "throughput": Entry("3. throughput beside transformers' own scheduler", 130.0, "throughput:measure_throughput"),
    "quiet": Entry("4. a quiet tenant's first token in a flood", 145.0, "first_token:compare_quiet_tenant"),
    "premium": Entry(
        "5. a premium tenant's first token beside long background prompts", 110.0, "first_token:compare_premium_tenant"
    ),
    "victims": Entry("6. swap and recompute of a victim", 85.0, "victim_costs:measure_victims"),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_once", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the whole run at most")
    parser.add_argument("--out", type=Path, default=OUT, help="the file of results, JSON")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="some of the parts")
    parser.add_argument("--seed", type=int, default=0)
    add_arguments(parser)
    options = parser.parse_args(arguments)
    began_s = time.monotonic()
    if (wrong := wrong_transformers()) is not None:
        sys.stderr.write(f"gpu_once: {wrong}\n")
        return 2
    bench = make_bench(options)
    about = {
        "began": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "device": bench.device,
        "sizes": {name: getattr(bench.sizes, name) for name in bench.sizes.__dataclass_fields__},
    }
    report = Report(options.out, about)
    signal.signal(signal.SIGTERM, partial(stop_run, report))
    if not bench.on_cuda:
        sys.stdout.write("a tiny model on the CPU: this checks the script, and its figures mean nothing for a card\n")
    chosen = [entry for name, entry in PARTS.items() if name in options.parts]
    parts = [Part(entry.title, entry.budget_s, partial(work_of, entry, bench)) for entry in chosen]
    run_parts(parts, report, options.seconds - (time.monotonic() - began_s))
    sys.stdout.write(f"\n{options.out} has these figures; {time.monotonic() - began_s:.0f} s\n")
    return 1 if report.failed else 0


def wrong_transformers() -> str | None:
    """Return what is wrong with the installed transformers: one sentence that says what to do."""
    pinned = read_pin()
    try:
        found = version("transformers")
    except PackageNotFoundError:
        found = "none"
    if found == pinned:
        return None
    return (
        f"the engine needs transformers {pinned}, and Python finds {found}: run `make gpu-wheels` where there is a"
        " network, then `make gpu`"
    )


def read_pin() -> str:
    """Return the version of transformers that pyproject.toml pins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pins = project["optional-dependencies"]["transformers"]
    return next(str(pin).partition("==")[2] for pin in pins if str(pin).startswith("transformers=="))


def make_bench(options: argparse.Namespace) -> Any:
    """Choose the device and the sizes. The libraries are imported here, after the check of their version."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers.utils import logging as transformers_logging

    from benchmarks.gpu.bench import Bench

    transformers_logging.set_verbosity_error()
    batching = logging.getLogger("ContinuousBatchingLogger")
    batching.addFilter(lambda record: "psutil" not in record.getMessage())  # it warns at the start of every engine
    on_cuda = torch.cuda.is_available() and not options.tiny
    if not on_cuda:
        torch.set_num_threads(1)
    return Bench(sizes_of(options, LARGE if on_cuda else TINY), "cuda" if on_cuda else "cpu", options.seed)


async def work_of(entry: Entry, bench: Any, report: Report) -> None:
    module, function = entry.work.split(":")
    await getattr(import_module(f"benchmarks.gpu.{module}"), function)(bench, report)


def stop_run(report: Report, signum: int, _frame: object) -> None:
    """End the process at once, and keep what the report has. The engine's threads and the device end with it."""
    report.stop(signal.Signals(signum).name)
    os._exit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())

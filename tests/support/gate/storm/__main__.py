"""python -m tests.support.gate.storm --seeds A:B [--fronts N] [--trace]: run seeds one after the other."""

from __future__ import annotations

import argparse
import sys
import time

from tests.support.gate.storm.simulation import run
from tests.support.gate.storm.weather import draw

REPORT_S = 20.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.gate.storm")
    parser.add_argument("--seeds", default="0:100", help="A:B, from A up to but not including B; or one seed")
    parser.add_argument("--fronts", type=int, help="instead of the number that each seed draws")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    options = parser.parse_args()
    first, _, end = options.seeds.partition(":")
    seeds = range(int(first), int(end) if end else int(first) + 1)
    began = reported = time.monotonic()
    entries, failed = 0, 0
    for count, seed in enumerate(seeds, 1):
        outcome = run(draw(seed, options.fronts))
        entries += outcome.entries
        if options.trace:
            sys.stdout.write("\n".join(outcome.trace) + "\n")
        if outcome.violations:
            failed += 1
            print(f"seed {seed}: {outcome.weather}")
            for violation in outcome.violations[:3]:
                print(f"  at {violation.at:.2f} s: {violation.oracle}: {violation.message}", flush=True)
        now = time.monotonic()
        if now - reported > REPORT_S or count == len(seeds):
            reported = now
            rate = count / (now - began)
            done = f"{count} seeds, {failed} with violations, {entries} entries"
            print(f"{done}, {rate:.1f} seeds/s; next {seed + 1}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""python -m tests.support.world.storm --seeds A:B [--fronts N] [--trace]: run seeds, and print those with violations.

`--reach` prints the functions of the gate that no seed reached, and fails if there is one.

For long runs: [--processes N] [--results FILE]. What is in the file for the same code is not run again, so a run that
was stopped goes on where it was. `--table FILE` prints what a file contains, as Markdown.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.support.world.storm.reach import Reach, functions
from tests.support.world.storm.results import Block, append, blocks_in, table, version
from tests.support.world.storm.simulation import run
from tests.support.world.storm.weather import draw

REPORT_S = 20.0
BLOCK = 50
"""Seeds whose result is noted together. Blocks begin at multiples of it."""
SHOWN_MAX = 3
"""Violations of a seed that are printed."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.world.storm")
    parser.add_argument("--seeds", default="0:100", help="A:B, from A up to but not including B; or one seed")
    parser.add_argument("--fronts", type=int, help="instead of the number that each seed draws")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--reach", action="store_true", help="print the gate's functions that no seed reached")
    parser.add_argument("--processes", type=int, default=1, help="how many run side by side (default: 1)")
    parser.add_argument("--results", type=Path, help="a file to which each block of seeds is appended")
    parser.add_argument("--table", type=Path, help="print the results in this file, and run nothing")
    options = parser.parse_args()
    if options.table:
        print(table(blocks_in(options.table)))
        return 0
    first, _, end = options.seeds.partition(":")
    todo = list(_blocks(int(first), int(end) if end else int(first) + 1, options))
    if not todo:
        print(f"{options.results} has all of these seeds for this code")
    failed, missed = _run_all(todo, options)
    if options.reach:
        _print_missed(missed)
    return 1 if failed or (options.reach and missed) else 0


def _blocks(first: int, end: int, options: argparse.Namespace) -> Iterator[Block]:
    """Yield the blocks of the seeds that are not in the results yet."""
    commit, code = version() if options.results else ("", "")
    fronts = options.fronts or 0
    known = blocks_in(options.results) if options.results else ()
    same = [block for block in known if (block.code, block.fronts) == (code, fronts)]
    done = {seed for block in same for seed in range(block.first, block.end)}
    for start in range(first // BLOCK * BLOCK, end, BLOCK):
        seeds = [seed for seed in range(max(first, start), min(end, start + BLOCK)) if seed not in done]
        if seeds:
            yield Block(commit, code, fronts, seeds[0], seeds[-1] + 1)


def _run_all(todo: list[Block], options: argparse.Namespace) -> tuple[int, set[str]]:
    """Run the blocks, note each, and return how many seeds had violations, and the functions that none reached."""
    began = reported = time.monotonic()
    seeds = failed = entries = 0
    missed = set(functions()) if options.reach else set()
    work = partial(_run_watched, trace=options.trace)
    with multiprocessing.Pool(options.processes, _watch if options.reach else None) as pool:
        for count, (block, unreached) in enumerate(pool.imap_unordered(work, todo), 1):
            missed &= unreached
            if options.results:
                append(options.results, block)
            seeds += block.end - block.first
            failed += len({violation["seed"] for violation in block.violations})
            entries += block.entries
            now = time.monotonic()
            if now - reported > REPORT_S or count == len(todo):
                reported = now
                done = f"{seeds} seeds, {failed} with violations, {entries} entries"
                print(f"{done}, {seeds / (now - began):.1f} seeds/s; next {block.end}", flush=True)
    return failed, missed


def _print_missed(missed: set[str]) -> None:
    count = len(functions())
    print(f"{count - len(missed)} of {count} functions of the gate were reached. Not reached:")
    print("\n".join(f"  {name}" for name in sorted(missed)) or "  none")


_reach = Reach()
"""Of this process."""


def _watch() -> None:
    """Note from now on which functions this process calls."""
    _reach.watch()


def _run_watched(block: Block, *, trace: bool) -> tuple[Block, set[str]]:
    """Run the block. Return it, and the functions that this process has not called yet."""
    return _run_block(block, trace=trace), set(_reach.missed)


def _run_block(block: Block, *, trace: bool) -> Block:
    began = time.monotonic()
    for seed in range(block.first, block.end):
        outcome = run(draw(seed, block.fronts or None))
        block.entries += outcome.entries
        block.calls += outcome.calls
        if trace:
            sys.stdout.write("\n".join(outcome.trace) + "\n")
        if outcome.violations:
            print(f"seed {seed}: {outcome.weather}")
        for violation in outcome.violations[:SHOWN_MAX]:
            print(f"  at {violation.at:.2f} s: {violation.oracle}: {violation.message}", flush=True)
            block.violations.append({"seed": seed, **violation._asdict()})
    block.seconds = time.monotonic() - began
    return block


if __name__ == "__main__":
    sys.exit(main())

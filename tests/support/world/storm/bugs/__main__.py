"""python -m tests.support.world.storm.bugs: print the first seed that finds each seeded bug, as found.py has them.

Run it after a change of the gate: a seed that does not find its bug any more costs each run of the tests many others.

    python -m tests.support.world.storm.bugs --units [BUG ...]

prints which unit test finds each bug, if one does: with the bug in the code, tests/unit runs up to the first failure.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import subprocess
import sys
from itertools import chain

from tests.support.world.storm.bugs import BUGS, planted
from tests.support.world.storm.bugs.found import FOUND
from tests.support.world.storm.simulation import run
from tests.support.world.storm.weather import draw

SEEDS = 2000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.world.storm.bugs")
    parser.add_argument("--units", action="store_true", help="run the unit tests with each bug")
    parser.add_argument("bugs", nargs="*", default=list(BUGS), metavar="BUG", help="default: all")
    options = parser.parse_args()
    return _print_unit_tests(options.bugs) if options.units else _print_seeds(options.bugs)


def _print_seeds(names: list[str]) -> int:
    is_complete = True
    with multiprocessing.Pool() as pool:
        for name, seed in zip(names, pool.imap(first_seed, names), strict=True):
            note = "" if FOUND.get(name) == seed else f"  # was {FOUND.get(name)}"
            print(f'    "{name}": {seed},{note}', flush=True)
            is_complete = is_complete and seed is not None
    return 0 if is_complete else 1


def first_seed(name: str) -> int | None:
    """Return the seed of found.py if it still finds the bug, else the first that does; None without one."""
    for seed in chain(filter(None, [FOUND.get(name)]), range(SEEDS)):
        if run(draw(seed), bug=BUGS[name].planted()).violations:
            return seed
    return None


def _print_unit_tests(names: list[str]) -> int:
    for name in names:
        print(f"{name}: {failed_unit_test(name) or 'no unit test fails'}", flush=True)
    return 0


def failed_unit_test(name: str) -> str:
    """Return the first unit test that fails with the bug in the code; empty if none does. Raises RuntimeError if the
    tests cannot run."""
    command = [sys.executable, "-m", "pytest", "tests/unit", "-x", "-q", "-n", str(os.cpu_count() or 1)]
    environment = {**os.environ, planted.NAME: name}
    tests = subprocess.run(
        [*command, "-p", planted.__name__], env=environment, capture_output=True, text=True, check=False
    )
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", tests.stdout, re.MULTILINE)
    if failed is None and tests.returncode:
        raise RuntimeError(f"with {name} the tests ended with {tests.returncode}: {tests.stdout[-500:]}")
    return failed[1] if failed else ""


if __name__ == "__main__":
    raise SystemExit(main())

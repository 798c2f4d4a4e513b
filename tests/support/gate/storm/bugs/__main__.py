"""python -m tests.support.gate.storm.bugs: print the first seed that finds each seeded bug, as found.py has them.

Run it after a change of the gate: a seed that does not find its bug any more costs each run of the tests many others.
"""

from __future__ import annotations

import multiprocessing
from itertools import chain

from tests.support.gate.storm.bugs import BUGS
from tests.support.gate.storm.bugs.found import FOUND
from tests.support.gate.storm.simulation import run
from tests.support.gate.storm.weather import draw

SEEDS = 2000


def main() -> int:
    with multiprocessing.Pool() as pool:
        found = dict(zip(BUGS, pool.map(first_seed, BUGS, chunksize=1), strict=True))
    for name, seed in found.items():
        note = "" if FOUND.get(name) == seed else f"  # was {FOUND.get(name)}"
        print(f'    "{name}": {seed},{note}')
    return 1 if None in found.values() else 0


def first_seed(name: str) -> int | None:
    """Return the seed of found.py if it still finds the bug, else the first that does; None without one."""
    for seed in chain(filter(None, [FOUND.get(name)]), range(SEEDS)):
        if run(draw(seed), bug=BUGS[name].planted()).violations:
            return seed
    return None


if __name__ == "__main__":
    raise SystemExit(main())

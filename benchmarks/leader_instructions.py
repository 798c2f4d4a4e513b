"""Instructions of a leader's command: `python -m benchmarks.leader_instructions [--baseline FOLDER]`. Needs valgrind.

Microseconds of equal runs differ by more than most changes do; instructions hardly differ. Counted are a frame
decoded (of as many arrivals), the decision, its confirmation, and the entry's bytes with their check, without garbage
collections: the instructions of MORE commands less those of FEW. FOLDER: the checkout of another commit, counted in the
same call.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

BATCHES = (1, 5, 20, 100)
FEW, MORE = 1_000, 3_000
COUNTER = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")


def write_entries(batch: int, commands: int) -> None:
    """Do what a leader does for so many commands, in entries of `batch`."""
    from benchmarks.shard_traffic import Traffic
    from dispatcher.model.commands import Command, Offer
    from dispatcher.model.facts import Entry
    from dispatcher.service.frames import Do, decode_frame, encode_frames, encode_message
    from dispatcher.shard.codec import encode_entry

    options = {"checked": True} if "checked" in inspect.signature(encode_entry).parameters else {}

    class Leader(Traffic):
        is_counted = False

        def write(self, commands: Sequence[Command]) -> bytes:
            if not self.is_counted:
                return super().write(commands)
            decode_frame(frame)
            self._now = round(self._now + self._random.expovariate(100), 3)
            outcomes, facts = self.shard.decide(commands, self._now)
            self._running += [outcome for outcome in outcomes if isinstance(outcome, Offer)]
            entry = Entry(self.shard.position, self.shard.at, "p/1:1", "10.0.123.245:8472", 3, facts)
            self.shard.confirm(entry)
            return encode_entry(entry, **options)

    leader = Leader(leases=64, slots=64 + 2 * batch)
    (frame,) = encode_frames([encode_message(Do(number, 1.5, leader._accept())) for number in range(batch)])
    gc.disable()
    leader.is_counted = True
    for _ in range(commands // batch):
        leader.entry(batch)


def count(root: Path, batch: int) -> float:
    """Return the instructions of a command of a leader that runs the code under `root`."""
    found = []
    for commands in (FEW, MORE):
        environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "0"}
        child = [*COUNTER, sys.executable, str(Path(__file__).resolve()), "--count", str(batch), str(commands)]
        done = subprocess.run(child, env=environment, cwd=root, capture_output=True, text=True, check=True)
        match = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
        if match is None:
            raise SystemExit(f"valgrind counted nothing: {done.stderr[-300:]}")
        found.append(int(match[1].replace(",", "")))
    return (found[1] - found[0]) / (MORE - FEW)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leader_instructions", description=__doc__)
    parser.add_argument("--baseline", type=Path, help="the folder of another checkout")
    parser.add_argument("--count", nargs=2, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.count:
        write_entries(*given.count)
        return 0
    if shutil.which("valgrind") is None:
        parser.error("valgrind is not installed: install the package of this name")
    roots = [each for each in (given.baseline, Path(__file__).resolve().parents[1]) if each is not None]
    sys.stdout.write("commands of an entry" + ("  baseline     this  ratio\n" if given.baseline else "      this\n"))
    for batch in BATCHES:
        counts = [count(root.resolve(), batch) for root in roots]
        ratio = f"{counts[-1] / counts[0]:7.2f}" if given.baseline else ""
        sys.stdout.write(f"{batch:20}" + "".join(f"{each:10,.0f}" for each in counts) + f"{ratio}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

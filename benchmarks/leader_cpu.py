"""CPU of a leader: `python -m benchmarks.leader_cpu [--commands N] [--tenants N] [--waiting N] [--json]`.

Microseconds of CPU a command, in entries of 1, 5, 20 and 100 commands (ends and arrivals in turn, 20 tenants, calls
that begin at once):

    receive   a frame of the commands decoded (service/frames.py); its signature and the socket are not in it
    decide    Shard.decide: facts, applied to the state with their inverses
    objects   of that: making the facts and outcomes, which are named tuples
    confirm   what follows when the entry is written
    encode    the entry's bytes, with the check that they decode to the same facts
    decode    what an heir does with them
    fold      the facts applied to the heir's state, without inverses

Then a snapshot of a shard with many tenants and waiting calls: its size, the CPU to make and to load it, the CPU of its
projections (rows), and its longest pause. A leader makes it in a thread of its own, and another thread wants to run
every tenth of a millisecond, as the leader's event loop does. The pause is the longest CPU time for which the first
thread lets no other one run.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import clock_gettime, pthread_getcpuclockid, thread_time_ns
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from benchmarks.shard_traffic import Traffic, loaded_shard
from dispatcher.model.commands import Command, Offer
from dispatcher.model.facts import Entry
from dispatcher.service.frames import Do, decode_frame, encode_frames, encode_message
from dispatcher.shard.codec import decode_entry, encode_entry
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.snapshot import dump, load

T = TypeVar("T")

BATCHES = (1, 5, 20, 100)
STEP_S = 0.0001
SNAPSHOTS = 5


@dataclass
class Spent:
    """Microseconds a command in entries of `batch` commands."""

    batch: int
    receive: float = 0.0
    decide: float = 0.0
    objects: float = 0.0
    confirm: float = 0.0
    encode: float = 0.0
    decode: float = 0.0
    fold: float = 0.0


@dataclass(frozen=True)
class Snapshot:
    """Sizes in bytes, times in milliseconds."""

    tenants: int
    waiting: int
    bytes: int
    dump_ms: float
    load_ms: float
    rows_ms: float
    pause_ms: float


class TimedTraffic(Traffic):
    """Traffic that times each step of an entry, once `spent` is set."""

    spent: Spent | None = None
    heir: Shard

    def write(self, commands: Sequence[Command]) -> bytes:
        spent = self.spent
        if spent is None:
            return super().write(commands)
        (frame,) = encode_frames([encode_message(Do(number, 1.5, each)) for number, each in enumerate(commands)])
        spent.receive += _us(lambda: decode_frame(frame))[0]
        self._now = round(self._now + self._random.expovariate(100), 3)
        took, (outcomes, facts) = _us(lambda: self.shard.decide(commands, self._now))
        spent.decide += took
        spent.objects += _us(lambda: [type(each)(*each) for each in (*facts, *outcomes)])[0]
        self._running += [outcome for outcome in outcomes if isinstance(outcome, Offer)]
        entry = Entry(self.shard.position, self.shard.at, f"w/{self.shard.position}", "10.0.123.245:8472", 3, facts)
        spent.confirm += _us(lambda: self.shard.confirm(entry))[0]
        took, data = _us(lambda: encode_entry(entry, checked=True))
        spent.encode += took
        took, decoded = _us(lambda: decode_entry(data))
        spent.decode += took
        spent.fold += _us(lambda: self.heir.fold(decoded))[0]
        return data


def spent_on(batch: int, commands: int) -> Spent:
    traffic = TimedTraffic(leases=64, slots=64 + 2 * batch)
    traffic.heir = load(dump(traffic.shard), ShardSettings())
    gc.collect()
    gc.freeze()
    traffic.spent = spent = Spent(batch)
    for _ in range(commands // batch):
        traffic.entry(batch)
    gc.unfreeze()
    overhead_us = min(_us(lambda: None)[0] for _ in range(1_000))
    done = commands // batch * batch
    steps = {name: value for name, value in asdict(spent).items() if name != "batch"}
    return Spent(batch, **{name: value / done - overhead_us / batch for name, value in steps.items()})


def snapshot_of(tenants: int, waiting: int) -> Snapshot:
    shard = loaded_shard(tenants, waiting)
    gc.collect()
    gc.freeze()
    data = dump(shard)
    dump_ms = min(_us(lambda: dump(shard))[0] for _ in range(SNAPSHOTS)) / 1_000
    load_ms = min(_us(lambda: load(data, ShardSettings()))[0] for _ in range(SNAPSHOTS)) / 1_000
    rows_ms = min(_us(lambda: (shard.usage_rows(), shard.tenant_rows()))[0] for _ in range(SNAPSHOTS)) / 1_000
    pauses = [
        longest_pause_ms(lambda: (dump(shard), shard.usage_rows(), shard.tenant_rows())) for _ in range(SNAPSHOTS)
    ]
    gc.unfreeze()
    return Snapshot(tenants, waiting, len(data), dump_ms, load_ms, rows_ms, median(pauses))


def captured(shard: Shard) -> object:
    """Make what service/snapshots.py makes in a thread."""
    return dump(shard), shard.usage_rows(), shard.tenant_rows()


def longest_pause_ms(work: Callable[[], object]) -> float:
    """Return the longest CPU time that another thread took for `work` without letting this one run."""
    go, other = threading.Event(), threading.Thread(target=lambda: (go.wait(), work()))
    other.start()
    clock = pthread_getcpuclockid(other.ident or 0)
    go.set()
    longest, seen_s = 0.0, 0.0
    while other.is_alive():
        now_s = clock_gettime(clock)
        longest, seen_s = max(longest, now_s - seen_s), now_s
        other.join(STEP_S)
    return 1_000 * longest


def _us(work: Callable[[], T]) -> tuple[float, T]:
    begun = thread_time_ns()
    result = work()
    return (thread_time_ns() - begun) / 1_000, result


def tables_of(rows: list[Spent], snapshot: Snapshot) -> list[Table]:
    per_command = Table(title="CPU a command (microseconds), by the commands of an entry")
    for column in (
        "commands an entry",
        "receive",
        "decide",
        "(objects)",
        "confirm",
        "encode",
        "leader",
        "decode",
        "fold",
    ):
        per_command.add_column(column, justify="right")
    for row in rows:
        leader = row.receive + row.decide + row.confirm + row.encode
        steps = (row.receive, row.decide, row.objects, row.confirm, row.encode, leader, row.decode, row.fold)
        per_command.add_row(str(row.batch), *(f"{value:.1f}" for value in steps))
    whole = Table(title=f"A snapshot of {snapshot.tenants:,} tenants and {snapshot.waiting:,} waiting calls")
    for column in ("KB", "dump ms", "load ms", "rows ms", "longest pause ms"):
        whole.add_column(column, justify="right")
    times = (snapshot.dump_ms, snapshot.load_ms, snapshot.rows_ms, snapshot.pause_ms)
    whole.add_row(f"{snapshot.bytes / 1_000:.0f}", *(f"{value:.1f}" for value in times))
    return [per_command, whole]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leader_cpu", description=__doc__)
    parser.add_argument("--commands", type=int, default=20_000, help="for each size of an entry")
    parser.add_argument("--tenants", type=int, default=10_000, help="in the snapshot")
    parser.add_argument("--waiting", type=int, default=5_000, help="calls in the snapshot")
    parser.add_argument("--json", action="store_true", help="one object with stable keys instead of tables")
    arguments = parser.parse_args()
    if arguments.commands < max(BATCHES) or min(arguments.tenants, arguments.waiting) < 1:
        parser.error(f"at least {max(BATCHES)} commands, one tenant and one waiting call")
    rows = [spent_on(batch, arguments.commands) for batch in BATCHES]
    snapshot = snapshot_of(arguments.tenants, arguments.waiting)
    if arguments.json:
        sys.stdout.write(json.dumps({"rows": [asdict(row) for row in rows], "snapshot": asdict(snapshot)}) + "\n")
    else:
        for table in tables_of(rows, snapshot):
            Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A pool of eight shards beside one of one shard: `python -m benchmarks.sharded_pool [--only TEXT] [--json]`.

`--workers`, `--slots`: another size of the pool.

The production's shards (dispatcher/shard/alone.py) and division of slots (policies/slot_shares.py), over workers in
virtual time: 20 workers with 16 slots report each second, to each shard, and at once where that moves a slot. A report
waits for the shard's next entry, as at a leader. A tenant of a flood has 50 calls waiting at any time. The same calls
with the same lengths in both pools. After a warm-up, each tenant's service is compared with that in the pool of one
shard: `shares` is the greatest difference of any flooding tenant, `served` the service of all tenants, both relative to
one shard. `quiet`: seconds from arrival to dispatch of tenants with few calls. `reports/s`: of a worker.

`--rate R` instead: arrivals of 2,000 tenants at R invocations a second, and the CPU seconds that each shard's decisions
take for a second of virtual time. All shards run in one process here, one after another.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from dispatcher.model.commands import Attempts, Refused
from dispatcher.model.shards import shard_of_tenant
from dispatcher.policies.clocks import Share
from dispatcher.policies.percentiles import percentile
from dispatcher.policies.slot_shares import SlotShares
from dispatcher.service.gate.group_commit import PATIENT_S
from dispatcher.shard.alone import EPOCH, Decided, LoneGate, report
from dispatcher.shard.settings import ShardSettings

SHARDS = 8
WARMUP_S, SECONDS = 200.0, 400.0
WAITING = 50
REPORT_S, JITTER = 1.0, 0.2
NETWORK_S, APPEND_S = 0.002, 0.01
"""From a worker to a leader, and from a decision to its outcome at the worker."""
TARGET = 0.01
_SERVICE_PER_S = 60.0
"""Of a slot, in the scene of guarantees: what a worker reports as its capacity."""


class Size(NamedTuple):
    workers: int = 20
    slots: int = 16
    """Of each worker."""


@dataclass(frozen=True)
class Player:
    """A tenant. `tokens`: input and output of a call; it takes `call_s` in the mean. `gap_s`: mean seconds between the
    calls of a quiet tenant; 0: it floods. `on_s`: it comes and goes, so long each time; 0: it is always there."""

    name: str
    share: Share = field(default_factory=Share)
    tokens: tuple[int, int] = (100, 100)
    call_s: float = 5.0
    gap_s: float = 0.0
    on_s: float = 0.0


@dataclass(frozen=True)
class Scene:
    name: str
    players: Sequence[Player]


def scenes() -> list[Scene]:
    equal = [Player(f"t{number}") for number in range(24)]
    weights = [Player(f"t{n}", Share(weight)) for n, weight in enumerate((1, 2, 5, 10, 20, 50, 100, 1, 2, 5, 10, 20))]
    outputs = [Player(f"out{number}", tokens=(50, 400), call_s=12.0) for number in range(8)]
    prompts = [Player(f"in{number}", tokens=(4000, 10), call_s=2.0) for number in range(8)]
    quiet = [Player(f"q{number}", gap_s=20.0, call_s=2.0) for number in range(16)]
    one_shard = [Player(name) for name in itertools.islice(_names_of_shard(0), 6)]
    guaranteed = [Player(f"g{number}", Share(1.0, 600.0, 3000.0)) for number in range(4)]
    floods = [Player(f"f{number}", Share(5.0)) for number in range(8)]
    return [
        Scene("24 equal tenants", equal),
        Scene("weights 1 to 100", weights),
        Scene("long outputs beside long prompts", [*outputs, *prompts]),
        Scene("one flood, 16 quiet tenants", [Player("flood"), *quiet]),
        Scene("24 equal and 16 quiet tenants", [*equal, *quiet]),
        Scene("half of the tenants come and go", [Player(f"t{n}", on_s=60.0 * (n % 2)) for n in range(24)]),
        Scene("all six tenants in one shard", one_shard),
        Scene("3 tenants, some shards without any", [Player(f"t{number}") for number in range(3)]),
        Scene("4 guarantees of 600/s beside floods", [*guaranteed, *floods]),
    ]


def _names_of_shard(shard: int) -> Any:
    return (name for n in itertools.count() if shard_of_tenant(name := f"t{n}", SHARDS) == shard)


class Pool:
    """Workers before shards. `on_dispatched` gets the tenant and the seconds of its wait."""

    def __init__(self, scene: Scene, shards: int, seed: int, size: Size) -> None:
        settings = ShardSettings(is_sharded=shards > 1, refuses_late=False)
        self.now_s, self.random, self.slots = 0.0, Random(seed), size.slots
        self.gates = [LoneGate(settings, now=EPOCH) for _ in range(shards)]
        self.shares = [SlotShares(f"w{number}", shards) for number in range(size.workers)]
        self.players = {player.name: player for player in scene.players}
        self.service: Counter[str] = Counter()
        self.waits_s: list[float] = []
        self.most_running = 0
        self.reports = 0
        self._sent: set[tuple[int, int]] = set()
        """The workers and shards with a report on its way."""
        self._again: set[tuple[int, int]] = set()
        self._patient: list[list[tuple[int, int]]] = [[] for _ in range(shards)]
        """The reports of each shard that wait for its next entry: worker and slots."""
        self._entries = [0] * shards
        """The entries of each shard with reports."""
        self._lengths = {name: Random(f"{seed} {name}") for name in self.players}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._calls: dict[tuple[int, str], tuple[str, float]] = {}
        """Tenant and arrival of each call in the pool, by shard and id."""
        self._waiting: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        for worker, shard in itertools.product(range(size.workers), range(shards)):
            self._at(self.random.random() * REPORT_S, partial(self._report_each_second, worker, shard))
        for player in scene.players:
            for gate in self.gates:
                gate.set_tenant(player.name, player.share)
            self._at(2 * REPORT_S + self.random.random(), partial(self._begin, player))

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, event = heappop(self._events)
            event()
        self.now_s = until_s

    def _at(self, at_s: float, event: Callable[[], None]) -> None:
        heappush(self._events, (at_s, next(self._numbers), event))

    def _report_each_second(self, worker: int, shard: int) -> None:
        self._report(worker, shard)
        pause_s = REPORT_S * self.random.uniform(1 - JITTER, 1 + JITTER)
        self._at(self.now_s + pause_s, partial(self._report_each_second, worker, shard))

    def _report(self, worker: int, shard: int, *, again: bool = False) -> None:
        """Send a report. It waits for the next entry of the shard, at most PATIENT_S. `again`: also if one is on its
        way, after its answer."""
        if (worker, shard) in self._sent:
            if again:
                self._again.add((worker, shard))
            return
        self._sent.add((worker, shard))
        self.reports += 1
        if not self._patient[shard]:
            self._entries[shard] += 1
            self._at(self.now_s + PATIENT_S, partial(self._decide_late_reports, shard, self._entries[shard]))
        self._patient[shard].append((worker, self.shares[worker].slots(shard, self.slots)))

    def _decide_late_reports(self, shard: int, entry: int) -> None:
        if self._entries[shard] == entry:
            self._decide_reports(shard)

    def _decide_reports(self, shard: int) -> None:
        reports, self._patient[shard] = self._patient[shard], []
        for worker, slots in reports:
            sent = report(f"w{worker}", slots, capacity_per_s=_SERVICE_PER_S * slots)
            decided = self.gates[shard].decide(sent, now=EPOCH + self.now_s)
            if isinstance(answer := decided.outcome, Attempts):
                self._at(self.now_s + APPEND_S, partial(self._note, worker, shard, answer))
            self._follow(shard, decided)

    def _note(self, worker: int, shard: int, answer: Attempts) -> None:
        self._sent.discard((worker, shard))
        self.shares[worker].note(shard, answer.need[0] if answer.need else None, len(answer.held), self.now_s)
        for each in self.shares[worker].urgent(self.slots):
            self._at(self.now_s + NETWORK_S, partial(self._report, worker, each))
        if (worker, shard) in self._again:
            self._again.discard((worker, shard))
            self._at(self.now_s + NETWORK_S, partial(self._report, worker, shard))

    def _begin(self, player: Player) -> None:
        if player.gap_s:
            self._submit(player)
            self._at(self.now_s + self.random.expovariate(1 / player.gap_s), partial(self._begin, player))
            return
        while self._is_on(player) and self._waiting[player.name] < WAITING:
            self._submit(player)
        if player.on_s:
            self._at(self.now_s + 1.0, partial(self._begin, player))

    def _is_on(self, player: Player) -> bool:
        return not player.on_s or int(self.now_s / player.on_s) % 2 == 0

    def _submit(self, player: Player) -> None:
        shard = shard_of_tenant(player.name, len(self.gates))
        gate, cost = self.gates[shard], player.tokens[0] + 2.0 * player.tokens[1]
        self._calls[shard, gate.next_name()] = (player.name, self.now_s)
        self._waiting[player.name] += 1
        decided = gate.submit(player.name, cost, EPOCH + self.now_s)
        if isinstance(decided.outcome, Refused):
            raise RuntimeError(f"refused: {decided.outcome.message}")
        self._follow(shard, decided)
        self._decide_reports(shard)

    def _follow(self, shard: int, decided: Decided) -> None:
        for fact in decided.dispatched:
            name, arrived_s = self._calls[shard, fact.id]
            player = self.players[name]
            self._waiting[name] -= 1
            self._running[fact.worker] += 1
            self.most_running = max(self.most_running, self._running[fact.worker])
            if player.gap_s:
                self.waits_s.append(self.now_s - arrived_s)
            took_s = self._lengths[name].uniform(0.5, 1.5) * player.call_s
            self._at(self.now_s + took_s, partial(self._end, shard, fact.id, fact.worker))
            if not player.gap_s:
                self._at(self.now_s, partial(self._begin, player))

    def _end(self, shard: int, call_id: str, worker: str) -> None:
        name, _ = self._calls.pop((shard, call_id))
        tokens = self.players[name].tokens
        self.service[name] += tokens[0] + 2 * tokens[1]
        self._running[worker] -= 1
        self._follow(shard, self.gates[shard].finish(call_id, *tokens, EPOCH + self.now_s))
        self._decide_reports(shard)
        number = int(worker[1:])
        if self.shares[number].is_urgent_end(shard, self.slots):
            self._at(self.now_s + APPEND_S + NETWORK_S, partial(self._report, number, shard, again=True))


@dataclass(frozen=True)
class Row:
    scene: str
    shares: float
    served: float
    quiet_p50_s: tuple[float, float]
    """With one shard, and with several."""
    quiet_p99_s: tuple[float, float]
    reports_per_s: tuple[float, float]
    """Of a worker, to all shards."""
    most_running: int
    """On one worker."""


def compare(scene: Scene, seconds: float, seed: int, size: Size) -> Row:
    pools = [Pool(scene, shards, seed, size) for shards in (1, SHARDS)]
    for pool in pools:
        pool.run(WARMUP_S)
        pool.service.clear()
        pool.waits_s.clear()
        pool.reports = 0
        pool.run(WARMUP_S + seconds)
    one, several = pools
    totals = [sum(pool.service.values()) for pool in pools]
    floods = [player.name for player in scene.players if not player.gap_s]
    differences = [abs(several.service[name] / totals[1] / (one.service[name] / totals[0]) - 1) for name in floods]
    waits = [[percentile(pool.waits_s, part) or 0.0 for pool in pools] for part in (0.5, 0.99)]
    return Row(
        scene.name, max(differences), totals[1] / totals[0], (waits[0][0], waits[0][1]), (waits[1][0], waits[1][1]),
        (one.reports / seconds / size.workers, several.reports / seconds / size.workers), several.most_running,
    )  # fmt: skip


def shard_cpu(rate: float, seconds: float, seed: int) -> dict[str, Any]:
    """Return the CPU seconds of each shard's decisions for a second of virtual time, at this rate of invocations."""
    settings, random = ShardSettings(is_sharded=True), Random(seed)
    gates = [LoneGate(settings, now=EPOCH) for _ in range(SHARDS)]
    spent = [0.0] * SHARDS
    workers = int(rate / 16)
    ends: list[tuple[float, int, str]] = []
    now_s = 0.0
    for shard, worker in itertools.product(range(SHARDS), range(workers)):
        gates[shard].decide(report(f"w{worker}", 4))
    for _ in range(int(rate * seconds)):
        now_s += random.expovariate(rate)
        while ends and ends[0][0] <= now_s:
            at_s, shard, name = heappop(ends)
            began = time.thread_time()
            decided = gates[shard].finish(name, 100, 100, EPOCH + at_s)
            spent[shard] += time.thread_time() - began
            _hold(ends, shard, decided, at_s)
        tenant = f"t{random.randrange(2000)}"
        shard = shard_of_tenant(tenant, SHARDS)
        began = time.thread_time()
        decided = gates[shard].submit(tenant, 300.0, EPOCH + now_s)
        spent[shard] += time.thread_time() - began
        _hold(ends, shard, decided, now_s)
    return {"rate": rate, "cpu_s_per_s": [each / seconds for each in spent]}


def _hold(ends: list[tuple[float, int, str]], shard: int, decided: Decided, now_s: float) -> None:
    for fact in decided.dispatched:
        heappush(ends, (now_s + 1.0, shard, fact.id))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded_pool", description=__doc__)
    parser.add_argument("--only", default="", help="only the scenes with this text in their names")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--workers", type=int, default=Size().workers)
    parser.add_argument("--slots", type=int, default=Size().slots, help="of each worker")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, help="invocations a second: the CPU of each shard instead")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.rate:
        found = shard_cpu(options.rate, min(options.seconds, 5.0), options.seed)
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    size = Size(options.workers, options.slots)
    chosen = [scene for scene in scenes() if options.only in scene.name]
    rows = [compare(scene, options.seconds, options.seed, size) for scene in chosen]
    if options.json:
        sys.stdout.write(json.dumps([asdict(row) for row in rows]) + "\n")
        return 0
    title = f"{SHARDS} shards beside one, {size.workers} workers with {size.slots} slots; aim for shares: {TARGET:.0%}"
    table = Table(title=title, title_justify="left", box=None)
    for column in ("", "shares", "served", "quiet P50, s", "quiet P99, s", "reports/s", "most running"):
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        quiet = [f"{one:.2f} → {several:.2f}" for one, several in (row.quiet_p50_s, row.quiet_p99_s)]
        waits = quiet if any(row.quiet_p99_s) else ["", ""]
        reports = f"{row.reports_per_s[0]:.1f} → {row.reports_per_s[1]:.1f}"
        running = f"{row.most_running} of {size.slots}"
        table.add_row(row.scene, f"{row.shares:.1%}", f"{row.served:.3f}", *waits, reports, running)
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

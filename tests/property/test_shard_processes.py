"""Many processes that decide for one shard, each with its own fold of the log: the shares are those of one process."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from random import Random

import pytest

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import Accept, Command, End, call_id
from dispatcher.model.facts import Dispatched, Ended, Entry
from dispatcher.shard.codec import decode_entry, encode_entry
from dispatcher.shard.shard import Shard
from tests.support.world.lone_shard import MODEL, T0, report

TENANTS = tuple(f"t{number:02}" for number in range(30))
WEIGHTS = {name: (1.0, 2.0, 4.0)[number % 3] for number, name in enumerate(TENANTS)}
RATES_PER_S = {name: (0.0, 0.0, 20.0)[number % 3] for number, name in enumerate(TENANTS)}
SLOTS = 24
ARRIVALS = 3_000
TOKENS = (40, 100, 300)


class Processes:
    """A log, and processes that append to it. A process that loses a position folds the entry and decides again."""

    def __init__(self, count: int, random: Random) -> None:
        self.random = random
        self.log: list[bytes] = []
        self.shards = [Shard() for _ in range(count)]
        self.lost = 0

    def do(self, process: int, command: Command, now: float) -> tuple[object, ...]:
        """Decide in one process, at times while another wins the position. Return the facts of the entry."""
        shard = self.shards[process]
        self._catch_up(shard)
        if len(self.shards) > 1 and self.random.random() < 0.2:
            shard.decide([command], now)
            shard.rollback()
            self.lost += 1
        _, facts = shard.decide([command], now)
        if not facts:
            shard.confirm()
            return ()
        entry = Entry(shard.position, shard.at, f"p{process}", "", 0, facts)
        shard.confirm(entry)
        self.log.append(encode_entry(entry))
        return facts

    def _catch_up(self, shard: Shard) -> None:
        for data in self.log[shard.position :]:
            shard.fold(decode_entry(data))


def skewed(random: Random) -> Iterator[tuple[str, float, int]]:
    """A few tenants send most calls. Yields the tenant, the estimate and the tokens that it turns out to be."""
    harmonic = list(accumulate(1.0 / rank for rank in range(1, len(TENANTS) + 1)))
    while True:
        tenant = random.choices(TENANTS, cum_weights=harmonic)[0]
        yield tenant, random.choice((50.0, 100.0, 400.0)), random.choice(TOKENS)


@cache
def play(processes: int, *, shuffled: bool) -> tuple[list[Dispatched], Counter[str], int]:
    """Send two calls for each that ends, through random processes. `shuffled`: arrivals overtake each other.

    Return the dispatches, the tokens that each tenant was served, and how many appends were lost.
    """
    random, route = Random(7), Random(processes)
    gates = Processes(processes, Random(f"{processes} losses"))
    gates.do(0, report("w", SLOTS, capacity_per_s=2_000.0), T0)
    traffic, running, tokens = skewed(random), deque[tuple[str, int]](), dict[str, int]()
    dispatched: list[Dispatched] = []
    served: Counter[str] = Counter()
    tenant_of: dict[str, str] = {}

    def do(command: Command, now: float) -> None:
        for fact in gates.do(route.randrange(processes), command, now):
            if isinstance(fact, Dispatched):
                dispatched.append(fact)
                running.append((fact.id, fact.attempt))
            elif isinstance(fact, Ended):
                served[tenant_of[fact.id]] += fact.input_tokens

    accepts = []
    for number in range(ARRIVALS):
        tenant, cost, true = next(traffic)
        name = call_id("p", number + 1)
        tenant_of[name], tokens[name] = tenant, true
        accepts.append(
            Accept(
                name,
                0,
                "p",
                CallTerms(tenant, MODEL, cost, T0 + 1e6, False, "", ""),
                TenantConfig(1, WEIGHTS[tenant], RATES_PER_S[tenant], 200.0, "standard", 100_000),
            )
        )
    if shuffled:
        places = {id(accept): number + route.uniform(0.0, processes) for number, accept in enumerate(accepts)}
        accepts.sort(key=lambda accept: places[id(accept)])
    for number, accept in enumerate(accepts):
        now = T0 + 0.05 * number
        do(accept, now)
        if number % 2 and len(running) >= SLOTS:
            name, attempt = running.popleft()
            do(End(name, attempt, "done", tokens[name], 0), now)
    return dispatched, served, gates.lost


@pytest.mark.parametrize("processes", [4, 20])
def test_in_the_same_order_of_arrival_the_shares_are_the_same_to_the_token(processes: int) -> None:
    alone, served_alone, _ = play(1, shuffled=False)
    together, served_together, lost = play(processes, shuffled=False)
    assert lost > ARRIVALS / 10
    assert together == alone
    assert served_together == served_alone


@pytest.mark.parametrize("processes", [4, 20])
def test_in_another_order_of_arrival_the_shares_differ_by_less_than_one_percent(processes: int) -> None:
    """Tenant by tenant. Besides, the two calls that just ended or just did not, as the run is cut."""
    _, served_alone, _ = play(1, shuffled=False)
    _, served_together, _ = play(processes, shuffled=True)
    for tenant in TENANTS:
        off = abs(served_together[tenant] - served_alone[tenant])
        assert off <= 0.01 * served_alone[tenant] + 2 * TOKENS[-1], tenant

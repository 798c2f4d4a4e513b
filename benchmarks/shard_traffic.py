"""Steady traffic on a shard: its commands, and the entries that they become. Used by benchmarks of the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from dispatcher.model.call import TenantConfig
from dispatcher.model.commands import Accept, Command, End, Offer, Report
from dispatcher.shard.alone import LoneGate
from dispatcher.shard.codec import encode_entry
from dispatcher.shard.shard import Shard

NOW = 1_800_000_000.0
BATCH = 500
"""Commands of an entry while the traffic is set up."""


@dataclass(frozen=True)
class Names:
    """The names in the facts. Their length is what an entry's size depends on."""

    tenant: str
    app: str
    model: str
    worker: str
    process: str


SHORT = Names("tenant", "", "llama", "w", "p8f3k2m9x1q4")
LONGEST = Names("t" * 58, "a" * 64, "m" * 64, "w" * 60, "p8f3k2m9x1q4")
"""With a number behind the tenant and the worker."""


class Traffic:
    """A shard under load: `leases` calls hold slots of `workers`; each new call begins at once, as the oldest ends."""

    def __init__(
        self, *, tenants: int = 20, workers: int = 1, leases: int = 64, slots: int = 0, names: Names = SHORT
    ) -> None:
        """`slots`: of all workers together; 0 is enough for all calls that ever run at once."""
        self.gate = LoneGate(leader="10.0.123.245:8472", epoch=3)
        self.gate.unnamed = TenantConfig(1, 1.0, 50.0, 5000.0, "standard", 100_000)
        self.shard = self.gate.shard
        self._names, self._tenants = names, tenants
        self._random = Random(1)
        self._running: deque[Offer] = deque()
        self._turns = count()
        self._now = NOW
        each = -(-(slots or leases + BATCH) // workers)
        self.write([self._report(number, each) for number in range(workers)])
        self.arrive(leases)

    def arrive(self, calls: int) -> None:
        """Let calls arrive that begin, or wait, without one that ends."""
        for start in range(0, calls, BATCH):
            self.write([self._accept() for _ in range(min(BATCH, calls - start))])

    def end(self, calls: int) -> None:
        """Let the oldest running calls end."""
        for start in range(0, calls, BATCH):
            self.write([self._end() for _ in range(min(BATCH, calls - start))])

    def entry(self, commands: int) -> bytes:
        """Return the next entry, of commands that are ends and arrivals in turn."""
        turns = [next(self._turns) % 2 for _ in range(commands)]
        return self.write([self._end() if turn else self._accept() for turn in turns])

    def write(self, commands: Sequence[Command]) -> bytes:
        self._now = round(self._now + self._random.expovariate(100), 3)
        outcomes, _, _, entry = self.gate.decide(*commands, now=self._now)
        self._running += [outcome for outcome in outcomes if isinstance(outcome, Offer)]
        if entry is None:
            raise RuntimeError("the commands change nothing")
        return encode_entry(entry._replace(writer=f"{self._names.process}/{entry.position}"))

    def _accept(self) -> Accept:
        names = self._names
        return self.gate.new_call(
            f"{names.tenant}{self._random.randrange(self._tenants)}",
            cost=round(self._random.lognormvariate(6, 1), 1),
            deadline_at=round(self._now + self._random.uniform(20, 300), 3),
            app=names.app,
            process=names.process,
            floor=max(0, self.gate.sent - 1000),
            model=names.model,
        )

    def _end(self) -> End:
        oldest = self._running.popleft()
        read, generated = (int(self._random.lognormvariate(5.5, 1)) for _ in range(2))
        first_token_s = round(self._random.uniform(0.05, 0.5), 3)
        return End(oldest.id, oldest.attempt, "done", read, generated, first_token_s=first_token_s)

    def _report(self, number: int, slots: int) -> Report:
        return Report(
            worker=f"{self._names.worker}{number}",
            url=f"http://10.0.123.{number % 250}:8471",
            model=self._names.model,
            slots=slots,
            context_tokens=32_768,
            bytes_per_token=131_072.0,
            service_per_s=2_000.0,
            draining=False,
            kv_use=0.5,
            queue_length=0,
            live=(),
        )


def loaded_shard(tenants: int, waiting: int, running: int = 1024) -> Shard:
    """Return a shard with tenants that were served just now, calls that run, and calls that wait."""
    traffic = Traffic(tenants=tenants, leases=0, slots=running)
    for _ in range(0, tenants, running):
        traffic.arrive(running)
        traffic.end(running)
    traffic.arrive(running + waiting)
    return traffic.shard

"""The gate in memory: one shard of the gate (dispatcher/shard) without a log, and slots that are those of one worker.

The decisions are the production's: commands go in, facts come out. Each decision counts as written at once, so nothing
is encoded and nothing is undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import Accept, Cancel, Command, End, Outcome, Report, call_id
from dispatcher.model.facts import Dispatched, Entry, Fact
from dispatcher.policies.clocks import LEAD_MAX, Share
from dispatcher.policies.tiers import Tier
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from headgate.simulator.gates.spec import UNNAMED_TENANT, GateTenant

EPOCH_S = 1e6
"""The gate's time when a run begins: later than any bucket takes to fill, as on a real clock."""
PROCESS = "simulator"
WORKER = "w"
MODEL = "m"
WAITING_MAX = 1_000_000_000


class Decided(NamedTuple):
    outcome: Outcome
    facts: tuple[Fact, ...]

    @property
    def dispatched(self) -> list[Dispatched]:
        return [fact for fact in self.facts if type(fact) is Dispatched]


class ShardGate:
    """`now` in Unix seconds; a time before that of the last decision counts as that one."""

    unnamed = UNNAMED_TENANT
    """The configuration of a tenant that has none."""

    def __init__(self, settings: ShardSettings, slots: int, *, now: float = EPOCH_S) -> None:
        self.shard = Shard(settings)
        self.slots = slots
        self.capacity_per_s = self.kv_use = 0.0
        self.sent = 0
        self._tenants: dict[str, tuple[int, GateTenant]] = {}
        self.report(now)

    @property
    def waiting(self) -> int:
        return self.shard.state.waiting

    @property
    def running(self) -> int:
        return len(self.shard.state.workers[WORKER].running)

    @property
    def stranded(self) -> int:
        """Calls that wait while slots are free and no call runs, the end of which would dispatch them."""
        return 0 if self.running or not self.slots else self.waiting

    def set_tenant(self, name: str, tenant: GateTenant) -> None:
        """Configure a tenant from its next call on, as a process does that reads a newer version."""
        version = self._tenants[name][0] + 1 if name in self._tenants else 1
        self._tenants[name] = version, tenant

    def report(self, now: float) -> Decided:
        """Report the worker: its slots, its measured capacity (0: unknown) and the use of its KV cache."""
        return self.do(
            Report(WORKER, "", MODEL, self.slots, 0, 0.0, self.capacity_per_s, False, self.kv_use, 0, ()), now
        )

    def set_slots(self, slots: int, now: float) -> Decided:
        self.slots = slots
        return self.report(now)

    def set_capacity(self, capacity_per_s: float, now: float) -> Decided:
        self.capacity_per_s = capacity_per_s
        return self.report(now)

    def next_name(self) -> str:
        """Return the id of the call that will be sent next."""
        return call_id(PROCESS, self.sent + 1)

    def accept(
        self,
        tenant: str,
        cost: float,
        now: float,
        *,
        deadline_at: float = inf,
        app: str = "",
        interaction: str = "",
    ) -> Decided:
        """Send a call with an estimated cost in service units."""
        name, sequence = self.next_name(), self.sent + 1
        self.sent = sequence
        version, config = self._tenants.get(tenant) or (0, self.unnamed)
        share = config.share
        command = Accept(
            name,
            sequence,
            PROCESS,
            CallTerms(tenant, MODEL, cost, deadline_at, False, app, interaction),
            TenantConfig(
                version, share.weight, share.rate_per_s, share.burst, config.tier or Tier.STANDARD, config.queue_max
            ),
        )
        return self.do(command, now)

    def end(self, name: str, outcome: str, input_tokens: int, output_tokens: int, now: float) -> Decided:
        """End a running call. Raises KeyError for a call that is not here."""
        attempt = self.shard.state.calls[name].attempt
        return self.do(End(name, attempt, outcome, input_tokens, output_tokens), now)

    def cancel(self, name: str, now: float) -> Decided:
        return self.do(Cancel(name, "cancelled"), now)

    def do(self, command: Command, now: float) -> Decided:
        shard = self.shard
        outcomes, facts = shard.decide((command,), now)
        shard.confirm(Entry(shard.position, shard.at, "", "", 0, facts) if facts else None)
        return Decided(outcomes[0], facts)

    def next_tick(self) -> float:
        """Return when a Tick has something to decide (Unix seconds); infinity if never."""
        return self.shard.next_tick()


class CostGate(ShardGate):
    """A gate for calls with a cost in any unit instead of tokens. Its queues have no bound."""

    unnamed = GateTenant(queue_max=WAITING_MAX)

    def __init__(self, order: str, slots: int, *, lead_max: float = LEAD_MAX, now: float = EPOCH_S) -> None:
        self.ended_cost = 0.0
        super().__init__(ShardSettings(order=order, lead_max=lead_max, service=self._service), slots, now=now)

    def set_shares(self, shares: Mapping[str, Share]) -> None:
        for name, share in shares.items():
            self.set_tenant(name, GateTenant(share, queue_max=WAITING_MAX))

    def settle(self, name: str, cost: float, now: float) -> Decided:
        """End a running call at its true cost."""
        self.ended_cost = cost
        return self.end(name, "done", 0, 0, now)

    def _service(self, input_tokens: int, output_tokens: int) -> float:
        return self.ended_cost

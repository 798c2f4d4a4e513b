"""A gate alone: one shard without a log, without a network and without processes, in the caller's time.

    submit, finish, cancel, report ──▶ decide(commands) ──▶ outcomes, facts, news

The decisions are the production's, and each counts as written at once. The simulator, tests and benchmarks use this
gate. It encodes nothing: `Decided.entry` is what a log would get.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import Accept, Cancel, Command, End, Outcome, Report, call_id
from dispatcher.model.facts import Dispatched, Entry, Fact
from dispatcher.policies.clocks import LEAD_MAX, Share
from dispatcher.policies.tiers import Tier
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.steps import News

EPOCH = 1e6
"""Unix seconds when a gate begins: later than any bucket takes to fill, as on a real clock."""
PROCESS, WORKER, MODEL = "p", "w", "m"
_WAITING_MAX = 1_000_000_000


class Decided(NamedTuple):
    """`entry`: None if nothing changed."""

    outcomes: Sequence[Outcome]
    facts: tuple[Fact, ...]
    news: Sequence[News] = ()
    entry: Entry | None = None

    @property
    def outcome(self) -> Outcome:
        return self.outcomes[0]

    @property
    def dispatched(self) -> list[Dispatched]:
        return [fact for fact in self.facts if type(fact) is Dispatched]


class LoneGate:
    """`now`: Unix seconds of the last command. A time before that of the last decision counts as that one.

    `leader`, `epoch`: written into each entry.
    """

    def __init__(
        self,
        settings: ShardSettings | None = None,
        *workers: Report,
        now: float = EPOCH,
        leader: str = "",
        epoch: int = 0,
    ) -> None:
        self.shard = Shard(settings)
        self.now = now
        self.sent = 0
        """The number of calls so far, of all processes."""
        self._leader, self._epoch = leader, epoch
        self._configs: dict[str, TenantConfig] = {}
        self.unnamed = TenantConfig(0, 1.0, 0.0, 0.0, Tier.STANDARD, _WAITING_MAX)
        """The configuration of a tenant that has none."""
        for worker in workers:
            self.decide(worker)

    def decide(self, *commands: Command, now: float | None = None) -> Decided:
        """Decide the commands for one entry."""
        if now is not None:
            self.now = now
        shard = self.shard
        outcomes, facts = shard.decide(commands, self.now)
        entry = Entry(shard.position, shard.at, "", self._leader, self._epoch, facts) if facts else None
        return Decided(outcomes, facts, shard.confirm(entry), entry)

    def do(self, command: Command, now: float | None = None) -> Outcome:
        """Decide a command, and return its outcome alone."""
        return self.decide(command, now=now).outcomes[0]

    def set_tenant(
        self, name: str, share: Share, *, tier: str = Tier.STANDARD, waiting_max: int = _WAITING_MAX
    ) -> None:
        """Configure a tenant from its next call on, as a process does that reads a newer version."""
        version = self._configs[name].version + 1 if name in self._configs else 1
        self._configs[name] = TenantConfig(version, share.weight, share.rate_per_s, share.burst, tier, waiting_max)

    def next_name(self, process: str = PROCESS) -> str:
        """Return the id of the call that will be sent next."""
        return call_id(process, self.sent + 1)

    def new_call(
        self,
        tenant: str,
        cost: float,
        *,
        deadline_at: float = inf,
        app: str = "",
        interaction: str = "",
        process: str = PROCESS,
        **fields: Any,
    ) -> Accept:
        """Return the command of the next call, with an estimated cost in service units.

        `fields`: others of Accept, of its terms, or of its tenant's configuration.
        """
        name = self.next_name(process)
        self.sent += 1
        terms = CallTerms(tenant, MODEL, cost, deadline_at, False, app, interaction)
        call = Accept(name, self.sent, process, terms, self._configs.get(tenant, self.unnamed))
        return with_fields(call, **fields) if fields else call

    def submit(self, tenant: str, cost: float, now: float | None = None, **fields: Any) -> Decided:
        """Send a call: new_call has the fields."""
        return self.decide(self.new_call(tenant, cost, **fields), now=now)

    def finish(
        self,
        name: str,
        input_tokens: int,
        output_tokens: int,
        now: float | None = None,
        *,
        outcome: str = "done",
        cached_tokens: int = 0,
        adapter_loaded: bool = False,
    ) -> Decided:
        """End a running call. Raises KeyError for a call that is not here."""
        attempt = self.shard.state.calls[name].attempt
        end = End(name, attempt, outcome, input_tokens, output_tokens, cached_tokens=cached_tokens)
        return self.decide(end._replace(adapter_loaded=adapter_loaded), now=now)

    def cancel(self, name: str, now: float | None = None) -> Decided:
        return self.decide(Cancel(name, "cancelled"), now=now)

    @property
    def waiting(self) -> int:
        return self.shard.state.waiting

    def next_tick(self) -> float:
        """Return when a Tick has something to decide (Unix seconds); infinity if never."""
        return self.shard.next_tick()


def with_fields(call: Accept, **fields: Any) -> Accept:
    """Return the command with other fields: its own, of its terms, or of its tenant's configuration.

    Raises ValueError for another name.
    """
    own, terms, config = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for name, value in fields.items():
        if name in _OF_ACCEPT:
            own[name] = value
        elif name in _OF_TERMS:
            terms[name] = value
        elif name in _OF_CONFIG:
            config[name] = value
        else:
            raise ValueError(f"no field of a call: {name}")
    if config:
        own["config"] = call.config._replace(**config)
    if terms:
        own["terms"] = call.terms._replace(**terms)
    return call._replace(**own)


_OF_ACCEPT, _OF_TERMS, _OF_CONFIG = (frozenset(kind._fields) for kind in (Accept, CallTerms, TenantConfig))


def report(
    worker: str = WORKER, slots: int = 1, *, model: str = MODEL, kv_use: float = 0.0, capacity_per_s: float = 0.0
) -> Report:
    """Return the report of a worker that runs well. `capacity_per_s`: as measured; 0 while it is unknown."""
    return Report(worker, f"http://{worker}", model, slots, 0, 1.0, capacity_per_s, False, kv_use, 0, ())


class CostGate(LoneGate):
    """A gate before one worker, for calls with a cost in any unit instead of tokens."""

    def __init__(self, order: str, slots: int, *, lead_max: float = LEAD_MAX, now: float = EPOCH) -> None:
        self.slots, self.capacity_per_s, self.ended_cost = slots, 0.0, 0.0
        settings = ShardSettings(order=order, lead_max=lead_max, service=lambda *_: self.ended_cost)
        super().__init__(settings, report(slots=slots), now=now)

    def set_shares(self, shares: Mapping[str, Share]) -> None:
        for name, share in shares.items():
            self.set_tenant(name, share)

    def set_slots(self, slots: int, now: float) -> Decided:
        self.slots = slots
        return self.decide(report(slots=slots, capacity_per_s=self.capacity_per_s), now=now)

    def set_capacity(self, capacity_per_s: float, now: float) -> Decided:
        self.capacity_per_s = capacity_per_s
        return self.set_slots(self.slots, now)

    def settle(self, name: str, cost: float, now: float) -> Decided:
        """End a running call at its true cost."""
        self.ended_cost = cost
        return self.finish(name, 0, 0, now)

    @property
    def running(self) -> int:
        return len(self.shard.state.workers[WORKER].running)

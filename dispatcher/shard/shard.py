"""A shard: a part of a pool with one order. It is a deterministic state machine over the entries of its log.

    decide(commands) ──▶ facts, applied tentatively ──append──▶ confirm       this process wrote the position
                                                        └─────▶ rollback      another did: fold its entry, decide again
    fold(entry)          another's entry

A process that writes entry n has folded all entries before n. So every decision is made on the exact state, whichever
process makes it. The read models, a shard's tenants and their usage, are made from its state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter

from dispatcher.model.commands import Command, Outcome, Over
from dispatcher.model.errors import LogCorrupt
from dispatcher.model.facts import Entry, Fact, Returned, WorkerSet
from dispatcher.model.usage import TenantRow, UsageRow
from dispatcher.policies.orders.queues import Tenant
from dispatcher.shard.decide import decide
from dispatcher.shard.fold import Decision, fold
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.state.forgetting import forget
from dispatcher.shard.state.records import Usage
from dispatcher.shard.state.state import State
from dispatcher.shard.steps import News
from dispatcher.shard.waits.estimate import CHANGED_MOST, observe, sum_changed


class Shard:
    def __init__(self, settings: ShardSettings | None = None) -> None:
        self.state = State(settings or ShardSettings())
        self.leader = ""
        self.epoch = 0
        self._decision: Decision | None = None
        self._at_before = 0.0

    @property
    def position(self) -> int:
        """The position of the next entry."""
        return self.state.position

    @property
    def at(self) -> float:
        """The time of the decision that is not written yet, otherwise of the last entry (Unix seconds)."""
        return self.state.at

    def decide(self, commands: Sequence[Command], now: float) -> tuple[list[Outcome], tuple[Fact, ...]]:
        """Return an outcome for each command, and the facts of the next entry. There are no facts if nothing changes.

        The facts are applied tentatively: `confirm` or `rollback` must follow. If `now` is before the time of the last
        entry, that time is used.
        """
        decision = self.begin(now)
        outcomes = decide(decision, commands)
        return outcomes, tuple(decision.facts)

    def begin(self, now: float) -> Decision:
        """Begin a decision, and decide nothing yet. `confirm` or `rollback` must follow."""
        if self._decision is not None:
            raise RuntimeError("the decision before is neither confirmed nor rolled back")
        state = self.state
        self._at_before, state.at, state.undo = state.at, max(state.at, now), []
        self._decision = Decision(state)
        state.durable_ends.clear()
        state.waits.ended.clear()
        state.waits.is_summed = False
        return self._decision

    @property
    def decision(self) -> Decision | None:
        """The decision that is neither confirmed nor rolled back."""
        return self._decision

    def durable_ends(self) -> list[tuple[Over, int]]:
        """Return the ends of durable calls in the decision that is not written yet, each with the number of the call's
        last attempt (0: none)."""
        return list(self.state.durable_ends)

    def lost_attempts(self) -> list[Over]:
        """Return the attempts of durable calls that are returned as "lost" in the decision that is not written yet."""
        calls, facts = self.state.calls, self._decision.facts if self._decision is not None else ()
        lost = (fact for fact in facts if isinstance(fact, Returned) and fact.reason == "lost")
        return [
            Over(fact.id, fact.attempt, "lost") for fact in lost if fact.id in calls and calls[fact.id].terms.durable
        ]

    def confirm(self, entry: Entry | None = None) -> list[News]:
        """Keep the decision, which is now in the log as `entry` (None: it has no facts).

        Return the news for processes that hold calls.
        """
        decision = self._take_decision()
        if entry is None:
            self.state.at = self._at_before
        else:
            self._advance(entry)
        return decision.news

    def rollback(self) -> None:
        """Restore the state from before the decision, because the decision was not written."""
        self._take_decision(undo=True)
        self.state.at = self._at_before

    def fold(self, entry: Entry) -> list[News]:
        """Apply the next entry of the log, and return its news. After a LogCorrupt this shard must not be used
        again."""
        if entry.position != self.state.position:
            raise LogCorrupt(f"entry {entry.position} follows entry {self.state.position - 1}")
        if self._decision is not None:
            raise RuntimeError("a decision is neither confirmed nor rolled back")
        self._at_before, self.state.at = self.state.at, max(self.state.at, entry.at)
        self.state.waits.ended.clear()
        news: list[News] = []
        for fact in entry.facts:
            news += fold(self.state, fact)
        self._advance(entry)
        return news

    def next_tick(self) -> float:
        """Return when the next Tick has something to decide, in Unix seconds: the deadline of a waiting call, or the
        end of a worker's rest or retirement or of an order to load a model. Infinity if nothing is due."""
        state = self.state
        due = state.deadlines.next()
        return min(due, *(worker.changes_at for worker in state.changing.values())) if state.changing else due

    def fleet(self) -> list[WorkerSet]:
        return [worker.config for worker in self.state.workers.values()]

    def usage_rows(self) -> list[UsageRow]:
        """Return the totals of usage that the shard holds."""
        return [_usage_row(self.state, key, usage) for key, usage in self.state.usage.items()]

    def unsaved_usage(self) -> list[tuple[int, UsageRow]]:
        """Return (position of its last change, row) for each total that may not be projected yet, by position."""
        state = self.state
        return sorted(
            (
                (usage.position, _usage_row(state, key, usage))
                for key, usage in state.usage.items()
                if usage.position >= state.usage_saved
            ),
            key=itemgetter(0),
        )

    def tenant_rows(self) -> list[TenantRow]:
        reserved: defaultdict[str, float] = defaultdict(float)
        for worker in self.state.workers.values():
            for call in worker.running.values():
                reserved[call.tenant.name] += call.cost
        return [_tenant_row(self.state, tenant, reserved[tenant.name]) for tenant in self.state.tenants.values()]

    def _advance(self, entry: Entry) -> None:
        self.leader, self.epoch = entry.leader, entry.epoch
        self.state.position = entry.position + 1
        self.state.durable_ends.clear()
        observe(self.state, entry.facts, self.state.at - self._at_before)
        forget(self.state, self._at_before)
        sum_changed(self.state, most=CHANGED_MOST)
        self.state.waits.is_summed = False

    def _take_decision(self, *, undo: bool = False) -> Decision:
        decision, self._decision = self._decision, None
        if decision is None:
            raise RuntimeError("there is no decision")
        state = self.state
        steps, state.undo = state.undo or [], None
        if undo:
            for inverse, arguments in reversed(steps):
                inverse(*arguments)
            state.flush()
        return decision


def _usage_row(state: State, key: tuple[str, str, int], usage: Usage) -> UsageRow:
    requests, read, generated, service, _, cached = usage
    return UsageRow(*key, requests, read, generated, service, state.position, cached)


def _tenant_row(state: State, tenant: Tenant, reserved: float) -> TenantRow:
    return TenantRow(
        tenant=tenant.name,
        version=tenant.config.version,
        tier=tenant.config.tier,
        weight=tenant.config.weight,
        rate_per_s=tenant.config.rate_per_s,
        burst=tenant.config.burst,
        waiting=tenant.waiting + tenant.suspended,
        running=tenant.running,
        reserved=reserved,
        spent=tenant.spent,
        clocks=tenant.clocks,
        credit=_credit(state, tenant),
        at=state.at,
        position=state.position,
    )


def _credit(state: State, tenant: Tenant) -> float | None:
    """Return the service units left in the bucket, (now - tat) x rate, at most burst (clocks.py)."""
    if not tenant.config.rate_per_s or len(tenant.clocks) != 2:
        return None
    return min(tenant.config.burst, (state.at - tenant.clocks[0]) * tenant.config.rate_per_s)

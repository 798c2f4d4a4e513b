"""A model engine with KV blocks, batch slots and host memory for swaps, which carries out the plans of admission.py.

A step removes expired requests, runs a pass of admissions, and then adds a token to each running request. Blocks are
taken as tokens come. If none is free, the engine natively evicts the last request of `sort_by_protection`. `check`
holds the invariants of the model; plan_rules.py holds what must be true of a plan when it is made.

The ledger is a literal account of what the engine delivered, each token once, and of the resulting counters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from dispatcher.policies.tiers import Tier
from gpu_worker.policies.admission import Admission, AdmissionPlan, Obstacle
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.policies.fairness.tiered import TieredQueue
from gpu_worker.policies.preemption import Calibration, Eviction, Resident, Strategy, sort_by_protection
from gpu_worker.policies.tiers import TierSettings


class Ledger:
    """VTC's counters in each tier, by Algorithm 2 read literally: lines 8 to 13 when a tenant joins, 24 and 30 for its
    charges."""

    def __init__(self) -> None:
        self.received: dict[str, list[int]] = {}
        self.given: dict[Tier, float] = {}
        self.counters: dict[tuple[Tier, str], float] = {}
        self._queues: dict[Tier, dict[str, int]] = {tier: {} for tier in Tier}
        self._last_left: dict[Tier, str] = {}
        self._got: dict[str, int] = {}
        """Output tokens by request, from its admission on."""
        self._fresh: set[str] = set()

    def enter_queue(self, request: QueueRequest) -> None:
        tier, tenant = request.tier, request.tenant
        queue = self._queues[tier]
        if tenant not in queue:
            level = min((self.counters[tier, other] for other in queue), default=None)
            if level is None and tier in self._last_left:
                level = self.counters[tier, self._last_left[tier]]
            self.counters[tier, tenant] = max(self.counters.get((tier, tenant), 0.0), level or 0.0)
        queue[tenant] = queue.get(tenant, 0) + 1

    def leave_queue(self, request: QueueRequest) -> None:
        queue = self._queues[request.tier]
        queue[request.tenant] -= 1
        if not queue[request.tenant]:
            del queue[request.tenant]
            self._last_left[request.tier] = request.tenant

    def admit(self, request: QueueRequest) -> None:
        self.leave_queue(request)
        if request.request_id in self._got:
            self._fresh.discard(request.request_id)
            return
        self._got[request.request_id] = 0
        self._fresh.add(request.request_id)
        self._give(request, request.input_tokens, 0)

    def on_generated(self, request: QueueRequest, output_tokens: int) -> None:
        new = output_tokens - self._got[request.request_id]
        assert new == 1, "an evicted request keeps its output"
        self._got[request.request_id] = output_tokens
        self._give(request, 0, new)

    def undo_admit(self, request: QueueRequest) -> None:
        if request.request_id in self._fresh:
            del self._got[request.request_id]
            self._give(request, -request.input_tokens, 0)
        queue = self._queues[request.tier]
        queue[request.tenant] = queue.get(request.tenant, 0) + 1

    def check(self, policy: TieredQueue) -> None:
        got = {tenant: [each.input_tokens, each.output_tokens] for tenant, each in policy.received.items()}
        for tenant in {*got, *self.received}:
            assert got.get(tenant, [0, 0]) == self.received.get(tenant, [0, 0])
        for each in policy.received.values():
            assert each.service == each.input_tokens + 2 * each.output_tokens
        assert {tier: policy.shares.given(tier) for tier in self.given} == self.given
        assert policy.shares.total == sum(self.given.values())
        counters = {(tier, tenant): policy._tiers[tier].counter(tenant) for tier, tenant in self.counters}
        assert counters == self.counters

    def _give(self, request: QueueRequest, input_tokens: int, output_tokens: int) -> None:
        service = input_tokens + 2 * output_tokens
        tokens = self.received.setdefault(request.tenant, [0, 0])
        tokens[0] += input_tokens
        tokens[1] += output_tokens
        self.given[request.tier] = self.given.get(request.tier, 0.0) + service
        self.counters[request.tier, request.tenant] += service / request.weight


CALIBRATION = Calibration(1.0, 1e3, 1e3, 0.001, 0.0, 1e-3, 1e-4, 0.5)
"""One byte per token. A swap is cheaper than a recompute from 12 tokens on; a step takes 0.5 s."""


@dataclass(frozen=True)
class Machine:
    blocks: int = 12
    block_tokens: int = 4
    slots: int = 4
    swap_bytes: float = 0.0


@dataclass(eq=False)
class Live:
    """A request in the model. `output_tokens`: its final length. `evicted`, `native`: evictions by the policy and by
    the engine. `host_bytes`: swapped-out bytes. `entered`: admitted in the last pass, with no step since."""

    request: QueueRequest
    output_tokens: int
    generated: int = 0
    blocks: int = 0
    host_bytes: float = 0.0
    evicted: int = 0
    native: int = 0
    admissions: int = 0
    entered: bool = False

    @property
    def tokens(self) -> int:
        return self.request.input_tokens + self.generated


class BlockModel:
    """The KvBudget of its own admissions. `seen` receives each plan before it is carried out, and None at the end."""

    def __init__(
        self,
        settings: TierSettings | None = None,
        machine: Machine | None = None,
        calibration: Calibration = CALIBRATION,
        seen: Callable[[BlockModel, AdmissionPlan | None], None] = lambda model, plan: None,
    ) -> None:
        self.machine = machine or Machine()
        self.policy = TieredQueue(lambda: make_policy("vtc"), settings)
        self.settings = self.policy.settings
        self.admission = Admission(self.policy, calibration)
        self.now_s = 0.0
        self.blocks_free = self.machine.blocks
        self.step_tokens = None
        self.swap_bytes_free = self.machine.swap_bytes
        self.waiting: dict[str, Live] = {}
        self.running: dict[str, Live] = {}
        self.ended: dict[str, str] = {}
        """Reasons by request: finished, aborted, expired, dropped, exhausted."""
        self.admitted: list[str] = []
        self.evictions = self.native = 0
        self.ledger = Ledger()
        self._seen = seen
        self._arrivals = 0

    # ── The budget for admissions ──────────────────────────────────────────────────────────────────────────────

    @property
    def blocks_total(self) -> int:
        return self.machine.blocks

    @property
    def slots_free(self) -> int:
        return self.machine.slots - len(self.running)

    def blocks_needed(self, request_id: str) -> int:
        return self.blocks_of(self.waiting[request_id].tokens)

    def obstacle(self, request_id: str) -> Obstacle | None:
        return None

    def adapter_holders(self, request_id: str) -> Sequence[Sequence[str]]:
        """No request has an adapter."""
        return ()

    def blocks_held_by(self, tiers: Collection[Tier]) -> int:
        return sum(live.blocks for live in self.running.values() if live.request.tier in tiers)

    def residents(self, wanted: Callable[[str], bool]) -> list[Resident]:
        return [self.resident(live) for name, live in self.running.items() if not live.entered and wanted(name)]

    def resident(self, live: Live) -> Resident:
        name, tier, preemptions = live.request.request_id, live.request.tier, live.evicted + live.native
        return Resident(name, tier, live.blocks, live.tokens, live.generated, preemptions)

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.machine.block_tokens)

    # ── Events ────────────────────────────────────────────────────────────────────────────────────────────────

    def arrive(self, request: QueueRequest, output_tokens: int) -> str | None:
        """Enqueue a request, and return its id; None if it could never fit."""
        most = self.admission.blocks_max(request.tier, self.blocks_total)
        if self.blocks_of(request.input_tokens + output_tokens) > most:
            return None
        self._arrivals += 1
        request = replace(request, request_id=f"r{self._arrivals:05}", output_tokens_max=output_tokens)
        assert self.admission.enqueue(request, self.now_s)
        self.waiting[request.request_id] = Live(request, output_tokens)
        self.ledger.enter_queue(request)
        return request.request_id

    def pass_(self) -> list[str]:
        """Run a pass of admissions, and return the admitted requests."""
        self._clear_entered()
        self.expire()
        entered: list[str] = []
        while (plan := self.admission.next_plan(self)) is not None:
            self._seen(self, plan)
            for eviction in plan.evictions:
                self._evict(eviction)
            self._enter(plan.request.request_id)
            entered.append(plan.request.request_id)
        self._seen(self, None)
        return entered

    def expire(self) -> None:
        self.admission.begin_pass(self.now_s)
        for request_id in self.admission.pop_expired():
            self.remove(request_id, "expired")

    def step(self, *, at_once: bool = True) -> None:
        """Generate a token for each running request, reported `at_once` or one by one."""
        self._clear_entered()
        for live in self.by_protection():
            if live.request.request_id in self.running:
                self._grow(live)
        if at_once:
            self.policy.on_decoded(1)
        for request_id, live in list(self.running.items()):
            self.ledger.on_generated(live.request, live.generated + 1)
            live.generated += 1
            if not at_once:
                self.policy.on_generated(request_id, live.generated)
            if live.generated >= live.output_tokens:
                self.remove(request_id, "finished")

    def undo_admit(self, request_id: str) -> None:
        """Undo an admission of the last pass, before any step."""
        live = self._out(request_id)
        self.policy.undo_admit(request_id)
        self.ledger.undo_admit(live.request)
        live.admissions -= 1
        live.entered = False
        self.admitted.remove(request_id)
        self.waiting[request_id] = live

    def remove(self, request_id: str, how: str = "aborted") -> None:
        if request_id in self.running:
            self._out(request_id)
        else:
            live = self.waiting.pop(request_id)
            self.swap_bytes_free += live.host_bytes
            self.ledger.leave_queue(live.request)
        self.policy.remove(request_id)
        self.ended[request_id] = how

    def by_protection(self) -> list[Live]:
        tier_state = self.policy.tier_state
        order = sort_by_protection(
            map(self.resident, self.running.values()),
            self.policy.rank_of,
            lambda request_id: tier_state(request_id).protected(self.settings),
        )
        return [self.running[resident.request_id] for resident in order]

    def _clear_entered(self) -> None:
        for live in self.running.values():
            live.entered = False

    def _grow(self, live: Live) -> None:
        needed = self.blocks_of(live.tokens + 1) - live.blocks
        while needed > self.blocks_free:
            last = self.by_protection()[-1]
            last.native += 1
            self.native += 1
            self._preempt(last.request.request_id)
            if last is live:
                return
        live.blocks += needed
        self.blocks_free -= needed

    def _enter(self, request_id: str) -> None:
        live = self.waiting.pop(request_id)
        live.blocks = self.blocks_of(live.tokens)
        self.blocks_free -= live.blocks
        self.swap_bytes_free += live.host_bytes
        live.host_bytes = 0.0
        live.entered = True
        live.admissions += 1
        self.running[request_id] = live
        self.policy.admit(request_id)
        self.admitted.append(request_id)
        self.ledger.admit(live.request)

    def _evict(self, eviction: Eviction) -> None:
        self.evictions += 1
        request_id = eviction.resident.request_id
        if eviction.strategy is Strategy.DROP:
            self.remove(request_id, "exhausted" if eviction.exhausted else "dropped")
            return
        live = self.running[request_id]
        live.evicted += 1
        self._preempt(request_id)
        if eviction.strategy is Strategy.SWAP:
            live.host_bytes = self.admission.calibration.swap_bytes(live.tokens)
            self.swap_bytes_free -= live.host_bytes

    def _preempt(self, request_id: str) -> None:
        live = self._out(request_id)
        self.policy.preempt(request_id)
        self.ledger.enter_queue(live.request)
        self.waiting[request_id] = live

    def _out(self, request_id: str) -> Live:
        live = self.running.pop(request_id)
        self.blocks_free += live.blocks
        live.blocks = 0
        return live

    def check(self) -> None:
        """Check the invariants of the model."""
        assert self.blocks_free + sum(live.blocks for live in self.running.values()) == self.machine.blocks
        assert self.blocks_free >= 0
        assert all(not live.blocks for live in self.waiting.values()), "a waiting request holds no block"
        assert len(self.running) <= self.machine.slots
        held = sum(live.host_bytes for live in self.waiting.values())
        assert held + self.swap_bytes_free == self.machine.swap_bytes
        assert self.swap_bytes_free >= 0
        assert (self.policy.waiting, self.policy.running) == (len(self.waiting), len(self.running))
        assert not any(self.policy.holds(request_id) for request_id in self.ended)
        for live in (*self.waiting.values(), *self.running.values()):
            assert live.evicted <= self.settings.preemptions_max
        self.ledger.check(self.policy)

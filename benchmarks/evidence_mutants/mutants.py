"""The mutants: policies that are broken on purpose, each by replacing some attributes while it is applied.

A mutant exists only inside `applied`, in one process. None has a name that a configuration could select.
"""

# ruff: noqa: ARG001, ARG005 - a mutant has the parameters of what it replaces, and reaches into it

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dispatcher.model.commands import Tick
from dispatcher.policies import throttling
from dispatcher.policies.orders.interface import ORDERS
from dispatcher.policies.orders.registry import new_order
from dispatcher.policies.orders.two_clocks import TwoClocks, TwoClocksIndex
from dispatcher.shard.alone import EPOCH
from dispatcher.shard.settings import ShardSettings
from gpu_worker.policies.admission import Admission
from gpu_worker.policies.fairness import wsc
from gpu_worker.policies.fairness.baselines import FcfsPolicy, RequestsPerMinute
from gpu_worker.policies.fairness.registry import all_policies
from gpu_worker.policies.fairness.tiered import TieredQueue
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter
from gpu_worker.policies.preemption import Calibration
from gpu_worker.policies.shedding import Shedder
from gpu_worker.policies.tiers import TierShares, TierState
from headgate.evidence.qlm import waits
from headgate.simulator.engines.separate_prefill import SeparatePrefillEngine
from headgate.simulator.fleet.planners import plan

Changes = list[tuple[Any, str, Any]]
"""Objects, names of their attributes or keys, and the values for as long as the mutant is applied."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`experiments`: the beginnings of the names of those that it may change."""

    what: str
    experiments: tuple[str, ...]
    changes: Callable[[], Changes]


@contextmanager
def applied(mutant: Mutant | None) -> Iterator[None]:
    """Apply a mutant in this process, and undo it at the end. None: change nothing."""
    kept: Changes = []
    try:
        for owner, name, value in mutant.changes() if mutant is not None else ():
            kept.append((owner, name, _put(owner, name, value)))
        yield
    finally:
        for owner, name, value in reversed(kept):
            _put(owner, name, value)


_ABSENT = object()


def _put(owner: Any, name: str, value: Any) -> Any:
    """Set or remove a key or an attribute. Return what was there."""
    if isinstance(owner, dict):
        before = owner[name]
        owner[name] = value
        return before
    before = vars(owner).get(name, _ABSENT)
    if value is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)
    return before


# ── The counters of the engine's queue ───────────────────────────────────────────────────────────────────────────────


def _round_robin() -> Changes:
    counter = VirtualTokenCounter
    return [
        (counter, "_price", lambda self, record, tokens: 1.0 / record.request.weight),
        (counter, "_price_per_token", lambda self, record: 0.0),
    ]


def _no_lift() -> Changes:
    return [(VirtualTokenCounter, "_tenant_joins", lambda self, request: None)]


def _output_charge(part: float) -> Changes:
    price, per_token = VirtualTokenCounter._price, VirtualTokenCounter._price_per_token

    def lower(self: Any, record: Any, tokens: int) -> float:
        prompt = price(self, record, 0)
        return prompt + part * (price(self, record, tokens) - prompt)

    return [
        (VirtualTokenCounter, "_price", lower),
        (VirtualTokenCounter, "_price_per_token", lambda self, record: part * per_token(self, record)),
    ]


def _no_prompt_charge() -> Changes:
    return [(VirtualTokenCounter, "_charge_prompt", lambda self, record: None)]


def _no_weights() -> Changes:
    price, per_token = VirtualTokenCounter._price, VirtualTokenCounter._price_per_token
    return [
        (
            VirtualTokenCounter,
            "_price",
            lambda self, record, tokens: price(self, record, tokens) * record.request.weight,
        ),
        (
            VirtualTokenCounter,
            "_price_per_token",
            lambda self, record: per_token(self, record) * record.request.weight,
        ),
    ]


def _first_come() -> Changes:
    policies = all_policies()
    names = ("vtc", "vtc-predict", "vtc-oracle", "vtc-noisy", "wsc")
    return [(policies, name, replace(policies[name], make=lambda spec: FcfsPolicy(spec.service))) for name in names]


def _lcf_is_vtc() -> Changes:
    policies = all_policies()
    return [(policies, "lcf", replace(policies["lcf"], make=lambda spec: VirtualTokenCounter(spec.service)))]


def _one_more_a_minute() -> Changes:
    begin = RequestsPerMinute.__init__

    def more(self: Any, most: int, *rest: Any, **named: Any) -> None:
        begin(self, most + 1, *rest, **named)

    return [(RequestsPerMinute, "__init__", more)]


# ── The modelled engine ──────────────────────────────────────────────────────────────────────────────────────────────


def _slower_steps(factor: float) -> Changes:
    set_up = SeparatePrefillEngine._set_up

    def slower(self: Any) -> None:
        set_up(self)
        for part in ("_step_base_s", "_per_request_s", "_per_kv_token_s"):
            setattr(self, part, factor * getattr(self, part))

    return [(SeparatePrefillEngine, "_set_up", slower)]


def _half_the_pool() -> Changes:
    add_if_fits = SeparatePrefillEngine._add_if_fits

    def in_half(self: Any, request: Any, prompt: int) -> int | None:
        room = self.kv_tokens + prompt <= self.profile.pool_tokens / 2 or not self._kv.size
        return add_if_fits(self, request, prompt) if room else 0

    return [(SeparatePrefillEngine, "_add_if_fits", in_half)]


# ── The gate's order ─────────────────────────────────────────────────────────────────────────────────────────────────


def _credit_without_cap() -> Changes:
    join, charge = TwoClocks.join, TwoClocks.charge

    def without_cap(method: Callable[..., Any], self: Any, tenant: Any, *rest: Any, **named: Any) -> Any:
        kept = tenant.config
        tenant.config = kept._replace(burst=1e12)
        try:
            return method(self, tenant, *rest, **named)
        finally:
            tenant.config = kept

    return [
        (TwoClocks, "join", lambda self, *rest, **named: without_cap(join, self, *rest, **named)),
        (TwoClocks, "charge", lambda self, *rest, **named: without_cap(charge, self, *rest, **named)),
    ]


def _no_wake() -> Changes:
    return [
        (TwoClocksIndex, "_fill_buckets", lambda self, now: None),
        (ORDERS, "ratio+wake", partial(_order, "ratio")),
    ]


def _order(name: str, **settings: Any) -> Any:
    return new_order(name, lead_max=settings["lead_max"])


def _order_is(other: str) -> Callable[[], Changes]:
    return lambda: [(ORDERS, "bwfq", partial(_order, other))]


# ── Throttling and the labels of applications ────────────────────────────────────────────────────────────────────────


def _no_throttling() -> Changes:
    return [(throttling.Throttle, "check", lambda self, user, app, now_s, *, saturated, under_way: None)]


def _interactions_ignored() -> Changes:
    check = throttling.Throttle.check

    def ignore(self: Any, user: str, app: str, now_s: float, *, saturated: bool, under_way: bool) -> Any:
        return check(self, user, app, now_s, saturated=saturated, under_way=False)

    return [(throttling.Throttle, "check", ignore)]


def _labels_ignored() -> Changes:
    return [(wsc.WeightedServiceCounter, "_next_tenant", VirtualTokenCounter._next_tenant)]


# ── The plan of models ───────────────────────────────────────────────────────────────────────────────────────────────


def _no_plan() -> Changes:
    def tick(self: Any, now_s: float) -> None:
        self._planned_s = now_s
        self._gate._follow(self._gate._gate.decide(Tick(), now=EPOCH + now_s))

    return [(plan.ProductionPlanner, "_plan", tick)]


def _insertion_only() -> Changes:
    return [(plan, "_MOVES", 0)]


def _no_due_times() -> Changes:
    return [(plan, "ShardSettings", lambda **_: ShardSettings())]


def _equation_2_alone() -> Changes:
    fit = waits._fits

    def alone(job: tuple[str, int, int]) -> tuple[float, float]:
        equation_2, _ = fit(job)
        return equation_2, equation_2

    return [(waits, "_fits", alone)]


# ── Tiers and preemption ─────────────────────────────────────────────────────────────────────────────────────────────


def _no_floor() -> Changes:
    return [(TierShares, "owes", lambda self, tier, behind: False)]


def _no_aging() -> Changes:
    return [(TierState, "gained", lambda self, settings, now_s: 0.0)]


def _no_shedding() -> Changes:
    return [(Shedder, "sheds", lambda self, tier: False)]


def _no_reserve() -> Changes:
    return [(Admission, "_reserve", lambda self, blocks_total: 0)]


def _no_limit() -> Changes:
    return [(TierState, "exhausted", lambda self, settings: False)]


def _no_eviction() -> Changes:
    return [(TieredQueue, "may_preempt", lambda self: False), (TieredQueue, "precedence", lambda self, *_: None)]


def _linear_prefill() -> Changes:
    return [(Calibration, "prefill_s", lambda self, n: self.prefill_base_s + self.prefill_per_token_s * n)]


_ENGINE = ("vtc-",)
_GATE = ("bwfq-",)
_FLEET = ("qlm-",)
MUTANTS: Mapping[str, Mutant] = {
    "round robin": Mutant("VTC serves tenants in turn, request by request", (*_ENGINE, "fairserve"), _round_robin),
    "no lift": Mutant("VTC lifts no counter when a tenant joins", _ENGINE, _no_lift),
    "no output charge": Mutant("VTC charges no output token", (*_ENGINE, "fairserve"), lambda: _output_charge(0.0)),
    "half output charge": Mutant("VTC charges half of each output token", _ENGINE, lambda: _output_charge(0.5)),
    "no prompt charge": Mutant("VTC charges no prompt", _ENGINE, _no_prompt_charge),
    "no weights": Mutant("VTC ignores weights", ("vtc-figure-16", "vtc-theorems"), _no_weights),
    "vtc is fcfs": Mutant("FCFS under the names of VTC and WSC", (*_ENGINE, "fairserve"), _first_come),
    "lcf is vtc": Mutant("LCF lifts counters as VTC does", ("vtc-real", "vtc-figure-10", "vtc-measured"), _lcf_is_vtc),
    "rpm + 1": Mutant(
        "RPM lets one request more a minute through",
        ("vtc-real", "vtc-response", "vtc-clients", "vtc-profiled", "vtc-measured", "fairserve"),
        _one_more_a_minute,
    ),
    "slow steps": Mutant("the modelled engine's decode steps take 8 % longer", _ENGINE, lambda: _slower_steps(1.08)),
    "half pool": Mutant("the modelled engine admits into half of the pool", _ENGINE, _half_the_pool),
    "no cap": Mutant("the gate's buckets have no limit", _GATE, _credit_without_cap),
    "no wake": Mutant("no bucket that is full again moves its tenant forward", _GATE, _no_wake),
    "no guarantees": Mutant("start-time fair queueing under the name of bwfq", _GATE, _order_is("sfq")),
    "no surplus clock": Mutant("the virtual clock alone under the name of bwfq", _GATE, _order_is("virtual-clock")),
    "published order": Mutant("the published order under the name of bwfq", _GATE, _order_is("ratio")),
    "bwfq is fcfs": Mutant("FCFS under the name of bwfq", _GATE, _order_is("fcfs")),
    "no throttling": Mutant("nothing is throttled", ("fairserve",), _no_throttling),
    "interactions ignored": Mutant("throttling refuses within interactions", ("fairserve",), _interactions_ignored),
    "labels ignored": Mutant("WSC prefers no interaction in progress", ("fairserve",), _labels_ignored),
    "no plan": Mutant("the gate gets no plan", _FLEET, _no_plan),
    "insertion only": Mutant("plans are not annealed", _FLEET, _insertion_only),
    "no due times": Mutant("the fleet's gate ignores due times", _FLEET, _no_due_times),
    "equation 2 alone": Mutant("waits are QLM's equation 2, uncorrected", ("qlm-figure-3-18",), _equation_2_alone),
    "no floor": Mutant("no tier is owed its share", ("preemption-aging",), _no_floor),
    "no aging": Mutant("no waiting request gains rank", ("preemption-aging",), _no_aging),
    "no shedding": Mutant("no tier is ever shed", ("preemption-mixed",), _no_shedding),
    "no reserve": Mutant("no KV block is reserved for premium", ("preemption-reserve",), _no_reserve),
    "no limit": Mutant("a request is preempted without limit", ("preemption-limits",), _no_limit),
    "no preemption": Mutant(
        "no running request is evicted for a more urgent one", ("preemption-mixed", "preemption-limits"), _no_eviction
    ),
    "linear prefill": Mutant("the cost of a recompute has no quadratic term", ("preemption-costs",), _linear_prefill),
}

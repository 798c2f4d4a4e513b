"""The mutants: policies that are broken on purpose, each by replacing some attributes while it is applied.

A mutant exists only inside `applied`, in one process. None has a name that a configuration could select.
"""

# ruff: noqa: ARG001, ARG005 - a mutant has the parameters of what it replaces, and reaches into it

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

from dispatcher.model.commands import Tick
from dispatcher.policies import throttling
from dispatcher.policies.orders.interface import ORDERS
from dispatcher.policies.orders.registry import new_order
from dispatcher.policies.orders.two_clocks import TwoClocks, TwoClocksIndex
from dispatcher.policies.planning import plan as planning
from dispatcher.policies.planning.claims import claims
from dispatcher.policies.planning.groups import DELTA
from dispatcher.shard.alone import EPOCH, CostGate
from gpu_worker.policies.admission import Admission
from gpu_worker.policies.fairness import wsc
from gpu_worker.policies.fairness.baselines import FcfsPolicy, RequestsPerMinute
from gpu_worker.policies.fairness.registry import all_policies, make_policy
from gpu_worker.policies.fairness.tiered import TieredQueue
from gpu_worker.policies.fairness.vtc import VirtualTokenCounter
from gpu_worker.policies.preemption import Calibration
from gpu_worker.policies.shedding import Shedder
from gpu_worker.policies.tiers import TierShares, TierState
from headgate.evidence.bwfq import workload
from headgate.evidence.qlm import planning_cost, waits
from headgate.evidence.rivals import deciders, policies, scenes
from headgate.simulator.engines.kv_peak import KvPeak
from headgate.simulator.engines.separate_prefill import SeparatePrefillEngine
from headgate.simulator.fleet.planners import plan, qlm
from headgate.simulator.fleet.planners.registry import PLANNERS

Changes = list[tuple[Any, str, Any]]
"""Objects, names of their attributes or keys, and the values for as long as the mutant is applied."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`experiments`: the names of those that it may change; one that ends in a hyphen stands for all that begin so.
    `planners`: of fleets, those of which it changes runs; empty if it may change any run."""

    what: str
    experiments: tuple[str, ...]
    changes: Callable[[], Changes]
    planners: tuple[str, ...] = ()

    def may_change(self, experiment: str) -> bool:
        return is_named(experiment, self.experiments)


def is_named(experiment: str, names: Iterable[str]) -> bool:
    """Return whether the names have the experiment. One that ends in a hyphen stands for all that begin so."""
    return any(experiment == name or (name.endswith("-") and experiment.startswith(name)) for name in names)


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
    """Set or remove a key or an attribute. Return what was there.

    Raises AttributeError for a name that the owner has not, also not inherited: such a mutant would break nothing.
    """
    if isinstance(owner, dict):
        before = owner[name]
        owner[name] = value
        return before
    if not hasattr(owner, name):
        raise AttributeError(f"{owner!r} has no {name!r}, so the mutant breaks nothing")
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


def _lift_to_highest() -> Changes:
    def join(self: Any, request: Any) -> None:
        highest = max((self.counter(tenant) for tenant in self._queues), default=self._lift_level())
        self._counters.lift(request.tenant, highest)

    return [(VirtualTokenCounter, "_tenant_joins", join)]


def _charged_again() -> Changes:
    left = VirtualTokenCounter._left_batch

    def charge_others(self: Any, record: Any) -> None:
        left(self, record)
        for other in self._running.values():
            if other is not record:
                self._counters.add(other.request.tenant, self._price(other, self._output_now(other)))

    return [(VirtualTokenCounter, "_left_batch", charge_others)]


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
    known = all_policies()
    names = ("vtc", "vtc-predict", "vtc-oracle", "vtc-noisy", "wsc")
    return [(known, name, replace(known[name], make=lambda spec: FcfsPolicy(spec.service))) for name in names]


def _vtc_is(*names: str) -> Callable[[], Changes]:
    """Return the changes that put VTC in the place of other policies."""

    def changes() -> Changes:
        known = all_policies()
        return [
            (known, name, replace(known[name], make=lambda spec: VirtualTokenCounter(spec.service))) for name in names
        ]

    return changes


def _limit_a_minute(limit: Callable[[int], int]) -> Callable[[], Changes]:
    begin = RequestsPerMinute.__init__

    def other(self: Any, most: int, *rest: Any, **named: Any) -> None:
        begin(self, limit(most), *rest, **named)

    return lambda: [(RequestsPerMinute, "__init__", other)]


# ── The modelled engine ──────────────────────────────────────────────────────────────────────────────────────────────


def _slower_steps(factor: float) -> Changes:
    set_up = SeparatePrefillEngine._set_up

    def slower(self: Any) -> None:
        set_up(self)
        for part in ("_step_base_s", "_per_request_s", "_per_kv_token_s"):
            setattr(self, part, factor * getattr(self, part))

    return [(SeparatePrefillEngine, "_set_up", slower)]


def _half_the_pool() -> Changes:
    set_up = SeparatePrefillEngine._set_up

    def halve(self: Any) -> None:
        set_up(self)
        self._kv = KvPeak(self.profile.pool_tokens // 2, None, self.profile.tenant_tokens)

    return [(SeparatePrefillEngine, "_set_up", halve)]


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


def _never_held() -> Changes:
    def on_arrival(requests: Any, earns: Any) -> list[tuple[float, int]]:
        return [(request.arrival_s, number) for number, request in enumerate(requests)]

    return [(workload, "_release_times", on_arrival)]


def _half_of_the_slots() -> Changes:
    def narrow(order: str, *, slots: int, lead_max: float) -> CostGate:
        return CostGate(order, slots=slots // 2 if order == "bwfq" else slots, lead_max=lead_max)

    return [(workload, "CostGate", narrow)]


def _others_are_bwfq() -> Changes:
    ours = ORDERS["bwfq"]
    return [(ORDERS, name, ours) for name in ORDERS if name != "bwfq"]


# ── The rules of other gateways ──────────────────────────────────────────────────────────────────────────────────────


def _log_for_each() -> Changes:
    begin = scenes._play_front

    def apart(job: Any, sent: Any, weights: Any, **settings: Any) -> Any:
        own = job._replace(front="start-time fair") if job.front == deciders.OURS else job
        return begin(own, sent, weights, **settings)

    return [(scenes, "_play_front", apart)]


class _OneQueue(deciders.Replicas):
    """All processes have the queues and the counts of the first."""

    def __init__(self, rule: Callable[[], policies.Rival], processes: int, workers: int) -> None:
        super().__init__(rule, 1, workers)
        self._processes *= processes


def _one_queue() -> Changes:
    return [(scenes, "Replicas", _OneQueue)]


def _rivals_are(other: Callable[..., policies.Rival], *names: str) -> Callable[[], Changes]:
    return lambda: [(policies.RIVALS, name, other) for name in names]


# ── Throttling and the labels of applications ────────────────────────────────────────────────────────────────────────


def _no_throttling() -> Changes:
    return [(throttling.Throttle, "check", lambda self, user, app, now_s, *, saturated, under_way: None)]


def _interactions_ignored() -> Changes:
    check = throttling.Throttle.check

    def ignore(self: Any, user: str, app: str, now_s: float, *, saturated: bool, under_way: bool) -> Any:
        return check(self, user, app, now_s, saturated=saturated, under_way=False)

    return [(throttling.Throttle, "check", ignore)]


def _labels_ignored() -> Changes:
    return [(wsc.InteractionsInProgress, "next", lambda self: None)]


# ── The plan of models ───────────────────────────────────────────────────────────────────────────────────────────────


def _no_plan() -> Changes:
    def tick(self: Any, now_s: float) -> None:
        self._planned_s = now_s
        self._gate._follow(self._gate._gate.decide(Tick(), now=EPOCH + now_s))

    return [(plan.ProductionPlanner, "_plan", tick)]


def _insertion_only() -> Changes:
    def leave(problem: Any, queues: Any, *_rest: Any, **_named: Any) -> Any:
        return queues

    return [(plan, "_MOVES", 0), (qlm, "anneal", leave), (planning_cost, "anneal", leave)]


def _insertion_in_turn() -> Changes:
    def in_turn(problem: Any, queues: Any = None) -> Any:
        made = [list(queue) for queue in queues or [[] for _ in problem.workers]]
        placed = {group for queue in made for group in queue}
        for at, group in enumerate(each for each in problem.servable if each not in placed):
            able = [number for number, seconds in enumerate(problem.seconds_on) if seconds[group] < inf]
            made[able[at % len(able)]].append(group)
        return made

    return [(module, "insert_by_due_time", in_turn) for module in (planning, qlm, planning_cost)]


def _no_due_times() -> Changes:
    return [(plan, "Slack", lambda: None)]


def _plan_alone() -> Changes:
    return [(planning, "_is_work_in_time", lambda *_: True)]


def _all_entitled() -> Changes:

    def entitle(*of: Any, **named: Any) -> Any:
        found = claims(*of, **named)
        pieces = [piece._replace(is_entitled=True, weight=1.0) for piece in found.pieces]
        return found._replace(pieces=pieces, expected_parts=dict.fromkeys(found.expected_parts, 1.0))

    return [(planning, "claims", entitle)]


def _swaps_are_free() -> Changes:
    build = plan.ProductionPlanner._planned_worker

    def build_free(self: Any, worker: Any, now_s: float) -> Any:
        known = build(self, worker, now_s)
        return replace(known, swap_s=dict.fromkeys(known.swap_s, 0.0), drain_s=0.0, last_swap_s=0.0, paid_until=0.0)

    return [(plan.ProductionPlanner, "_planned_worker", build_free)]


def _planner_is(name: str, other: str) -> Callable[[], Changes]:
    return lambda: [(PLANNERS, name, PLANNERS[other])]


def _delta_ignored() -> Changes:
    batch = qlm._batch
    return [(qlm, "_batch", lambda around, model: DELTA * batch(around, model) // around.delta)]


def _delta_squared() -> Changes:
    batch = qlm._batch
    return [(qlm, "_batch", lambda around, model: around.delta * batch(around, model))]


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


def _reserve_times(factor: int) -> Callable[[], Changes]:
    reserve = Admission.reserve
    return lambda: [(Admission, "reserve", lambda self, blocks_total: factor * reserve(self, blocks_total))]


def _no_limit() -> Changes:
    return [(TierState, "exhausted", lambda self, settings: False)]


def _no_eviction() -> Changes:
    return [(TieredQueue, "may_preempt", lambda self: False), (TieredQueue, "precedence", lambda self, *_: None)]


def _no_tiers() -> Changes:
    known = all_policies()
    return [(known, "tiered", replace(known["tiered"], make=lambda spec: make_policy(spec.parameter, spec.service)))]


def _slow_link() -> Changes:
    out, back = Calibration.swap_out_s, Calibration.swap_in_s
    return [
        (Calibration, "swap_out_s", lambda self, n: 8 * out(self, n)),
        (Calibration, "swap_in_s", lambda self, n: 8 * back(self, n)),
    ]


def _linear_prefill() -> Changes:
    return [(Calibration, "prefill_s", lambda self, n: self.prefill_base_s + self.prefill_per_token_s * n)]


_VTC = ("vtc-",)
_GATE = ("bwfq-",)
_ONE_MODEL = ("qlm-figure-1", "qlm-figure-9-10", "qlm-figure-11-14", "qlm-figure-15", "qlm-figure-16", "qlm-figure-17")
_SEVERAL = ("qlm-figure-5", "qlm-figure-11-14", "qlm-five-models", "qlm-flood", "qlm-unseen", "qlm-worst-off")
_DEAR = ("qlm-figure-12-13",)
"""Its runs are the longest, so only the mutants run with it that put another planner in the place of ours, or none."""
_FLEET = (*_ONE_MODEL, *_SEVERAL, *_DEAR)
_PLAN = ("plan",)
OF_THE_PLANNER = (
    *("insertion only", "insertion in turn", "plan alone", "all entitled", "swaps are free", "no due times"),
    "qlm is plan",
)
"""The mutants in whose runs headgate's planner still plans, so that a change of it may change what they turn."""
_RPM = ("vtc-real", "vtc-response", "vtc-clients", "vtc-profiled", "vtc-measured", "fairserve", "fairserve-service")
_FAIRSERVE = ("fairserve", "fairserve-service")
_TIERS = ("preemption-mixed", "preemption-aging", "preemption-reserve", "qlm-figure-4")
MUTANTS: Mapping[str, Mutant] = {
    "round robin": Mutant("VTC serves tenants in turn, request by request", (*_VTC, *_FAIRSERVE), _round_robin),
    "no lift": Mutant("VTC lifts no counter when a tenant joins", _VTC, _no_lift),
    "lift to the highest": Mutant("VTC lifts a tenant that joins to the highest counter", _VTC, _lift_to_highest),
    "no output charge": Mutant("VTC charges no output token", (*_VTC, *_FAIRSERVE), lambda: _output_charge(0.0)),
    "half output charge": Mutant("VTC charges half of each output token", _VTC, lambda: _output_charge(0.5)),
    "no prompt charge": Mutant("VTC charges no prompt", _VTC, _no_prompt_charge),
    "charged again": Mutant(
        "VTC charges every running request again whenever one ends, as the paper's released server does",
        _VTC,
        _charged_again,
    ),
    "no weights": Mutant("VTC ignores weights", ("vtc-figure-16", "vtc-theorems"), _no_weights),
    "vtc is fcfs": Mutant("FCFS under the names of VTC and WSC", (*_VTC, *_FAIRSERVE), _first_come),
    "fcfs is vtc": Mutant("VTC under the name of FCFS", _VTC, _vtc_is("fcfs")),
    "lcf is vtc": Mutant(
        "LCF lifts counters as VTC does", ("vtc-real", "vtc-figure-10", "vtc-measured", "vtc-profiled"), _vtc_is("lcf")
    ),
    "predictions ignored": Mutant(
        "VTC with predicted or known lengths does not use them",
        ("vtc-real", "vtc-overload", "vtc-overload-multi", "vtc-profiled", "vtc-measured"),
        _vtc_is("vtc-predict", "vtc-oracle", "vtc-noisy"),
    ),
    "rpm + 1": Mutant("RPM lets one request more a minute through", _RPM, _limit_a_minute(lambda most: most + 1)),
    "rpm halved": Mutant(
        "RPM lets half of its requests a minute through", _RPM, _limit_a_minute(lambda most: max(1, most // 2))
    ),
    "rpm without limit": Mutant("RPM refuses nothing", _RPM, _limit_a_minute(lambda most: 10**9)),
    "slow steps": Mutant("the modelled engine's decode steps take 8 % longer", _VTC, lambda: _slower_steps(1.08)),
    "slower steps": Mutant(
        "the modelled engine's decode steps take 25 % longer", ("vtc-measured",), lambda: _slower_steps(1.25)
    ),
    "half pool": Mutant("the modelled engine has half of the pool", _VTC, _half_the_pool),
    "no cap": Mutant("the gate's buckets have no limit", _GATE, _credit_without_cap),
    "no wake": Mutant("no bucket that is full again moves its tenant forward", _GATE, _no_wake),
    "no guarantees": Mutant("start-time fair queueing under the name of bwfq", _GATE, _order_is("sfq")),
    "no surplus clock": Mutant(
        "the virtual clock alone under the name of bwfq", (*_GATE, "rivals"), _order_is("virtual-clock")
    ),
    "published order": Mutant("the published order under the name of bwfq", _GATE, _order_is("ratio")),
    "bwfq is fcfs": Mutant("FCFS under the name of bwfq", (*_GATE, "rivals"), _order_is("fcfs")),
    "others are bwfq": Mutant("bwfq under the name of every other order", _GATE, _others_are_bwfq),
    "never held": Mutant("no request is held until its credit", ("bwfq-latency",), _never_held),
    "half of the slots": Mutant(
        "bwfq leaves every other slot free", ("bwfq-latency", "bwfq-timeline", "bwfq-scale"), _half_of_the_slots
    ),
    "a log for each": Mutant("our gate has queues and counts for each process", ("rivals",), _log_for_each),
    "one queue": Mutant("other gateways' processes share their queues and counts", ("rivals",), _one_queue),
    "rivals are fair": Mutant(
        "start-time fair queueing under the name of every rule",
        ("rivals",),
        _rivals_are(policies.StartTimeFairQueueing, *policies.RIVALS),
    ),
    "no deficit": Mutant(
        "round robin under the name of deficit round robin",
        ("rivals",),
        _rivals_are(policies.RoundRobin, "deficit round robin"),
    ),
    "no throttling": Mutant("nothing is throttled", _FAIRSERVE, _no_throttling),
    "interactions ignored": Mutant("throttling refuses within interactions", _FAIRSERVE, _interactions_ignored),
    "labels ignored": Mutant("WSC prefers no interaction in progress", _FAIRSERVE, _labels_ignored),
    "no plan": Mutant("the gate gets no plan", (*_FLEET, "qlm-half"), _no_plan, _PLAN),
    "insertion only": Mutant(
        "plans are not annealed",
        (*_SEVERAL, "qlm-figure-19", "qlm-figure-20", "qlm-optimum"),
        _insertion_only,
        ("plan", "qlm"),
    ),
    "insertion in turn": Mutant(
        "insertion gives groups to workers in turn, whatever they cost",
        (*_SEVERAL, "qlm-figure-19", "qlm-figure-20"),
        _insertion_in_turn,
        ("plan", "qlm"),
    ),
    "plan alone": Mutant("no simple rule is played forward beside the plan", _SEVERAL, _plan_alone, _PLAN),
    "all entitled": Mutant("the plan takes all work for entitled", ("qlm-flood", "qlm-half"), _all_entitled, _PLAN),
    "swaps are free": Mutant("the plan takes swaps and drains for free", _SEVERAL, _swaps_are_free, _PLAN),
    "no due times": Mutant("the fleet's gate ignores due times", _FLEET, _no_due_times, _PLAN),
    "plan is fcfs": Mutant(
        "first come, first served under the name of plan", (*_FLEET, "qlm-half"), _planner_is("plan", "fcfs"), _PLAN
    ),
    "plan is round robin": Mutant(
        "round robin over workers under the name of plan", _FLEET, _planner_is("plan", "round-robin"), _PLAN
    ),
    "plan is shepherd": Mutant(
        "fixed batches under the name of plan",
        ("qlm-figure-1", "qlm-figure-9-10"),
        _planner_is("plan", "shepherd"),
        _PLAN,
    ),
    "plan is static": Mutant(
        "a partition under the name of plan", (*_SEVERAL, *_DEAR), _planner_is("plan", "static"), _PLAN
    ),
    "qlm is plan": Mutant("plan under the name of qlm", ("qlm-flood",), _planner_is("qlm", "plan"), ("qlm",)),
    "delta ignored": Mutant(
        "QLM's groups have four batches, whatever δ is", ("qlm-figure-19",), _delta_ignored, ("qlm",)
    ),
    "delta squared": Mutant("QLM's groups have δ² batches", ("qlm-figure-19",), _delta_squared, ("qlm",)),
    "equation 2 alone": Mutant("waits are QLM's equation 2, uncorrected", ("qlm-figure-3-18",), _equation_2_alone),
    "no tiers": Mutant("the engine's queue has no tiers", _TIERS, _no_tiers),
    "no floor": Mutant("no tier is owed its share", ("preemption-aging",), _no_floor),
    "no aging": Mutant("no waiting request gains rank", ("preemption-aging",), _no_aging),
    "no shedding": Mutant("no tier is ever shed", ("preemption-mixed",), _no_shedding),
    "no reserve": Mutant("no KV block is reserved for premium", ("preemption-reserve",), _reserve_times(0)),
    "double reserve": Mutant("twice the blocks are reserved", ("preemption-reserve",), _reserve_times(2)),
    "no limit": Mutant("a request is preempted without limit", ("preemption-limits",), _no_limit),
    "no preemption": Mutant(
        "no running request is evicted for a more urgent one",
        ("preemption-mixed", "preemption-limits", "preemption-reserve", "qlm-figure-4"),
        _no_eviction,
    ),
    "slow link": Mutant("a swap takes eight times as long", ("preemption-costs",), _slow_link),
    "linear prefill": Mutant("the cost of a recompute has no quadratic term", ("preemption-costs",), _linear_prefill),
}

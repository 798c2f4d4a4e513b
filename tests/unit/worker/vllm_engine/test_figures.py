"""Reports of changed tenants: whatever happens, what they say in the end is what the policy counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import EngineStats
from gpu_worker.engines.vllm import figures, metrics
from gpu_worker.engines.vllm.figures import KnownFigures, make_report
from gpu_worker.engines.vllm.metrics import TenantCollector
from gpu_worker.policies.admission import Admission
from gpu_worker.policies.changed_tenants import ChangedTenants
from gpu_worker.policies.fairness import accounting
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.tiered import TieredQueue, make_queue
from gpu_worker.policies.preemption import Eviction, Resident, Strategy
from gpu_worker.policies.scheduling_stats import SchedulingStats, scheduling_gauges
from tests.support.queue.calls import Call, Story, calls


def tiered(policy: str = "tiered:vtc") -> TieredQueue:
    queue = make_queue(policy, {})
    assert isinstance(queue, TieredQueue)
    return queue


def stats_of(queue: TieredQueue) -> EngineStats:
    """Return what the engine's stats were before there were reports: all tenants, with all counters."""
    counts = SchedulingStats(native=2, resumed=1, expired=4, recomputed_tokens=70, swapped_out_bytes=1e6)
    counts.count_eviction(Eviction(Resident("r", Tier.BACKGROUND, 1, 1, 1), Strategy.SWAP))
    counts.record_cost(Strategy.SWAP, predicted_s=0.5, measured_s=0.75)
    running = {tier: queue.running_in(tier) for tier in Tier}
    gauges = scheduling_gauges(
        Admission(queue), running=running, blocks={}, blocks_total=9, pool_tokens=288, context_tokens=64
    )
    return EngineStats(queue.waiting, queue.running, 0.5, queue.received, counts, gauges)


def as_json(report: dict[str, Any] | None) -> Any:
    return json.loads(json.dumps(report))


def tier_of(request: QueueRequest) -> QueueRequest:
    tiers = [Tier.PREMIUM, Tier.STANDARD, Tier.BACKGROUND]
    object.__setattr__(request, "tier", tiers[request.input_tokens % 3])
    return request


class TieredStory(Story):
    def put(self, new: QueueRequest) -> None:
        super().put(tier_of(new))


@settings(max_examples=60, deadline=None)
@given(
    story=calls,
    policy=st.sampled_from(["tiered:vtc", "tiered:wsc", "tiered:vtc-predict", "tiered:drr:16", "tiered:fcfs"]),
    most=st.integers(1, 3),
    every=st.integers(1, 5),
)
def test_the_reports_add_up_to_what_was_counted(story: list[Call], policy: str, most: int, every: int) -> None:
    queue = tiered(policy)
    run, changes = TieredStory(queue), ChangedTenants(queue)
    server, worker = KnownFigures(), KnownFigures()
    since = 0
    for number, call in enumerate(story):
        run.apply(number, call)
        if changes.is_done:
            changes.begin_round()
        server.apply(as_json(make_report(changes.take(most), stats_of(queue))))
        if number % every == 0:
            answer = as_json(server.changes_since(since))
            worker.apply(answer)
            since = answer["version"]
    changes.begin_round()
    while not changes.is_done:
        server.apply(as_json(make_report(changes.take(most))))
    server.apply(as_json(make_report([], stats_of(queue))))
    worker.apply(as_json(server.changes_since(since)))
    for known in (server, worker):
        stats, truth = known.stats(), stats_of(queue)
        assert stats is not None
        assert {name: got for name, got in stats.tenants.items() if got.input_tokens} == {
            name: got for name, got in truth.tenants.items() if got.input_tokens
        }
        highest: dict[str, float] = {}
        for counters in queue.counters():
            highest |= {name: max(each, highest.get(name, each)) for name, each in counters.items()}
        assert stats.gauges.counters == highest
        assert stats.gauges.difference == pytest.approx(truth.gauges.difference)
        assert stats.counts == truth.counts
        assert stats.gauges.tiers == truth.gauges.tiers
        assert (stats.waiting, stats.running, stats.kv_use) == (truth.waiting, truth.running, truth.kv_use)


def serve(queue: TieredQueue, tenant: str, tier: Tier = Tier.STANDARD) -> None:
    queue.enqueue(QueueRequest(f"r-{tenant}", tenant, 10, tier=tier))
    queue.admit(f"r-{tenant}")
    queue.on_generated(f"r-{tenant}", 3)
    queue.finish(f"r-{tenant}")


def test_a_report_has_at_most_so_many_tenants_however_many_changed() -> None:
    queue = tiered()
    for number in range(200):
        serve(queue, f"t{number}", Tier.PREMIUM if number % 2 else Tier.STANDARD)
    changes = ChangedTenants(queue)
    changes.begin_round()
    first = changes.take(16)
    assert len(first) == 16
    assert len({tier for tier, _ in [*first, *changes.take(16)]}) == 2, "each take begins with another tier"
    taken = 32
    while not changes.is_done:
        taken += len(changes.take(16))
    assert taken == 200
    changes.begin_round()
    assert changes.take(16) == [], "nothing changed since"


def test_a_round_updates_few_running_requests_in_one_take() -> None:
    queue = tiered()
    for number in range(10):
        queue.enqueue(QueueRequest(f"r{number}", f"t{number}", 1))
        queue.admit(f"r{number}")
    changes = ChangedTenants(queue)
    while not changes.is_done:
        changes.take(100)
    queue.on_decoded(5)
    changes.begin_round()
    assert [[figures[2] for _, figures in changes.take(4)] for _ in range(4)] == [[5] * 4, [5] * 4, [5] * 2, []]


def test_the_bound_of_a_take_is_over_all_tiers() -> None:
    queue = tiered()
    for number in range(20):
        tier = Tier.PREMIUM if number % 2 else Tier.STANDARD
        queue.enqueue(QueueRequest(f"r{number}", f"t{number}", 1, tier=tier))
        queue.admit(f"r{number}")
    changes = ChangedTenants(queue)
    assert [len(changes.take(16)) for _ in range(3)] == [16, 4, 0]
    queue.on_decoded(1)
    changes.begin_round()
    assert len(changes.take(4)) == 4
    assert not any(policy.changes for policy in queue.by_tier.values()), "no more than four requests were updated"


def drained(queue: TieredQueue) -> set[str]:
    return {figures[0] for _, figures in ChangedTenants(queue).take(100)}


def test_a_tenant_changes_with_its_queue_even_if_nothing_is_charged() -> None:
    """Its counter is shown only while it has waiting requests."""
    queue = tiered()
    queue.enqueue(QueueRequest("r", "a", 10))
    assert drained(queue) == {"a"}
    queue.admit("r")
    assert drained(queue) == {"a"}
    queue.preempt("r")
    assert drained(queue) == {"a"}
    queue.admit("r")
    assert drained(queue) == {"a"}
    queue.undo_admit("r")
    assert drained(queue) == {"a"}
    queue.cancel("r")
    assert drained(queue) == {"a"}
    assert drained(queue) == set()


def test_what_a_policy_settles_at_the_end_of_a_request_is_a_change() -> None:
    queue = tiered("tiered:vtc-predict")
    for name in ("r", "s"):
        queue.enqueue(QueueRequest(name, "a", 10, output_tokens_max=100))
    queue.admit("r")
    assert drained(queue) == {"a"}
    queue.finish("r")
    assert drained(queue) == {"a"}, "the counter fell by the tokens that were predicted"


def test_where_nothing_reads_the_changes_they_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "_ABSENT_KEPT_MAX", 20)
    queue = tiered()
    for number in range(100):
        serve(queue, f"t{number}")
        queue.enqueue(QueueRequest("cancelled", f"c{number}", 10))
        queue.cancel("cancelled")
    policy = queue.by_tier[Tier.STANDARD]
    assert policy.changes <= 20


def test_the_receiver_forgets_the_tenants_without_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "KNOWN_MAX", 5)
    known, queue = KnownFigures(), tiered()
    for number in range(9):
        serve(queue, f"t{number}")
    known.apply(make_report(ChangedTenants(queue).take(100), stats_of(queue)))
    assert known.stats() is not None
    assert set(known.stats().tenants) == {f"t{number}" for number in range(4, 9)}  # type: ignore[union-attr]
    known.forget("t8")
    known.forget("unknown")
    assert set(known.stats().tenants) == {f"t{number}" for number in range(4, 8)}  # type: ignore[union-attr]


def test_a_version_of_a_server_before_this_one_gets_everything() -> None:
    known, queue = KnownFigures(), tiered()
    assert known.changes_since(0) is None
    assert known.stats() is None
    serve(queue, "a")
    known.apply(make_report(ChangedTenants(queue).take(100), stats_of(queue)))
    assert known.changes_since(1) == {**known.changes_since(0), "tenants": []}  # type: ignore[dict-item]
    assert len(known.changes_since(7)["tenants"]) == 1  # type: ignore[index]


@pytest.mark.parametrize("wrong", [{}, {"tenants": 1}, {"tenants": [["standard", "a"]]}, {"tenants": [], "now": {}}])
def test_anything_but_a_report_is_refused(wrong: dict[str, Any]) -> None:
    known = KnownFigures()
    with pytest.raises(ValueError, match="not a report of the scheduler"):
        known.apply(wrong)
    assert known.version == 0


def test_the_series_of_tenants_are_bounded_and_show_those_with_the_most_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "TENANTS_MAX", 3)
    known, queue = KnownFigures(), tiered()
    for number in range(10):
        for _ in range(number + 1):
            serve(queue, f"t{number}")
        queue.enqueue(QueueRequest(f"w{number}", f"t{number}", 1))
    known.apply(make_report(ChangedTenants(queue).take(100), stats_of(queue)))
    registry = CollectorRegistry()
    registry.register(TenantCollector({0: known, 1: KnownFigures()}))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in families
        for sample in family.samples
    }
    service = {name[2]: value for name, value in samples.items() if name[0] == "headgate_tenant_service_total"}
    assert service == {"t7": 8 * 16.0, "t8": 9 * 16.0, "t9": 10 * 16.0}
    assert samples["headgate_service_all_total", "0"] == 55 * 16.0
    assert samples["headgate_tenant_tokens_total", "0", "output", "t9"] == 30
    assert sum(name[0] == "headgate_tenant_counter" for name in samples) == 3
    assert samples["headgate_requests_waiting", "0", "standard"] == 10
    assert samples["headgate_preemptions_total", "0", "swap", "background"] == 1
    assert samples["headgate_native_evictions_total", "0"] == 2
    assert not generate_latest(_registry_of({0: KnownFigures()})), "nothing before the first report"


def _registry_of(known: dict[int, KnownFigures]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(TenantCollector(known))
    return registry

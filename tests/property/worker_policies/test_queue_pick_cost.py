"""The cost of a pick, counted in counter reads and not timed: it does not grow with the number of tenants."""

from __future__ import annotations

import pytest

from benchmarks import vtc_pick
from gpu_worker.policies.fairness import vtc
from gpu_worker.policies.fairness.accounting import TenantCounters
from gpu_worker.policies.fairness.interface import QueuePolicy, QueueRequest
from gpu_worker.policies.fairness.registry import make_policy

ORDERED = ["vtc", "lcf", "vtc-predict", "vtc-cap:2000", "drr:512", "wsc"]


class Reads(TenantCounters):
    """Counts the reads of all counters."""

    total = 0

    def value(self, tenant: str) -> float:
        Reads.total += 1
        return super().value(tenant)


def counters_read(policy: QueuePolicy, tenants: int, picks: int) -> float:
    """Return the reads per pick, with admission, three tokens, the end and the tenant's next request."""
    for number in range(tenants):
        for which in "ab":
            policy.enqueue(QueueRequest(f"r{number}{which}", f"t{number}", 1 + number % 97, app="x", interaction="i"))
    policy.peek()
    Reads.total = 0
    for number in range(picks):
        head = policy.peek()
        assert head is not None
        policy.admit(head.request_id)
        policy.on_decoded(3)
        policy.finish(head.request_id)
        policy.enqueue(QueueRequest(f"n{number}", head.tenant, 1 + number % 89))
    return Reads.total / picks


@pytest.mark.parametrize("name", ORDERED)
def test_a_pick_reads_a_few_counters_whatever_the_tenants(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vtc, "TenantCounters", Reads)
    few = counters_read(make_policy(name), 20, 300)
    many = counters_read(make_policy(name), 5_000, 300)
    assert 0 < few < 20
    assert many < 20, "a scan would read 5,000"


def test_the_benchmark_has_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vtc_pick, "PICKS", 50)
    rows = [vtc_pick.measure(tenants, policy) for tenants, policy in ((10, "vtc"), (20, "wsc"))]
    assert all(rows[1][column] for column in ("pick", "whole", "bare_heap", "scan"))
    header, *queues = vtc_pick.table(rows, "vtc").splitlines()[1:]
    assert " ".join(header.split()) == "tenants pick whole bare_heap scan scan / pick pick / first log / first"
    assert [queue.split()[0] for queue in queues] == ["10", "20"]

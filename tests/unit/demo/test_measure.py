"""The demo's figures, against cases worked out by hand."""

from __future__ import annotations

import pytest

from headgate.demo.measure import Sample, report


def sample(tenant: str, arrival_s: float, first_s: float, end_s: float, tokens: int, *, face: str = "http") -> Sample:
    """Tokens come evenly from the first to the end."""
    gap = (end_s - first_s) / max(1, tokens - 1)
    times = [first_s + gap * number for number in range(tokens)] if face == "http" else []
    return Sample(tenant, face, arrival_s, first_s if face == "http" else None, end_s, 10, tokens, times)


def test_first_token_latency_counts_streamed_answers_only() -> None:
    played = [sample("a", 1.0, 1.5, 2.0, 3), sample("a", 1.0, 9.0, 9.0, 3, face="lambda")]
    tenant = report(played).tenants["a"]
    assert tenant.ttft_p99_s == 0.5
    assert tenant.latency_p99_s == 8.0
    assert tenant.served == 2


def test_throughput_counts_input_and_output_over_the_whole_time() -> None:
    run = report([sample("a", 0.0, 1.0, 2.0, 5), sample("b", 0.0, 1.0, 4.0, 15)])
    assert run.total_time_s == 4.0
    assert run.throughput_tokens_per_s == pytest.approx((10 + 5 + 10 + 15) / 4)


def test_share_is_taken_only_while_all_are_backlogged() -> None:
    waiting = [sample("a", 0.0, 10.0, 10.0, 1), sample("b", 5.0, 8.0, 8.0, 1)]
    served_meanwhile = [sample("a", 5.5, 6.0, 7.0, 3), sample("b", 1.0, 1.0, 2.0, 5)]
    run = report(waiting + served_meanwhile)
    assert run.backlogged_s == pytest.approx(3.0)  # from 5, when b joins, to 8, when it has its token
    a, b = run.tenants["a"], run.tenants["b"]
    # inside: a's three tokens with their prompt (10 + 6), b's one with its prompt (10 + 2)
    assert a.share_while_backlogged == pytest.approx(16 / 28)
    assert b.share_while_backlogged == pytest.approx(12 / 28)


def test_pieces_share_the_true_token_count() -> None:
    """A piece may carry several tokens: half of the pieces are half of the service."""
    a = Sample("a", "http", 0.0, 1.0, 6.0, 0, 100, [1.0, 6.0])
    b = Sample("b", "http", 0.0, 5.0, 5.0, 0, 50, [0.5])
    waiting = [Sample("a", "http", 0.0, 5.0, 5.0), Sample("b", "http", 0.0, 5.0, 5.0)]
    run = report([a, b, *waiting])
    assert run.tenants["a"].share_while_backlogged == pytest.approx(0.5)


def test_failures_are_counted_and_serve_nothing() -> None:
    failed = Sample("a", "http", 0.0, None, 1.0, error="worker_failed")
    tenant = report([failed]).tenants["a"]
    assert (tenant.requests, tenant.served, tenant.failed, tenant.service) == (1, 0, 1, 0.0)
    assert tenant.ttft_p50_s is None
    assert tenant.share_while_backlogged is None


def test_an_empty_play_is_reported_as_such() -> None:
    run = report([])
    assert run.tenants == {}
    assert run.throughput_tokens_per_s == 0.0

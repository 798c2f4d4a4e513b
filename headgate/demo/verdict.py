"""The verdict of the demo: did headgate keep its promises on this machine, with this workload?"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.demo.measure import RunReport

TTFT_RATIO_MAX = 0.5
"""The quiet tenant's P99 time to the first token falls at least by half."""
THROUGHPUT_RATIO_MIN = 0.9
"""Total throughput keeps at least nine tenths."""


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    passed: bool
    checks: tuple[Check, ...]


def judge(without: RunReport, with_headgate: RunReport, quiet: str) -> Verdict:
    checks = (
        _quiet_is_served(without, with_headgate, quiet),
        _throughput_is_kept(without, with_headgate),
        _nothing_is_lost(with_headgate),
    )
    return Verdict(all(check.passed for check in checks), checks)


def _quiet_is_served(without: RunReport, with_headgate: RunReport, quiet: str) -> Check:
    before, after = without.tenants[quiet].ttft_p99_s, with_headgate.tenants[quiet].ttft_p99_s
    if before is None or after is None:
        return Check("quiet_ttft_p99", False, f"{quiet} got no first token in one of the runs")
    ratio = after / before if before else 1.0
    detail = f"{quiet}'s P99 first token: {before:.2f} s without, {after:.2f} s with headgate (ratio {ratio:.2f})"
    return Check("quiet_ttft_p99", ratio <= TTFT_RATIO_MAX, detail)


def _throughput_is_kept(without: RunReport, with_headgate: RunReport) -> Check:
    before, after = without.throughput_tokens_per_s, with_headgate.throughput_tokens_per_s
    ratio = after / before if before else 0.0
    detail = f"throughput: {before:.0f} tokens/s without, {after:.0f} with headgate (ratio {ratio:.2f})"
    return Check("throughput", ratio >= THROUGHPUT_RATIO_MIN, detail)


def _nothing_is_lost(with_headgate: RunReport) -> Check:
    failed = {name: tenant.failed for name, tenant in with_headgate.tenants.items() if tenant.failed}
    detail = f"failed: {failed}" if failed else "every request was answered"
    return Check("all_answered", not failed, detail)

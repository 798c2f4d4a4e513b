"""Figures of the last minute, from the facts of a log: waiting times, first-token latencies and service. Pure.

The latency of a call is the sum of its wait at the gate, from `Accepted` to its last `Dispatched`, and the worker's
time to the first token, which `Ended` contains. A call is counted when it ends. Calls that were accepted before the
first entry that was read are left out. Times are Unix seconds of the entries, service is in service units.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dispatcher.model.facts import Accepted, Dispatched, Dropped, Ended, Entry
from dispatcher.policies.percentiles import percentile

WINDOW_S = 60.0
SAMPLES_MAX = 100_000
"""The most ended calls that are kept. The oldest are dropped first."""


@dataclass(slots=True)
class _OpenWindow:
    tenant: str
    accepted_at: float
    dispatched_at: float | None = None


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    tenant: str
    served: float
    wait_s: float
    first_token_s: float | None


@dataclass(frozen=True, slots=True)
class TenantRecent:
    """One tenant's window. Percentiles are None without a sample."""

    ended: int
    service_per_s: float
    share: float
    """This tenant's fraction of the service of all tenants; 0 if none was served."""
    wait_p50_s: float | None
    wait_p99_s: float | None
    first_token_p50_s: float | None
    first_token_p99_s: float | None


IDLE = TenantRecent(0, 0.0, 0.0, None, None, None, None)


@dataclass(slots=True)
class Recent:
    """The ended calls of the window. Call `note` with the entries in the order of their positions."""

    window_s: float = WINDOW_S
    _open: dict[str, _OpenWindow] = field(default_factory=dict)
    _samples: deque[_Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    _since: float | None = None
    """The time of the first entry."""
    _position: int = -1
    """The position of the last noted entry."""

    def note(self, entry: Entry) -> None:
        """Count the facts of an entry. Ignore an entry that was counted before: a replica may read the log again."""
        if entry.position <= self._position:
            return
        self._position = entry.position
        if self._since is None:
            self._since = entry.at
        for fact in entry.facts:
            match fact:
                case Accepted():
                    self._open[fact.id] = _OpenWindow(fact.terms.tenant, entry.at)
                case Dispatched() if (call := self._open.get(fact.id)) is not None:
                    call.dispatched_at = entry.at
                case Ended() if (call := self._open.pop(fact.id, None)) is not None:
                    self._samples.append(_sample(call, fact, entry.at))
                case Dropped():
                    self._open.pop(fact.id, None)

    def restart(self) -> None:
        """Forget the calls that have not ended. A snapshot replaced the entries that follow, and perhaps their ends."""
        self._open.clear()
        self._since = None

    def of_tenants(self, now: float) -> dict[str, TenantRecent]:
        """Return the figures of the window that ends at `now`, for each tenant with an ended call in it."""
        while self._samples and self._samples[0].at < now - self.window_s:
            self._samples.popleft()
        by_tenant: dict[str, list[_Sample]] = {}
        for sample in self._samples:
            by_tenant.setdefault(sample.tenant, []).append(sample)
        total = sum(sample.served for sample in self._samples)
        span = min(self.window_s, max(1.0, now - (self._since or now)))
        return {tenant: _recent(samples, total, span) for tenant, samples in by_tenant.items()}


def _sample(call: _OpenWindow, end: Ended, at: float) -> _Sample:
    wait_s = (call.dispatched_at or at) - call.accepted_at
    first_token_s = wait_s + end.first_token_s if end.first_token_s > 0 else None
    return _Sample(at, call.tenant, end.served, wait_s, first_token_s)


def _recent(samples: list[_Sample], total: float, span_s: float) -> TenantRecent:
    served = sum(sample.served for sample in samples)
    waits = [sample.wait_s for sample in samples]
    first_tokens = [sample.first_token_s for sample in samples if sample.first_token_s is not None]
    return TenantRecent(
        ended=len(samples),
        service_per_s=served / span_s,
        share=served / total if total else 0.0,
        wait_p50_s=percentile(waits, 0.5),
        wait_p99_s=percentile(waits, 0.99),
        first_token_p50_s=percentile(first_tokens, 0.5),
        first_token_p99_s=percentile(first_tokens, 0.99),
    )

"""The log lines and the metrics of ended calls: collected, and written together each second.

A line by Powertools' logger and a record of metrics for each request were 11 % of a front's CPU. So an ended call costs
one tuple. Each second, the lines are written at once, and the metrics as one record for each pool and tier, with a list
of values for each metric (CloudWatch's embedded metric format). This takes 13 microseconds for each call. Powertools
writes the records. It also renders the fields that all lines share, once a second.

A process that crashes loses the lines and the metrics of its last second.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from dispatcher.model.tracing import trace_id_of
from dispatcher.operations.calls.followed import FollowedCall
from dispatcher.policies.tiers import Tier
from dispatcher.processes.metrics_namespace import SERVICE, metrics_namespace
from functions.observability import logger

FLUSH_S = 1.0
CALLS_MAX = 1000
"""So many calls are written before the second is over."""
RECORD_CALLS_MAX = 96
"""A record has at most 100 metrics, with 100 values each. So many calls can have as many outcomes, and there are four
metrics more. A record of the usual metrics has 3,000 bytes, which a pipe takes whole (dispatcher/log_lines.py)."""
_encode = json.JSONEncoder(separators=(",", ":")).encode


class EndedCall(NamedTuple):
    """What a call's line and metrics hold: no prompt, no answer and no key. `ttft_ms` is None if it had no token."""

    face: str
    invocation_id: str
    tenant: str
    trace: str
    attempt: int
    pool: str
    tier: Tier
    outcome: str
    output_tokens: int
    ttft_ms: float | None
    duration_ms: float
    ended_at: float
    is_queued: bool
    is_failed: bool

    @classmethod
    def of(
        cls,
        face: str,
        following: FollowedCall,
        outcome: str,
        *,
        output_tokens: int,
        ended_at: float,
        ttft_ms: float | None = None,
        is_queued: bool = False,
        is_failed: bool = False,
    ) -> EndedCall:
        call = following.call
        tenant, duration_ms = call.tenant, (ended_at - call.created_at) * 1000
        return cls(
            *(face, call.id, tenant.identity, call.trace, following.attempt, call.pool, tenant.tier),
            *(outcome, output_tokens, ttft_ms, duration_ms, ended_at, is_queued, is_failed),
        )


class EndedCalls:
    """The ended calls of a front that are not written yet: at most CALLS_MAX, for at most FLUSH_S seconds."""

    def __init__(self) -> None:
        self._calls: list[EndedCall] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: EndedCall) -> None:
        self._calls.append(call)
        if len(self._calls) >= CALLS_MAX:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write the lines and the metrics of the collected calls, if there are any."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        calls, self._calls = self._calls, []
        with suppress(OSError):  # only a front in Lambda writes directly; its answer does not fail with its log
            write_metrics(calls)
            write_lines(calls)


def write_lines(calls: Sequence[EndedCall]) -> None:
    """Write the one line that each call leaves, all in one write.

    A tenant is named here and in the usage, and not in metrics: CloudWatch bills each combination of a metric and its
    dimensions, so ten thousand tenants would cost thousands of dollars a month.
    """
    if calls and logger.log_level <= logging.INFO:
        sys.stdout.write("".join(_lines_of(calls)))
        sys.stdout.flush()


def _lines_of(calls: Sequence[EndedCall]) -> Iterator[str]:
    """Yield each call's line: the fields that Powertools gives every line of this logger, and the call's own."""
    formatter, line = logger.registered_formatter, _lines_of.__code__.co_firstlineno
    record = logging.LogRecord(
        logger.name, logging.INFO, __file__, line, "invocation ended", None, None, func=_lines_of.__name__
    )
    shared: dict[str, Any] = json.loads(formatter.format(record))
    for call in calls:
        record.created, record.msecs = call.ended_at, call.ended_at % 1 * 1000
        fields = {
            **shared,
            "timestamp": formatter.formatTime(record),
            "face": call.face,
            "invocation_id": call.invocation_id,
            "tenant": call.tenant,
            "trace_id": trace_id_of(call.trace),
            "attempt": call.attempt,
            "outcome": call.outcome,
            "output_tokens": call.output_tokens,
            "duration_ms": round(call.duration_ms, 1),
        }
        if call.ttft_ms is not None:
            fields["ttft_ms"] = round(call.ttft_ms, 1)
        yield f"{_encode(fields)}\n"


def write_metrics(calls: Sequence[EndedCall]) -> None:
    """Write the metrics of the calls: a record for each pool and tier, and for each RECORD_CALLS_MAX calls of these."""
    groups: defaultdict[tuple[str, Tier], list[EndedCall]] = defaultdict(list)
    for call in calls:
        groups[call.pool, call.tier].append(call)
    for (pool, tier), members in groups.items():
        for start in range(0, len(members), RECORD_CALLS_MAX):
            EphemeralMetrics(
                _metrics_of(members[start : start + RECORD_CALLS_MAX]),
                {"pool": pool, "tier": tier.value},
                metrics_namespace(),
                service=SERVICE,
            ).flush_metrics()


def _metrics_of(calls: Sequence[EndedCall]) -> dict[str, Any]:
    """Return the values by metric, one for each call, so that a mean and a percentile count every call once."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for call in calls:
        values[f"outcome_{call.outcome}"].append(1)
        values["failed"].append(int(call.is_failed))
        values["queued"].append(int(call.is_queued))
        values["output_tokens"].append(call.output_tokens)
        if call.ttft_ms is not None:
            values["ttft_ms"].append(round(call.ttft_ms, 3))
    units = defaultdict(lambda: MetricUnit.Count, ttft_ms=MetricUnit.Milliseconds)
    return {name: {"Unit": units[name].value, "Value": each} for name, each in values.items()}

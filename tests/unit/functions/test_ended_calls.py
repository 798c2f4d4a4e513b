"""Ended calls leave the lines and metrics that one at a time would leave, written each second and before an end."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dispatcher.log_lines import LogLines
from dispatcher.model.tracing import trace_id_of
from dispatcher.policies.tiers import Tier
from functions.ended_calls import CALLS_MAX, FLUSH_S, EndedCall, EndedCalls, write_lines, write_metrics
from functions.http_api.app import make_app
from functions.observability import logger
from tests.support.asgi import Caller
from tests.support.emf import VALUES_MAX, Series, series_in
from tests.support.world.memory_gate import CHAT, Gate
from tests.unit.test_log_lines import read_rest

ENDED_AT = 1_790_000_000.9876
CALL = EndedCall(
    *("http", "c-1", "acme.k3f9", f"00-{'a' * 32}-{'b' * 16}-01", 1, "default", Tier.STANDARD),
    *("done", 7, 12.345678, 98.7654, ENDED_AT, False, False),
)
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}


def lines_in(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if "invocation ended" in line]


def line_of_powertools(call: EndedCall) -> dict[str, Any]:
    """Return the line that Powertools' logger writes for the call."""
    fields = {
        "face": call.face,
        "invocation_id": call.invocation_id,
        "tenant": call.tenant,
        "trace_id": trace_id_of(call.trace),
        "attempt": call.attempt,
        "outcome": call.outcome,
        "output_tokens": call.output_tokens,
        "ttft_ms": None if call.ttft_ms is None else round(call.ttft_ms, 1),
        "duration_ms": round(call.duration_ms, 1),
    }
    handler, written = logger.registered_handler, io.StringIO()
    assert isinstance(handler, logging.StreamHandler)
    before = handler.setStream(written)
    try:
        logger.info("invocation ended", extra=fields)
    finally:
        handler.setStream(before)
    (line,) = lines_in(written.getvalue())
    return line


@pytest.mark.parametrize("ttft_ms", [12.345678, None])
@pytest.mark.parametrize("trace", ["", CALL.trace])
@pytest.mark.parametrize("injected", [{}, {"function_request_id": "r-1", "cold_start": True}])
def test_a_line_has_exactly_the_fields_that_powertools_writes(
    ttft_ms: float | None,
    trace: str,
    injected: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also those that a function's decorator adds, and X-Ray's."""
    if injected:
        monkeypatch.setenv("_X_AMZN_TRACE_ID", "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1")
    call = CALL._replace(ttft_ms=ttft_ms, trace=trace, tenant="tenant-\u00e9\n")
    with logger.append_context_keys(**injected):
        expected = line_of_powertools(call)
        write_lines([call])
    (line,) = lines_in(capsys.readouterr().out)
    assert line["location"].partition(":")[2].isdigit()
    own = {"location": "", "timestamp": ""}
    assert {**line, **own} == {**expected, **own}
    ended = time.strftime("%Y-%m-%d %H:%M:%S,987%z", time.localtime(ENDED_AT))
    assert (line["timestamp"], len(expected["timestamp"])) == (ended, len(ended)), "the time of the end"


def test_lines_are_left_out_by_the_logs_level(capsys: pytest.CaptureFixture[str]) -> None:
    level = logger.log_level
    try:
        logger.setLevel(logging.WARNING)
        write_lines([CALL])
    finally:
        logger.setLevel(level)
    assert capsys.readouterr().out == ""


def test_metrics_are_those_of_each_call_in_few_records(capsys: pytest.CaptureFixture[str]) -> None:
    """Every call counts once in each metric, as if it had a record of its own."""
    outcomes = [f"outcome-{number}" for number in range(120)]
    calls = [CALL._replace(tier=Tier.PREMIUM, outcome=outcome, output_tokens=1) for outcome in outcomes]
    calls += [CALL._replace(pool="other", is_queued=True, is_failed=True, ttft_ms=None)] * 3
    calls += [CALL._replace(output_tokens=number) for number in range(300)]
    expected: Counter[tuple[Any, ...]] = Counter()
    for call in calls:
        write_metrics([call])
        expected += counted(series_in(capsys.readouterr().out))
    write_metrics(calls)
    out = capsys.readouterr().out
    found = series_in(out)  # raises where CloudWatch would drop a metric
    assert counted(found) == expected
    assert len(out.splitlines()) == 2 + 1 + 4
    assert max(len(series.values) for series in found) > VALUES_MAX / 2
    failed = [value for series in found if series.name == "failed" for value in series.values]
    assert (len(failed), sum(failed)) == (len(calls), 3)
    assert {(series.name, series.unit) for series in found if "outcome" not in series.name} == {
        *((name, "Count") for name in ("failed", "queued", "output_tokens")),
        ("ttft_ms", "Milliseconds"),
    }
    assert {series.dimensions for series in found if series.name == "queued"} == {
        (("pool", "default"), ("service", "headgate"), ("tier", "premium")),
        (("pool", "default"), ("service", "headgate"), ("tier", "standard")),
        (("pool", "other"), ("service", "headgate"), ("tier", "standard")),
    }


def counted(found: list[Series]) -> Counter[tuple[Any, ...]]:
    return Counter(
        (each.namespace, each.name, each.dimensions, each.unit, value) for each in found for value in each.values
    )


def test_a_usual_record_is_written_to_a_pipe_whole(capsys: pytest.CaptureFixture[str]) -> None:
    write_metrics([CALL._replace(output_tokens=100_000, ttft_ms=100_000.123456)] * 96)
    (record,) = capsys.readouterr().out.splitlines(keepends=True)
    assert len(record) < 4096


async def test_lines_are_written_each_second(capsys: pytest.CaptureFixture[str]) -> None:
    calls = EndedCalls()
    for _ in range(2):
        await asyncio.sleep(10 * FLUSH_S)
        assert capsys.readouterr().out == "", "nothing is written without a call"
        calls.add(CALL)
        await asyncio.sleep(0.9 * FLUSH_S)
        calls.add(CALL)
        assert capsys.readouterr().out == ""
        await asyncio.sleep(0.2 * FLUSH_S)
        out = capsys.readouterr().out
        assert (len(lines_in(out)), [each.values for each in series_in(out) if each.name == "failed"]) == (2, [(0, 0)])


async def test_many_calls_are_written_before_the_second_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    calls = EndedCalls()
    for _ in range(CALLS_MAX - 1):
        calls.add(CALL)
    assert capsys.readouterr().out == ""
    calls.add(CALL)
    assert len(lines_in(capsys.readouterr().out)) == CALLS_MAX
    calls.add(CALL)
    await asyncio.sleep(FLUSH_S)
    assert len(lines_in(capsys.readouterr().out)) == 1, "the timer begins anew"


async def test_the_shutdown_of_a_front_writes_what_is_collected(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    app = make_app(lambda: gate.context, lambda _: None)
    async with app.router.lifespan_context(app):
        assert (await Caller(app, gate.keys["a"]).post(CHAT, BODY)).status == 200
        assert lines_in(capsys.readouterr().out) == []
    out = capsys.readouterr().out
    assert len(lines_in(out)) == len([each for each in series_in(out) if each.name == "outcome_done"]) == 1


async def test_a_log_that_nobody_reads_stops_no_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe takes 64 KB, and the queue 100 KB here. What does not fit is dropped as whole lines, and counted."""
    reading, writing = os.pipe()
    log, calls = LogLines(writing, bytes_max=100_000), EndedCalls()
    monkeypatch.setattr(sys, "stdout", log)
    for _ in range(3):
        for _ in range(CALLS_MAX):
            calls.add(CALL)
        await asyncio.sleep(0)
    assert log.dropped > 1000
    found = read_rest(log, reading, writing)
    lines = [json.loads(line) for line in found]
    kinds = Counter("metrics" if "_aws" in line else line["message"] for line in lines)
    assert kinds["invocation ended"] + kinds["metrics"] + log.dropped == 3 * (CALLS_MAX + 11)
    assert lines[-1]["message"].startswith(f"{log.dropped} log lines were dropped")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
async def test_a_full_disk_fails_no_call_of_a_front_that_writes_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front in Lambda writes directly."""
    full, calls = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w"), EndedCalls()
    monkeypatch.setattr(sys, "stdout", full)
    for _ in range(CALLS_MAX):
        calls.add(CALL)
    calls.add(CALL)
    calls.flush()
    with pytest.raises(OSError, match="No space left"):
        full.close()

"""A flush waits for the receiver of spans once; after a failure the next ones do not, for a growing time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from random import Random

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from dispatcher.otlp import PAUSE_FIRST_S, PAUSE_MAX_S, FlushPauses, OtlpTracing
from tests.support.hang_guard import HANG_S


@pytest.fixture(autouse=True)
def only_flushes_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the SDK's thread, which also sends from time to time, out of these tests."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", str(int(10 * HANG_S * 1000)))


class SetClock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def now(self) -> float:
        return self.at_s

    def monotonic(self) -> float:
        return self.at_s

    async def sleep(self, seconds: float) -> None:
        self.at_s += seconds


class Receiver(SpanExporter):
    """Takes spans while it is `well`. While `answers` is not set, it does not answer at all."""

    def __init__(self) -> None:
        self.well, self.answers = True, threading.Event()
        self.answers.set()
        self.batches: list[list[str]] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.batches.append([span.name for span in spans])
        self.answers.wait()
        return SpanExportResult.SUCCESS if self.well else SpanExportResult.FAILURE


async def flushed(tracing: OtlpTracing, name: str) -> None:
    tracing.begin(name, "", {}).end("done")
    async with asyncio.timeout(HANG_S):
        await tracing.flush()


def traced(receiver: Receiver, clock: SetClock, flush_s: float | None = None) -> OtlpTracing:
    """`flush_s` None: a flush waits for the receiver without a limit, so that a wait that should not be hangs."""
    return OtlpTracing("test", 1.0, Random(1), clock, receiver, flush_s)


async def test_a_flush_sends_what_has_ended() -> None:
    receiver = Receiver()
    await flushed(traced(receiver, SetClock()), "first")
    assert receiver.batches == [["first"]]


async def test_after_a_refusal_the_next_flushes_send_nothing_until_the_pause_ends() -> None:
    receiver, clock = Receiver(), SetClock()
    tracing = traced(receiver, clock)
    receiver.well = False
    await flushed(tracing, "first")
    receiver.answers.clear()  # a flush that waited now would not end
    for name in ("second", "third"):
        await flushed(tracing, name)
    assert receiver.batches == [["first"]]
    receiver.well = True
    receiver.answers.set()
    clock.at_s += PAUSE_FIRST_S
    await flushed(tracing, "fourth")
    assert sorted(name for batch in receiver.batches[1:] for name in batch) == ["fourth", "second", "third"]


async def test_a_silent_receiver_costs_one_wait() -> None:
    receiver, clock = Receiver(), SetClock()
    receiver.answers.clear()
    tracing = traced(receiver, clock, flush_s=0.01)
    await flushed(tracing, "first")
    tracing.flush_s = None
    await flushed(tracing, "second")
    receiver.answers.set()


async def test_a_flush_with_nothing_to_send_ends_no_pause() -> None:
    receiver, clock = Receiver(), SetClock()
    tracing = traced(receiver, clock)
    receiver.well = False
    await flushed(tracing, "first")
    clock.at_s += PAUSE_FIRST_S
    await tracing.flush()
    await flushed(tracing, "second")  # the second failure: a pause of twice the length
    clock.at_s += PAUSE_FIRST_S
    receiver.answers.clear()
    await flushed(tracing, "third")
    assert receiver.batches == [["first"], ["second"]]
    receiver.answers.set()


@pytest.mark.parametrize("failures", [1, 2, 3, 10])
def test_pauses_double_up_to_a_bound(failures: int) -> None:
    pauses, now_s = FlushPauses(), 0.0
    for number in range(failures):
        assert pauses.allow(now_s)
        pauses.on_failure(now_s)
        pauses.on_failure(now_s)  # a second wait that began before the first one failed
        pause_s = min(PAUSE_FIRST_S * 2**number, PAUSE_MAX_S)
        assert not pauses.allow(now_s + pause_s - 1)
        now_s += pause_s
    pauses.on_failure(now_s)
    pauses.sent()
    assert pauses.allow(now_s)
    pauses.on_failure(now_s)
    assert pauses.allow(now_s + PAUSE_FIRST_S)

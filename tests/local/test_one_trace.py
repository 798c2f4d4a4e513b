"""Each request is one connected trace across the processes of the local stack, and no span holds user text or a key."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator

import pytest

from tests.support.local.stack import Running, eventually, start, stop
from tests.support.otlp_collector import Collector, Seen, otlp_collector

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]

PROMPT, KEY = "canary-prompt-7391", "canary-key-5520"
CLIENT_SPAN = "00f067aa0ba902b7"
SLOTS = 2


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with otlp_collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def stack(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")  # milliseconds
        options = ("--engine", "modelled", "--slots", str(SLOTS), "--workers", "2")
        started = start(tmp_path_factory.mktemp("stack"), *options)
    yield started
    stop(started)


def traced() -> tuple[str, dict[str, str]]:
    """Return a new trace and the header of a client that is in it, with baggage that must go nowhere."""
    trace = secrets.token_hex(16)
    return trace, {"traceparent": f"00-{trace}-{CLIENT_SPAN}-01", "baggage": PROMPT, "tracestate": f"x={KEY}"}


def connected(collector: Collector, trace: str, settled: int = 1) -> list[Seen]:
    """Wait for the trace with so many reports. Check that every span's parent is in it; the client's is the root's."""

    def is_whole(spans: list[Seen]) -> bool:
        return sum(span.name == "settled" for span in spans) >= settled and not orphans(spans)

    return eventually(lambda: collector.trace(trace), is_whole)


def orphans(spans: list[Seen]) -> list[Seen]:
    known = {span.id for span in spans} | {CLIENT_SPAN}
    return [span for span in spans if span.parent not in known]


def names(spans: list[Seen]) -> set[tuple[str, str]]:
    return {(span.service.removeprefix("headgate-"), span.name) for span in spans}


WORKER = {("worker", "queued"), ("worker", "generated"), ("worker", "settled")}
FRONT = {("front", "admitted"), ("front", "waited"), ("front", "dispatched")}


def test_a_streamed_request(stack: Running, collector: Collector) -> None:
    trace, headers = traced()
    stream = stack.openai().completions.create(
        model=stack.model, prompt=PROMPT, max_tokens=5, stream=True, extra_headers=headers
    )
    assert len(list(stream)) > 1
    spans = connected(collector, trace)
    assert names(spans) == FRONT | WORKER
    roots = [span.name for span in spans if span.parent == CLIENT_SPAN]
    assert roots == ["admitted"]
    dispatched = next(span for span in spans if span.name == "dispatched")
    assert {span.parent for span in spans if span.service == "headgate-worker"} == {dispatched.id}
    assert dispatched.attributes["headgate.tenant"] == "quiet"
    assert dispatched.attributes["headgate.attempt"] == 1
    assert dispatched.attributes["headgate.output_tokens"] == 5


def test_a_queued_request(stack: Running, collector: Collector) -> None:
    """More requests than slots: the late ones wait at the gate, and their traces say so."""
    asked = [traced() for _ in range(3 * 2 * SLOTS)]

    async def story() -> None:
        async with stack.async_openai() as client:
            await asyncio.gather(
                *(
                    client.completions.create(model=stack.model, prompt=PROMPT, max_tokens=60, extra_headers=headers)
                    for _, headers in asked
                )
            )

    asyncio.run(story())
    traces = [connected(collector, trace) for trace, _ in asked]
    admitted = [span.attributes["headgate.outcome"] for spans in traces for span in spans if span.name == "admitted"]
    assert "waiting" in admitted
    assert "offer" in admitted


def test_a_detached_request(stack: Running, collector: Collector) -> None:
    """An Event invoke is one trace, with the idempotency key nowhere in it."""
    trace, headers = traced()
    payload = {"model": stack.model, "prompt": PROMPT, "max_tokens": 5, "idempotency_key": KEY}
    payload |= {"api_key": stack.api_keys["quiet"], "traceparent": headers["traceparent"]}
    stack.aws("lambda").invoke(
        FunctionName="headgate-invoke", InvocationType="Event", Payload=json.dumps(payload).encode()
    )
    assert names(connected(collector, trace)) == FRONT | WORKER


def test_no_span_holds_what_a_user_wrote(stack: Running, collector: Collector) -> None:
    sent = b"".join(collector.raw)
    assert b"headgate.tenant" in sent
    for secret in (PROMPT, KEY, *stack.api_keys.values()):
        assert secret.encode() not in sent


def test_a_request_whose_worker_is_killed(stack: Running, collector: Collector) -> None:
    """Both attempts are in one trace, and only the second one has a report. The last test: it takes a worker."""
    asked = [traced() for _ in range(2 * SLOTS)]

    async def story() -> None:
        async with stack.async_openai() as client:
            requests = [
                asyncio.create_task(
                    client.completions.create(model=stack.model, prompt=PROMPT, max_tokens=400, extra_headers=headers)
                )
                for _, headers in asked
            ]
            await asyncio.to_thread(
                eventually,
                lambda: sum(worker["running"] for worker in stack.top()["workers"]),
                lambda running: running == 2 * SLOTS,
            )
            stack.kill("worker", 0)
            await asyncio.gather(*requests)

    asyncio.run(story())
    traces = [connected(collector, trace) for trace, _ in asked]
    attempts = [
        [(span.attributes["headgate.attempt"], span.attributes["headgate.outcome"]) for span in spans if
         span.name == "dispatched"]
        for spans in traces
    ]  # fmt: skip
    assert any(len(each) > 1 and each[-1][1] == "finished" for each in map(sorted, attempts)), attempts

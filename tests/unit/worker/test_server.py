"""The worker's HTTP server: orders that it accepts, how it refuses others, and slow or broken connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from math import inf
from typing import Any

import pytest

from dispatcher.model.commands import End, Return
from dispatcher.model.fleet_secrets import ExecutionToken, FleetSecrets, digest, sign
from dispatcher.model.requests import Endpoint
from dispatcher.model.worker_protocol import Finished, WorkEvent, WorkOrder, WorkRefused
from dispatcher.processes.bootstrap import RealClock
from dispatcher.workers.wire import BODY_BYTES_MAX, encode_order
from gpu_worker.engines.interface import EngineError, EngineEvent
from gpu_worker.service.server import BODY_S, STALLED_S, LinesResponse, make_app, metrics_token, stats_token
from tests.support.asgi import Call, Caller
from tests.support.worker.harness import SECRET, WorkerHarness, order
from tests.support.worker.scripted_engine import ScriptedEngine, prompt_of
from tests.support.world.virtual_time import START

pytestmark = pytest.mark.virtual_time


def refusal(events: list[WorkEvent]) -> tuple[int, str]:
    (event,) = events
    assert isinstance(event, WorkRefused)
    return event.status, event.code


async def test_an_order_is_executed_and_streamed() -> None:
    harness = WorkerHarness()
    events = await harness.execute(order())
    assert events[-1] == Finished("length", 5, 3)
    assert harness.engine.requests[0].terms.tenant == "a"
    (end,) = harness.gate.ended
    assert (end.id, end.attempt, end.outcome, end.input_tokens, end.output_tokens) == ("i", 1, "done", 5, 3)


async def test_chat_is_rendered_by_the_engine() -> None:
    harness = WorkerHarness()
    await harness.execute(order(endpoint=Endpoint.CHAT, body={"messages": [{"role": "user", "content": "hi"}]}))
    assert prompt_of(harness.engine.requests[0]) == "hi"


FAILED, RETURNED, NOTHING = "failed", "refused", ""


@pytest.mark.parametrize(
    ("work", "worker", "expected", "reported"),
    [
        (order(), "another", (401, "grant_refused"), NOTHING),
        (order(body={"prompt": "x" * BODY_BYTES_MAX}), "w", (413, "request_too_large"), NOTHING),
        (order(model="other"), "w", (404, "model_not_found"), RETURNED),
        (order(model="adapter:m"), "w", (404, "model_not_found"), RETURNED),
        (order(max_tokens=-1), "w", (422, "invalid_order"), FAILED),
        (order(body={"prompt": "x" * 2000}), "w", (400, "context_length_exceeded"), FAILED),
    ],
)
async def test_what_is_refused_and_how(work: WorkOrder, worker: str, expected: tuple[int, str], reported: str) -> None:
    """Final is what the log says ended. What is not reported was not proven to be the gate's."""
    harness = WorkerHarness()
    (refused,) = await harness.execute(work, worker)
    assert isinstance(refused, WorkRefused)
    assert (refused.status, refused.code) == expected
    await harness.executions.idle()
    assert harness.executions.live() == frozenset()
    assert refused.final == (reported == FAILED)
    ends: list[End | Return] = [*harness.gate.ended, *harness.gate.returned]
    assert [end.outcome if isinstance(end, End) else end.reason for end in ends] == ([reported] if reported else [])


async def test_messages_that_the_template_refuses_are_the_tenants_error_and_hold_no_slot() -> None:
    class Strict(ScriptedEngine):
        async def generate(self, request: WorkOrder) -> AsyncGenerator[EngineEvent, None]:
            raise EngineError("invalid_messages", "no")
            yield

    harness = WorkerHarness(Strict())
    work = order(endpoint=Endpoint.CHAT, body={"messages": [{"role": "user", "content": "hi"}]})
    assert refusal(await harness.execute(work)) == (400, "invalid_messages")
    await harness.executions.idle()
    assert harness.executions.live() == frozenset()


async def test_no_more_than_its_slots_and_none_twice() -> None:
    harness = WorkerHarness()
    running = [asyncio.ensure_future(harness.execute(order(f"i{n}"))) for n in range(2)]
    await asyncio.sleep(0.05)
    assert refusal(await harness.execute(order("i2"))) == (503, "worker_full")
    assert refusal(await harness.execute(order("i0"))) == (409, "seen_already")
    await asyncio.gather(*running)
    assert isinstance((await harness.execute(order("i3")))[-1], Finished)


async def test_a_replayed_order_is_refused_and_nothing_is_reported_for_it() -> None:
    """The very bytes and token again, while it runs and when it is over."""
    harness = WorkerHarness()
    raw = encode_order(order(max_tokens=20))
    headers = {"authorization": f"Bearer {sign(harness.token(order(), raw), SECRET)}"}
    harness.gate.offer("i")

    def send() -> Call:
        return Call(harness.app, "POST", "/v1/execute", headers=headers, body=raw)

    first = send()
    await asyncio.sleep(1)
    replies = [await send().finished(), await first.finished(), await send().finished()]
    assert [reply.status for reply in replies] == [409, 200, 409]
    assert replies[0].json()["code"] == "seen_already"
    assert not replies[0].json()["final"]
    assert len(harness.engine.requests) == len(harness.gate.ended) == 1
    assert not harness.gate.returned


@pytest.mark.parametrize("other", [{"attempt": 2}, {"invocation": "j"}])
async def test_a_grant_for_another_execution_is_refused(other: dict[str, Any]) -> None:
    """Even where it was signed over these very bytes."""
    harness = WorkerHarness()
    raw, asked = encode_order(order()), order(**other)
    token = ExecutionToken("w", asked.invocation, asked.attempt, START + 30, digest(raw))
    headers = {"authorization": f"Bearer {sign(token, SECRET)}"}
    assert (await Call(harness.app, "POST", "/v1/execute", headers=headers, body=raw).finished()).status == 401


async def test_refusals_of_a_grant_are_all_alike() -> None:
    app = WorkerHarness().app
    tokens = ["", "Bearer", "Bearer x.y", "Bearer é", "Basic abc", f"Bearer {'a' * 5000}"]
    calls = [Call(app, "POST", "/v1/execute", headers={"authorization": token}, body=b"{}") for token in tokens]
    replies = [await call.finished() for call in calls]
    assert {reply.status for reply in replies} == {401}
    assert len({reply.body for reply in replies}) == 1


async def test_an_order_that_does_not_arrive_holds_the_door_no_longer_than_stated() -> None:
    harness = WorkerHarness()
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        await asyncio.sleep(BODY_S / 3)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/execute", "headers": [], "query_string": b""}
    await harness.app(scope, receive, send)  # type: ignore[arg-type]
    assert (int(str(sent[0]["status"])), harness.clock.now() - START) == (503, BODY_S)


@pytest.mark.parametrize(
    ("path", "token_of", "others"), [("/stats", stats_token, metrics_token), ("/metrics", metrics_token, stats_token)]
)
async def test_stats_and_metrics_need_a_token_of_their_own_and_health_none(
    path: str, token_of: Callable[[bytes], str], others: Callable[[bytes], str]
) -> None:
    app = WorkerHarness().app
    tokens = [None, "wrong", "é", others(SECRET), token_of(b"another fleet's secret"), token_of(SECRET)]
    headers = [{} if token is None else {"authorization": f"Bearer {token}"} for token in tokens]
    replies = [await Call(app, "GET", path, headers=header).finished() for header in headers]
    assert [reply.status for reply in replies] == [401, 401, 401, 401, 401, 200]
    if path == "/stats":
        assert set(replies[-1].json()) == {"waiting", "running", "kv_use", "tenants", "tiers", "shed"}
        assert replies[-1].json()["tenants"]["a"].keys() == {"input_tokens", "output_tokens", "service"}
    else:
        assert replies[-1].headers["content-type"].startswith("text/plain; version=")
        assert b"# TYPE headgate_shed_level gauge" in replies[-1].body
    assert (await Call(app, "GET", "/health").finished()).status == 200


async def test_tokens_of_both_secrets_are_valid_during_a_rotation() -> None:
    harness = WorkerHarness()
    rotating = FleetSecrets(f"{SECRET.decode()},the secret from now on")
    app = make_app(harness.executions, worker_id="w", secrets=rotating, clock=harness.clock)
    headers = [{"authorization": f"Bearer {metrics_token(secret)}"} for secret in rotating]
    assert [(await Call(app, "GET", "/metrics", headers=header).finished()).status for header in headers] == [200, 200]


class TestReaders:
    """A connection as the server sees it."""

    async def test_one_that_hangs_up_is_aborted_and_charged_to_the_token(self) -> None:
        harness = WorkerHarness()
        call = harness.call(order(max_tokens=500))
        await asyncio.sleep(1.05)
        call.hang_up()
        await call.finished()
        await harness.executions.idle()
        (end,) = harness.gate.ended
        assert (end.outcome, end.input_tokens, end.output_tokens) == ("cancelled", 5, harness.engine.generated)
        assert 10 <= harness.engine.generated <= 12

    async def test_one_that_stops_reading_is_cut_off_after_the_stated_time(self) -> None:
        harness = WorkerHarness()
        call = harness.call(order(max_tokens=900))
        await asyncio.sleep(1)
        call.reading.clear()
        stalled_at = harness.clock.now()
        await call.finished()
        await harness.executions.idle()
        held_s = harness.clock.now() - stalled_at
        assert STALLED_S <= held_s <= STALLED_S + 1
        assert [(end.outcome, end.output_tokens) for end in harness.gate.ended] == [
            ("cancelled", harness.engine.generated)
        ]
        assert harness.executions.live() == frozenset()

    async def test_and_near_its_deadline_sooner(self) -> None:
        harness = WorkerHarness()
        call = harness.call(order(max_tokens=900, deadline_at=START + 5))
        await asyncio.sleep(1)
        call.reading.clear()
        await call.finished()
        await harness.executions.idle()
        assert 5 <= harness.clock.now() - START <= 7

    async def test_one_that_pauses_for_less_loses_nothing(self) -> None:
        harness = WorkerHarness()
        call = harness.call(order(max_tokens=30))
        await asyncio.sleep(1)
        call.reading.clear()
        await asyncio.sleep(STALLED_S - 1)
        call.reading.set()
        events = [json.loads(line)["event"] for line in (await call.finished()).body.splitlines()]
        assert events.count("token") == 30
        assert events[-1] == "finished"

    async def test_one_that_reads_waits_longer_near_its_deadline_than_a_line_may_take(self) -> None:
        """The time between two lines is the engine's and the log's, and not the reader's."""
        harness = WorkerHarness(ScriptedEngine(token_s=0.9))
        harness.gate.answers_s = 1.8
        reply = await harness.call(order(max_tokens=900, deadline_at=START + 2)).finished()
        assert json.loads(reply.body.splitlines()[-1])["code"] == "deadline_exceeded"

    async def test_one_that_is_gone_before_the_first_line_leaves_nothing(self) -> None:
        harness = WorkerHarness()
        call = harness.call(order(max_tokens=500))
        call.hang_up()
        await call.finished()
        await harness.executions.idle()
        assert harness.executions.live() == frozenset()
        assert [end.outcome for end in harness.gate.ended] == ["cancelled"]
        assert harness.engine.generated <= 1

    async def test_silence_of_the_engine_is_filled_with_signs_of_life(self) -> None:
        class Slow(ScriptedEngine):
            async def generate(self, request):  # type: ignore[no-untyped-def]
                await asyncio.sleep(7)
                async for event in super().generate(request):
                    yield event

        reply = await WorkerHarness(Slow()).call(order()).finished()
        events = [json.loads(line)["event"] for line in reply.body.splitlines()]
        assert events[:4] == ["alive", "alive", "alive", "started"]


async def test_no_reply_names_what_was_asked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    harness = WorkerHarness()
    works = [
        order(body={"prompt": "canary " * 200}),
        order(body={"prompt": "canary"}, max_tokens=-1),
        order(body={"prompt": "canary"}),
    ]
    assert b"canary" not in b"".join([(await harness.call(work).finished()).body for work in works])
    assert "canary" not in caplog.text


async def test_paths_that_do_not_exist() -> None:
    caller = Caller(WorkerHarness().app, None)
    assert [(await caller.get("/v1/execute")).status, (await caller.post("/")).status] == [405, 404]


async def test_a_timeout_inside_the_lines_is_no_stalled_reader() -> None:
    async def lines() -> AsyncGenerator[bytes, None]:
        yield b"{}\n"
        raise TimeoutError("of the engine")

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(_: object) -> None:
        return None

    response = LinesResponse(None, lines(), name="p-1#1", deadline_at=inf, clock=RealClock())
    with pytest.raises(TimeoutError, match="of the engine"):
        await response({"type": "http"}, receive, send)

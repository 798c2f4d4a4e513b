"""A front in Lambda: nothing runs after the last byte, and what a caller may cost is bounded. In virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from dispatcher.model.facts import Ended
from dispatcher.model.tracing import NO_TRACING
from dispatcher.operations.context import Context
from dispatcher.operations.limits import LimitSettings
from tests.support.asgi import Call
from tests.support.world.memory_gate import CHAT, Gate
from tests.support.world.story import take_slots
from tests.support.world.worker_client import Act, dies_after

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
RESPONSES = "/v1/responses"
ASKED: dict[str, Any] = {"model": "m", "input": "hello", "max_output_tokens": 20}


def in_lambda(gate: Gate, *, waiting_max: int = 2, **bounds: Any) -> Context:
    context = gate.process(LimitSettings(waiting_executions_max=waiting_max), front="lambda", **bounds)
    gate.contexts.insert(0, gate.contexts.pop())
    return context


class Freezing(Call):
    """Notes what is unfinished in the front at the moment of the last byte."""

    unfinished: tuple[int, int, int] | None = None
    at_last_byte: Callable[[], str] | None = None
    found: str | None = None
    """What `at_last_byte` returned."""
    context: Context
    gate: Gate

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            link = self.gate.link(self.context)
            if self.at_last_byte is not None:
                self.found = self.at_last_byte()
            self.unfinished = (len(self.context.tasks), len(link.held), len(self.gate.shard.shard.state.calls))
        await super()._send(message)


def freezing(gate: Gate, path: str, body: dict[str, Any], **headers: str) -> Freezing:
    given = {"authorization": f"Bearer {gate.keys['a']}", **{name.replace("_", "-"): v for name, v in headers.items()}}
    call = Freezing(gate.caller().app, "POST", path, headers=given, body=json.dumps(body).encode())
    call.context, call.gate = gate.context, gate
    return call


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [(CHAT, BODY), (RESPONSES, ASKED)])
@pytest.mark.parametrize("key", ["", "k"])
async def test_nothing_is_unfinished_at_the_last_byte(
    gate: Gate, path: str, body: dict[str, Any], stream: bool, key: str
) -> None:
    in_lambda(gate)
    headers = {"idempotency_key": key} if key else {}
    call = freezing(gate, path, {**body, "stream": stream}, **headers)
    assert (await call.finished()).status == 200
    assert call.unfinished == (0, 0, 0)
    assert len(gate.ends("done")) == 1


async def test_spans_are_exported_before_the_freeze(gate: Gate) -> None:
    context = in_lambda(gate)
    context.tracing = Mock(wraps=NO_TRACING)
    await freezing(gate, CHAT, BODY).finished()
    assert context.tracing.flush.call_count >= 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [(CHAT, BODY), (RESPONSES, ASKED)])
async def test_the_line_and_the_metrics_are_written_before_the_freeze(
    gate: Gate, path: str, body: dict[str, Any], stream: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    in_lambda(gate)
    call = freezing(gate, path, {**body, "stream": stream})
    call.at_last_byte = lambda: capsys.readouterr().out
    assert (await call.finished()).status == 200
    assert call.found is not None
    assert [name in call.found for name in ('"invocation ended"', '"outcome_done":[1]')] == [True, True]


async def test_a_caller_that_leaves_has_its_line_before_the_freeze(
    gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    in_lambda(gate)
    call = freezing(gate, CHAT, {**BODY, "stream": True, "max_tokens": 50})
    await asyncio.sleep(0.25)
    call.hang_up()
    await asyncio.wait({call.task})
    assert '"outcome_disconnected":[1]' in capsys.readouterr().out


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_answer_is_settled_before_its_last_byte(gate: Gate, stream: bool) -> None:
    in_lambda(gate)
    gate.workers.acts += [dies_after(2)] if stream else [dies_after(2)] * 8
    call = freezing(gate, CHAT, {**BODY, "stream": stream, "max_tokens": 30})
    await call.finished()
    assert call.unfinished is not None
    assert call.unfinished[:2] == (0, 0)


async def test_a_whole_answer_ends_before_the_gateway_and_is_settled(gate: Gate) -> None:
    in_lambda(gate, lambda_whole_s=5.0)
    gate.workers.acts.append(Act(token_s=1.0))
    started = gate.clock.now()
    call = freezing(gate, CHAT, {**BODY, "max_tokens": 100})
    reply = await call.finished()
    assert gate.clock.now() - started == pytest.approx(5.0, abs=0.5)
    assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")
    assert "Stream it" in reply.error["message"]
    assert call.unfinished is not None
    assert call.unfinished[:2] == (0, 0)
    await gate.quiet()
    (ended,) = [fact for fact in gate.shard.facts if isinstance(fact, Ended)]
    assert ended.outcome == "cancelled"
    assert 0 < gate.spent("a") < 50


async def test_a_whole_answer_with_a_key_goes_on(gate: Gate) -> None:
    in_lambda(gate, lambda_whole_s=5.0)
    gate.workers.acts.append(Act(token_s=1.0))
    body = {**BODY, "max_tokens": 20}
    reply = await freezing(gate, CHAT, body, idempotency_key="k").finished()
    assert reply.status == 504
    assert "same Idempotency-Key" in reply.error["message"]
    await asyncio.sleep(30)
    again = await freezing(gate, CHAT, body, idempotency_key="k").finished()
    assert (again.status, again.json()["usage"]["completion_tokens"]) == (200, 20)
    assert len(gate.ends("done")) == 1


async def test_a_caller_that_has_gone_costs_at_most_the_budget(gate: Gate) -> None:
    """Nobody reads, and nobody says so: the stream goes on to the budget's last token, which is charged."""
    in_lambda(gate, lambda_tokens_max=40)
    body = {name: value for name, value in BODY.items() if name != "max_tokens"}
    call = freezing(gate, CHAT, {**body, "stream": True})
    assert (await call.finished()).status == 200
    assert [end.output_tokens for end in gate.ends("done")] == [40]
    refused = await freezing(gate, CHAT, {**BODY, "max_tokens": 41}).finished()
    assert refused.status == 400
    assert refused.error["message"] == "max_tokens is at most 40 through a front in Lambda."


async def test_few_calls_of_a_tenant_wait_in_executions(gate: Gate) -> None:
    in_lambda(gate, waiting_max=2)
    busy = [gate.caller("b").start("POST", CHAT, {**BODY, "max_tokens": 50}) for _ in range(2)]
    await asyncio.sleep(0.01)
    calls = [gate.caller("a").start("POST", CHAT, BODY) for _ in range(4)]
    for call in (*calls, *busy):
        await call.finished()
    assert [call.reply.status for call in calls] == [200, 200, 429, 429]
    assert calls[3].reply.error["code"] == "waiting_executions"
    assert int(calls[3].reply.headers["retry-after"]) >= 1


async def test_a_server_front_has_none_of_these_bounds(gate: Gate) -> None:
    gate.contexts.insert(0, gate.process(LimitSettings(waiting_executions_max=0)))
    gate.contexts.pop()
    busy = await take_slots(gate, max_tokens=50)
    assert (await gate.caller("a").post(CHAT, BODY)).status == 200
    await busy

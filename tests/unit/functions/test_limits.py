"""The limits of the HTTP front: a flood, slow senders and slow readers take no connection of other tenants."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import ANY

import pytest

from dispatcher.operations.context import Context
from dispatcher.operations.limits import QUEUE_FULL_S, LimitSettings
from functions.invoke.handler import invoke
from functions.result.handler import result
from tests.support.asgi import Call, Caller, Reply
from tests.support.world.memory_gate import CHAT, Gate
from tests.support.world.store_faults import Slow
from tests.support.world.story import take_slots
from tests.support.world.worker_client import Act

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}


def front(gate: Gate, **limits: Any) -> Context:
    context = gate.process(LimitSettings(**limits))
    gate.contexts.insert(0, gate.contexts.pop())
    return context


def refusal(reply: Reply, code: str) -> None:
    assert (reply.status, reply.error["code"], reply.error["type"]) == (429, code, "rate_limit_error")
    assert int(reply.headers["retry-after"]) >= 1
    assert f"limit `{code}`" in reply.error["message"]
    assert "Try again in about" in reply.error["message"]


async def test_a_flood_of_one_tenant_leaves_connections_to_others(gate: Gate) -> None:
    front(gate, process_requests_max=40, open_requests_max=1000)
    app = gate.caller().app
    flood, quiet = Caller(app, gate.keys["a"]), Caller(app, gate.keys["b"])
    calls = [flood.start("POST", CHAT, BODY) for _ in range(39)]
    await asyncio.sleep(0.01)
    refused = [call for call in calls if call.task.done()]
    assert len(refused) == 19
    for call in refused:
        refusal(call.reply, "open_requests")
    others = [quiet.start("POST", CHAT, BODY) for _ in range(10)]
    for call in others:
        assert (await call.finished()).status == 200
    for call in calls:
        await call.finished()


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m", "/v1/usage"])
async def test_reads_count_among_a_tenants_open_requests(gate: Gate, path: str) -> None:
    front(gate, open_requests_max=1)
    app = gate.caller().app
    busy = Caller(app, gate.keys["a"]).start("POST", CHAT, BODY)
    await asyncio.sleep(0.01)
    refusal(await Caller(app, gate.keys["a"]).get(path), "open_requests")
    assert (await Caller(app, gate.keys["b"]).get(path)).status == 200
    await busy.finished()
    for _ in range(3):
        assert (await Caller(app, gate.keys["a"]).get(path)).status == 200


async def test_a_process_that_is_full_says_so_before_it_looks_up_the_key(gate: Gate) -> None:
    front(gate, process_requests_max=2)
    app = gate.caller().app
    busy = [Caller(app, gate.keys[tenant]).start("POST", CHAT, BODY) for tenant in ("a", "b")]
    await asyncio.sleep(0.01)
    lookups = gate.store.requests["get KEY"]
    refusal(await Caller(app, "hg-unknown").post(CHAT, BODY), "process_requests")
    assert gate.store.requests["get KEY"] == lookups
    assert (await Caller(app, None).get("/health")).status == 200, "a full process is not a sick one"
    for call in busy:
        await call.finished()
    assert (await Caller(app, gate.keys["a"]).post(CHAT, BODY)).status == 200


async def test_a_full_queue_is_refused_for_a_moment_without_the_gate_or_the_body(gate: Gate) -> None:
    await gate.add_tenant("small", queue_items_max=1)
    busy = [gate.caller("b").start("POST", CHAT, BODY) for _ in range(2)]
    await asyncio.sleep(0.01)
    waiting = gate.caller("small").start("POST", CHAT, BODY)
    await asyncio.sleep(0.01)
    first = await gate.caller("small").post(CHAT, BODY)
    assert (first.status, first.error["code"], first.error["type"]) == (429, "queue_full", "rate_limit_error")
    decided = len(gate.shard.commands)
    again = await gate.caller("small").post(CHAT, {"not": "read"})
    assert (again.status, again.body) == (429, first.body)
    assert again.headers["retry-after"] == first.headers["retry-after"]
    assert len(gate.shard.commands) == decided
    others = gate.caller("a").start("POST", CHAT, BODY)
    await asyncio.sleep(0.01)
    keyed = await gate.caller("small").post(CHAT, BODY, idempotency_key="k")
    assert (keyed.status, keyed.error["code"]) == (429, "queue_full")
    assert len(gate.shard.commands) == decided + 2, "another tenant, and a key that may have its answer, are decided"
    await asyncio.sleep(QUEUE_FULL_S)
    assert (await gate.caller("small").post(CHAT, BODY)).status == 429
    assert len(gate.shard.commands) == decided + 3
    for call in (*busy, waiting, others):
        assert (await call.finished()).status == 200
    await gate.at_rest()


async def test_one_key_is_not_repeated_without_bound(gate: Gate) -> None:
    front(gate, same_key_max=3)
    caller = gate.caller()
    calls = [caller.start("POST", CHAT, BODY, idempotency_key="k") for _ in range(5)]
    replies = [await call.finished() for call in calls]
    assert [reply.status for reply in replies] == [200, 200, 200, 429, 429]
    for reply in replies[3:]:
        refusal(reply, "same_key")
    assert len(gate.workers.orders) == 1


class SlowCall(Call):
    """Sends its body in two parts with a pause between them."""

    pause_s = 60.0
    paused = False

    async def _receive(self) -> dict[str, Any]:
        if self._body is None:
            return await super()._receive()
        if not self.paused:
            self.paused = True
            part, self._body = self._body[:10], self._body[10:]
            return {"type": "http.request", "body": part, "more_body": True}
        await asyncio.sleep(self.pause_s)
        return await super()._receive()


@pytest.mark.parametrize(("pause_s", "status"), [(4.0, 200), (6.0, 408)])
async def test_a_slow_sender_is_refused_after_a_time(gate: Gate, pause_s: float, status: int) -> None:
    front(gate, body_s=5.0)
    headers = {"authorization": f"Bearer {gate.keys['a']}"}
    body = json.dumps(BODY).encode()
    call = SlowCall(gate.caller().app, "POST", CHAT, headers=headers, body=body)
    call.pause_s = pause_s
    started = gate.clock.now()
    reply = await call.finished()
    assert reply.status == status
    if status == 408:
        assert reply.error["code"] == "request_timeout"
        assert gate.clock.now() - started == pytest.approx(5.0)
        assert gate.workers.orders == []


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
async def test_a_caller_that_does_not_read_is_disconnected(gate: Gate, spec_version: str) -> None:
    front(gate, send_s=5.0)
    gate.workers.acts.append(Act(token_s=0.01))
    call = gate.caller().start("POST", CHAT, {**BODY, "stream": True, "max_tokens": 4000}, spec_version=spec_version)
    await asyncio.sleep(0.05)
    call.reading.clear()
    started = gate.clock.now()
    await call.task
    assert 5.0 <= gate.clock.now() - started <= 6.5
    await gate.quiet()
    assert len(gate.ends("cancelled")) == 1
    assert b"[DONE]" not in call.reply.body


async def test_an_execution_does_not_wait_behind_many_of_its_tenant(gate: Gate) -> None:
    """It leaves its request in the queue: a tenant's backlog does not take the executions of all tenants."""
    front(gate, waiting_executions_max=2)
    busy = await take_slots(gate, max_tokens=50)
    event = {"api_key": gate.keys["a"], **BODY}
    calls = [asyncio.ensure_future(invoke(gate.context, event, f"r{n}", 60.0)) for n in range(4)]
    await asyncio.sleep(0.1)
    assert [call.done() for call in calls] == [False, False, True, True]
    queued = {"id": "r2", "status": "queued", "queue_position": 3, "estimated_wait_s": ANY, "estimated_wait_p90_s": ANY}
    assert calls[2].result() == queued
    await busy
    answers = await asyncio.gather(*calls[:2])
    assert all(answer["choices"] for answer in answers)
    await asyncio.sleep(1)
    await gate.quiet()
    for call_id in dict(gate.launcher.launched):
        gate.shard.decide_cancel(call_id)


async def test_a_flood_of_invokes_is_refused_with_a_time(gate: Gate) -> None:
    front(gate, open_requests_max=2)
    event = {"api_key": gate.keys["a"], **BODY}
    answers = await asyncio.gather(*(invoke(gate.context, event, f"r{n}", 60.0) for n in range(4)))
    assert [answer.get("status") for answer in answers] == [None, None, 429, 429]
    assert (answers[3]["error"]["code"], answers[3]["retry_after_s"]) == ("open_requests", 1.0)


async def test_a_flood_of_looks_at_results_is_refused_with_a_time(gate: Gate) -> None:
    front(gate, open_requests_max=2)
    await invoke(gate.context, {"api_key": gate.keys["a"], **BODY}, "r", 60.0)
    gate.store.faults = Slow(0.1)
    looks = [result(gate.context, {"api_key": gate.keys["a"], "id": "r"}) for _ in range(4)]
    other = result(gate.context, {"api_key": gate.keys["b"], "id": "r"})
    *answers, others = await asyncio.gather(*looks, other)
    assert [answer["status"] for answer in answers].count("done") == 2
    refused = [answer for answer in answers if answer["status"] == 429]
    assert [(each["error"]["code"], each["retry_after_s"]) for each in refused] == [("open_requests", 1.0)] * 2
    assert others["status"] == 404


async def test_identical_keys_in_flight_are_bounded_in_functions_too(gate: Gate) -> None:
    front(gate, same_key_max=2)
    event = {"api_key": gate.keys["a"], "idempotency_key": "k", **BODY}
    answers = await asyncio.gather(*(invoke(gate.context, event, f"r{n}", 60.0) for n in range(4)))
    assert [answer.get("status") for answer in answers] == [None, None, 429, 429]
    assert (answers[3]["error"]["code"], answers[3]["retry_after_s"]) == ("same_key", 1.0)
    assert len(gate.workers.orders) == 1


async def test_unknown_api_keys_are_looked_up_at_a_bounded_rate_in_functions_too(gate: Gate) -> None:
    context = front(gate, unknown_keys_per_s=1.0, unknown_keys_burst=3)
    reads = gate.store.requests["get KEY"]
    guesses = [{"api_key": f"hg-unknown{n:05}-guess", "id": "r"} for n in range(4)]
    answers = [await result(context, guess) for guess in guesses[:2]]
    answers += [await invoke(context, {**BODY, "api_key": guess["api_key"]}, "r", 60.0) for guess in guesses[2:]]
    assert [answer["status"] for answer in answers] == [401, 401, 401, 429]
    assert answers[3]["error"]["code"] == "unknown_keys"
    assert gate.store.requests["get KEY"] == reads + 3

"""headgate-invoke and headgate-result: a user's error is a payload, a fault of ours is raised."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import ANY

import pytest

from dispatcher.model.commands import Leave
from dispatcher.model.errors import DeadlineExceeded, NoWorker, ServiceError, WorkerFailed
from dispatcher.operations.calls.detached import execute_detached
from dispatcher.operations.pools import FRESH_S
from functions.invoke.handler import invoke
from functions.result.handler import result
from tests.support.world.memory_gate import Gate
from tests.support.world.story import begun, take_slots
from tests.support.world.worker_client import SHED, UNREACHABLE, Act, dies_after, refuses

REMAINING_S = 60.0


def payload(gate: Gate, tenant: str = "a", **more: Any) -> dict[str, Any]:
    return {"api_key": gate.keys[tenant], "model": "m", "prompt": "hello", "max_tokens": 3, **more}


async def invoked(gate: Gate, event: Any, request_id: str = "r-1", remaining_s: float = REMAINING_S) -> dict[str, Any]:
    return await invoke(gate.context, event, request_id, remaining_s)


async def fetched(gate: Gate, tenant: str, invocation_id: str) -> dict[str, Any]:
    return await result(gate.context, {"api_key": gate.keys[tenant], "id": invocation_id})


async def test_the_answer_is_openais(gate: Gate) -> None:
    body = await invoked(gate, payload(gate))
    assert (body["object"], body["choices"][0]["text"]) == ("text_completion", "xxx")
    messages = [{"role": "user", "content": "hello"}]
    chat = {name: value for name, value in payload(gate, messages=messages).items() if name != "prompt"}
    body = await invoked(gate, chat, "r-2")
    assert (body["object"], body["choices"][0]["message"]["content"]) == ("chat.completion", "xxx")
    assert body["usage"]["total_tokens"] == 13


async def test_the_result_is_fetched_by_request_id_or_by_the_key_given(gate: Gate) -> None:
    first = await invoked(gate, payload(gate))
    second = await invoked(gate, payload(gate, idempotency_key="mine"), "r-2")
    assert await fetched(gate, "a", "r-1") == {"id": "r-1", "status": "done", "response": first}
    assert await fetched(gate, "a", "mine") == {"id": "mine", "status": "done", "response": second}
    assert (await fetched(gate, "a", "r-2"))["status"] == 404


async def test_anothers_result_looks_byte_for_byte_like_none(gate: Gate) -> None:
    await invoked(gate, payload(gate, "a", idempotency_key="k"))
    anothers, none = await fetched(gate, "b", "k"), await fetched(gate, "b", "never")
    assert json.dumps(anothers) == json.dumps(none)
    assert none["status"] == 404


BAD_EVENTS: dict[str, Any] = {
    "a string": "hello",
    "a list": [1],
    "nothing": None,
    "a number": 5,
    "empty": {},
    "key of another type": {"api_key": 5},
    "key null": {"api_key": None},
}


@pytest.mark.parametrize("event", BAD_EVENTS.values(), ids=BAD_EVENTS)
@pytest.mark.parametrize("call", [invoked, lambda gate, event: result(gate.context, event)], ids=["invoke", "result"])
async def test_events_that_are_no_payload(gate: Gate, event: Any, call: Any) -> None:
    refused = await call(gate, event)
    assert set(refused) == {"error", "status"}
    assert refused["status"] in (400, 401)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


BAD_PAYLOADS: dict[str, tuple[dict[str, Any], int, str]] = {
    "wrong key": ({"api_key": "hg-" + "x" * 43}, 401, "invalid_api_key"),
    "NaN": ({"temperature": float("nan")}, 400, "invalid_json"),
    "too large": ({"prompt": "p" * 1_000_001}, 413, "request_too_large"),
    "too large to be kept": ({"prompt": "p" * 360_000}, 413, "request_too_large"),
    "unknown field": ({"magic": 1}, 400, "unknown_parameter"),
    "both forms": ({"messages": []}, 400, "invalid_value"),
    "stream": ({"stream": True}, 400, "unsupported_parameter"),
    "unknown model": ({"model": "none"}, 404, "model_not_found"),
    "idempotency key": ({"idempotency_key": "a/b"}, 400, "invalid_value"),
    "idempotency key of another type": ({"idempotency_key": 7}, 400, "invalid_value"),
}


@pytest.mark.parametrize(("fields", "status", "code"), BAD_PAYLOADS.values(), ids=BAD_PAYLOADS)
async def test_a_users_error_is_a_payload(gate: Gate, fields: dict[str, Any], status: int, code: str) -> None:
    refused = await invoked(gate, payload(gate, **fields))
    assert (refused["status"], refused["error"]["code"]) == (status, code)
    assert set(refused["error"]) == {"message", "type", "param", "code"}
    assert gate.workers.orders == []


@pytest.mark.parametrize(("letter", "count"), [("я", 174_000), ("语", 116_000), ("🙂", 87_000)])
async def test_a_payload_is_bounded_in_its_own_bytes_not_in_escapes(gate: Gate, letter: str, count: int) -> None:
    assert len(json.dumps(letter * count)) > 2 * len((letter * count).encode())
    answered = await invoked(gate, payload(gate, prompt=letter * count))
    assert answered["choices"][0]["text"] == "xxx"


async def test_the_bound_of_a_payload_names_its_own_bytes(gate: Gate) -> None:
    refused = await invoked(gate, payload(gate, prompt="语" * 180_000))
    assert (refused["status"], refused["error"]["code"]) == (413, "request_too_large")
    assert "350000" in refused["error"]["message"]  # what is kept, and not the 1 MB of a body, which it does not reach


async def test_a_full_queue_says_when_to_come_back(gate: Gate) -> None:
    await gate.add_tenant("barred", queue_items_max=0)
    busy = await take_slots(gate)
    refused = await invoked(gate, payload(gate, "barred"))
    assert (refused["status"], refused["error"]["code"]) == (429, "queue_full")
    assert refused["retry_after_s"] >= 1
    await busy


async def test_what_the_worker_finds_impossible_is_a_payload(gate: Gate) -> None:
    gate.workers.acts.append(refuses(400, "context_length_exceeded"))
    refused = await invoked(gate, payload(gate))
    assert (refused["status"], refused["error"]["code"]) == (400, "context_length_exceeded")
    assert (await fetched(gate, "a", "r-1"))["error"]["code"] == "context_length_exceeded"


async def test_faults_of_ours_are_raised(gate: Gate) -> None:
    gate.workers.acts.extend([dies_after(1)] * 3)
    with pytest.raises(WorkerFailed):
        await invoked(gate, payload(gate))
    failed = await fetched(gate, "a", "r-1")
    assert (failed["status"], failed["error"]["code"]) == ("failed", "worker_failed")
    gate.workers.acts.extend([UNREACHABLE] * 3)
    with pytest.raises(ServiceError):
        await invoked(gate, payload(gate), "r-2")
    gate.shard.decide(Leave("w"))
    await asyncio.sleep(FRESH_S)
    with pytest.raises(NoWorker):
        await invoked(gate, payload(gate), "r-3")


async def test_a_deadline_that_passes_in_the_queue_is_expired(gate: Gate) -> None:
    gate.contexts.insert(0, gate.process(deadline_s=2.0))
    busy = await take_slots(gate, max_tokens=60, context=gate.contexts[1])
    with pytest.raises(DeadlineExceeded):
        await invoked(gate, payload(gate))
    await busy
    await gate.quiet()
    await gate.ended("a", "r-1", "expired")
    assert (await fetched(gate, "a", "r-1"))["status"] == "expired"
    with pytest.raises(DeadlineExceeded):
        await invoked(gate, payload(gate))


async def test_its_turn_did_not_come_in_time_and_the_queues_consumer_has_it(gate: Gate) -> None:
    busy = await take_slots(gate, max_tokens=60)
    queued = {
        "id": "r-1",
        "status": "queued",
        "queue_position": 1,
        "estimated_wait_s": ANY,
        "estimated_wait_p90_s": ANY,
    }
    assert await invoked(gate, payload(gate), remaining_s=1.0) == queued
    assert await fetched(gate, "a", "r-1") == {"id": "r-1", "status": "queued"}
    await busy
    await gate.quiet()
    assert await fetched(gate, "a", "r-1") == {"id": "r-1", "status": "running"}
    ((call_id, _),) = gate.launcher.launched
    assert await execute_detached(gate.context, call_id)
    done = await fetched(gate, "a", "r-1")
    assert (done["status"], done["response"]["choices"][0]["text"]) == ("done", "xxx")
    assert await invoked(gate, payload(gate)) == done["response"]
    assert (await gate.item("a", "r-1")).body is None


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_slow_submission_does_not_add_to_the_time_it_may_take(gate: Gate, is_known: bool) -> None:
    """Else Lambda ends the function before it has let its invocation go."""
    busy = await take_slots(gate, max_tokens=300)
    if is_known:
        await invoked(gate, payload(gate), remaining_s=0.0)
        await asyncio.sleep(0.01)
    gate.shard.delay_s = 4.0
    since = gate.clock.now()
    assert (await invoked(gate, payload(gate), remaining_s=10.0))["status"] == "queued"
    assert gate.clock.now() - since == pytest.approx(10.0)
    gate.shard.delay_s = 0.0
    await busy
    await gate.quiet()
    assert await execute_detached(gate.context, gate.launcher.launched[-1][0])


@pytest.mark.parametrize("after_s", [0.299, 0.3, 0.301])
async def test_it_is_let_go_at_the_moment_of_its_dispatch(gate: Gate, after_s: float) -> None:
    """Either the caller or the consumer executes it, never neither, never both."""
    gate.workers.acts.extend([Act()] * 2)
    busy = [begun(gate, "b") for n in range(2)]
    await asyncio.sleep(0.0)
    got = await invoked(gate, payload(gate), remaining_s=after_s)
    await asyncio.gather(*busy)
    await gate.quiet()
    for call_id, _ in gate.launcher.launched:
        await execute_detached(gate.context, call_id)
    assert ("status" in got) == bool(gate.launcher.launched)
    await gate.ended("a", "r-1", "done")
    assert [order.attempt for _, order in gate.workers.orders if order.terms.tenant == "a"] == [1]


async def test_what_its_caller_left_is_fetched_with_its_answer(gate: Gate) -> None:
    call = gate.caller().start("POST", "/v1/completions", {"model": "m", "prompt": "p"}, idempotency_key="k")
    await asyncio.sleep(0.15)
    call.hang_up()
    await asyncio.wait({call.task})
    assert (await fetched(gate, "a", "k"))["status"] == "running"
    await gate.quiet()
    assert (await fetched(gate, "a", "k"))["status"] == "done"


@pytest.mark.parametrize("fields", [{}, {"id": None}, {"id": 5}, {"id": "a b"}, {"id": "k", "more": 1}])
async def test_results_payload_is_a_key_and_an_id(gate: Gate, fields: dict[str, Any]) -> None:
    refused = await result(gate.context, {"api_key": gate.keys["a"], **fields})
    assert (refused["status"], refused["error"]["param"]) == (400, "id")


async def test_what_a_worker_sheds_is_a_payload_with_its_time_and_the_key_is_served_later(gate: Gate) -> None:
    gate.workers.acts.append(SHED)
    shed = await invoked(gate, payload(gate, idempotency_key="k"))
    assert (shed["status"], shed["error"]["code"], shed["retry_after_s"]) == (429, "overloaded", 7.0)
    status_of_k = await fetched(gate, "a", "k")
    assert (status_of_k["id"], status_of_k["status"], status_of_k["error"]["code"]) == ("k", "failed", "overloaded")
    served = await invoked(gate, payload(gate, idempotency_key="k"), "r-2")
    assert served["choices"]
    status_of_k = await fetched(gate, "a", "k")
    assert (status_of_k["id"], status_of_k["status"], status_of_k["response"]) == ("k", "done", served)

"""The table of fields at the functions: capabilities of workers, dropped fields, and forged ones."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.model.worker_protocol import WorkOrder
from dispatcher.policies.tiers import Tier
from functions.http_api.routes.complete import HEADER, HEADER_CHARS_MAX
from functions.invoke.handler import invoke
from tests.support.world.memory_gate import CHAT, Gate

USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TEXT = ("chat", "completion")
FORGED = {"tenant": "b", "tier": "premium", "priority": "9", "cache-salt": "s", "request-id": "r", "weight": "9"}


def body(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [USER], "max_tokens": 3, **more}


def last_order(gate: Gate) -> WorkOrder:
    return gate.workers.orders[-1][1]


class TestCapabilities:
    async def test_a_field_that_no_worker_supports_is_refused_by_name(self, gate: Gate) -> None:
        reply = await gate.caller().post(CHAT, body(tools=[TOOL]))
        assert (reply.status, reply.error["param"], reply.error["code"]) == (400, "tools", "unsupported_parameter")
        assert "the model `m`" in reply.error["message"]
        payload = await invoke(gate.context, {**body(n=2), "api_key": gate.keys["a"]}, "r-1", 60.0)
        assert (payload["status"], payload["error"]["param"]) == (400, "n")
        assert gate.workers.orders == []

    async def test_a_field_that_the_workers_support_reaches_them(self, gate: Gate) -> None:
        gate.add_worker("w", capabilities=(*TEXT, "tools"))
        reply = await gate.caller().post(CHAT, body(tools=[TOOL], tool_choice="required"))
        assert reply.status == 200
        assert last_order(gate).body == {"messages": [USER], "tools": [TOOL], "tool_choice": "required"}

    async def test_each_worker_of_the_model_must_support_it(self, gate: Gate) -> None:
        gate.add_worker("w", capabilities=(*TEXT, "tools"))
        gate.add_worker("other", capabilities=TEXT)
        assert (await gate.caller().post(CHAT, body(tools=[TOOL]))).error["param"] == "tools"

    @pytest.mark.parametrize("key", [{}, {"idempotency_key": "k"}])
    async def test_a_usual_value_goes_to_the_workers_that_read_it(self, gate: Gate, key: dict[str, Any]) -> None:
        usual = {"top_p": 1, "repetition_penalty": 1.0}
        assert (await gate.caller().post(CHAT, body(**usual))).status == 200
        assert last_order(gate).body == {"messages": [USER]}
        gate.add_worker("w", capabilities=(*TEXT, "sampling"))
        await gate.pool.fleet.workers(fresh_s=0)
        assert (await gate.caller().post(CHAT, body(**usual), **key)).status == 200
        assert last_order(gate).body == {"messages": [USER], **usual}

    async def test_a_stored_answer_is_found_whatever_the_workers_read_now(self, gate: Gate) -> None:
        given = body(top_p=1)
        first = await gate.caller().post(CHAT, given, idempotency_key="k")
        gate.add_worker("w", capabilities=(*TEXT, "sampling"))
        await gate.pool.fleet.workers(fresh_s=0)
        again = await gate.caller().post(CHAT, given, idempotency_key="k")
        assert (again.status, again.json()) == (200, first.json())
        assert len(gate.workers.orders) == 1


class TestUnknownFields:
    @pytest.mark.parametrize("more", [{}, {"stream": True}])
    async def test_a_pool_may_drop_and_name_them(self, gate: Gate, more: dict[str, Any]) -> None:
        caller = gate.caller(context=gate.process(unknown_fields="drop"))
        given = body(surprise=1, messages=[{**USER, "x": 2}], **more)
        for _ in ("new", "replayed"):
            reply = await caller.post(CHAT, given, idempotency_key="k")
            assert (reply.status, reply.headers[HEADER]) == (200, "messages.0.x, surprise")
        assert last_order(gate).body == {"messages": [USER]}
        assert HEADER not in (await caller.post(CHAT, body())).headers

    async def test_a_name_cannot_add_a_header(self, gate: Gate) -> None:
        caller = gate.caller(context=gate.process(unknown_fields="drop"))
        reply = await caller.post(CHAT, body(**{"a\r\nset-cookie: x=1": 1, "é, b": 2}))
        assert reply.headers[HEADER] == "a%0D%0Aset-cookie%3A%20x%3D1, %C3%A9%2C%20b"
        assert "set-cookie" not in reply.headers

    async def test_the_header_is_bounded(self, gate: Gate) -> None:
        caller = gate.caller(context=gate.process(unknown_fields="drop"))
        reply = await caller.post(CHAT, body(**{"\U0001f600" * 90 + str(number): 1 for number in range(32)}))
        assert reply.status == 200
        assert len(reply.headers[HEADER]) <= HEADER_CHARS_MAX + 5
        assert reply.headers[HEADER].endswith(", ...")

    async def test_lambda_always_refuses_them(self, gate: Gate) -> None:
        context = gate.process(unknown_fields="drop")
        payload = await invoke(context, {**body(surprise=1), "api_key": gate.keys["a"]}, "r-1", 60.0)
        assert (payload["status"], payload["error"]["code"]) == (400, "unknown_parameter")


class TestForged:
    async def test_headers_and_the_query_set_nothing(self, gate: Gate) -> None:
        query = "&".join(f"{name}={value}" for name, value in FORGED.items())
        headers: dict[str, Any] = {
            prefix + name: value for name, value in FORGED.items() for prefix in ("", "x-", "x-headgate-")
        }
        call = gate.caller().start("POST", CHAT, body(), query=query, **headers)
        assert (await call.finished()).status == 200
        order = last_order(gate)
        assert (order.terms.tenant, order.tier, order.weight, order.cache_salt) == ("a", Tier.STANDARD, 1.0, "")
        assert order.body == {"messages": [USER]}


async def test_n_times_max_tokens_is_bounded_by_the_tenants_limit(gate: Gate) -> None:
    gate.add_worker("w", capabilities=(*TEXT, "n"))
    await gate.add_tenant("small", max_tokens_max=12)
    caller = gate.caller("small")
    assert (await caller.post(CHAT, body(n=4))).status == 200
    reply = await caller.post(CHAT, body(n=5))
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, "max_tokens", "invalid_value")
    assert "times n" in reply.error["message"]

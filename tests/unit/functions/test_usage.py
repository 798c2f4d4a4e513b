"""GET /v1/usage: a tenant's own rows and totals, and clear answers to bad ranges."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatcher.model.usage import HOUR_S
from tests.support.world.memory_gate import CHAT, Gate


def chat(app: str = "", **more: Any) -> dict[str, Any]:
    metadata = {"headgate_application": app} if app else {}
    messages = [{"role": "user", "content": "hello"}]
    return {"model": "m", "messages": messages, "max_tokens": 3, "metadata": metadata, **more}


async def test_the_rows_are_the_tenants_own_and_exact(gate: Gate) -> None:
    for tenant, app in (("a", ""), ("a", "search"), ("a", "search"), ("b", "search")):
        assert (await gate.caller(tenant).post(CHAT, chat(app))).status == 200
    reply = await gate.caller("a").get("/v1/usage")
    body = reply.json()
    assert reply.status == 200
    assert body["object"] == "usage"
    assert [(row["application"], row["requests"], row["output_tokens"]) for row in body["rows"]] == [
        ("", 1, 3),
        ("search", 2, 6),
    ]
    assert body["totals"] == {
        "requests": 3,
        "input_tokens": 30,
        "output_tokens": 9,
        "service": 48.0,
        "cached_tokens": 0,
    }
    assert {row["hour"] for row in body["rows"]} == {"1970-01-12T13:00:00Z"}
    assert (body["from"], body["to"]) == ("1970-01-11T14:00:00Z", "1970-01-12T14:00:00Z")


@pytest.mark.parametrize(
    ("query", "requests"),
    [
        ("from=1970-01-12T13:00:00Z&to=1970-01-12T14:00:00Z", 1),
        ("from=1970-01-12T14:00&to=1970-01-12T15:00", 1),
        ("from=1970-01-12&to=1970-01-13", 2),
        ("from=997200&to=1000800", 1),
        ("from=1970-01-12T13:30:00Z", 2),
        ("to=1970-01-12T13:00:00Z", 0),
    ],
)
async def test_a_range_is_of_whole_hours(gate: Gate, query: str, requests: int) -> None:
    await gate.caller().post(CHAT, chat())
    await asyncio.sleep(HOUR_S)
    await gate.caller().post(CHAT, chat())
    call = gate.caller().start("GET", "/v1/usage", query=query)
    assert (await call.finished()).json()["totals"]["requests"] == requests


BAD = {
    "from=x": "from",
    "to=": "to",
    "from=2026-13-01": "from",
    "from=-5": "from",
    "to=99999999999999999999": "to",
    "to=9999-12-31T23:30": "to",
    "from=9999999999999&to=1": "from",
    "from=1970-01-12&to=1970-01-12": "from",
    "from=1970-01-13&to=1970-01-12": "from",
    "from=1970-01-01&to=1970-03-01": "from",
    "tenant=b": "tenant",
}


@pytest.mark.parametrize(("query", "param"), BAD.items())
async def test_a_bad_range_is_400_and_named(gate: Gate, query: str, param: str) -> None:
    reply = await gate.caller().start("GET", "/v1/usage", query=query).finished()
    assert (reply.status, reply.error["param"]) == (400, param)


async def test_no_hour_is_before_1970(gate: Gate) -> None:
    """The leader knows no such hours, and closed the connection of the front that named one."""
    reply = await gate.caller().start("GET", "/v1/usage", query="to=3600").finished()
    assert (reply.status, reply.json()["from"]) == (200, "1970-01-01T00:00:00Z")


async def test_a_tenant_without_usage_has_none(gate: Gate) -> None:
    body = (await gate.caller("b").get("/v1/usage")).json()
    assert (body["rows"], body["totals"]["requests"]) == ([], 0)

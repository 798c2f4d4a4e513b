"""The wire between gate and worker: an order within its bounds or refused by the field's name, an event as one line."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model.requests import Endpoint
from dispatcher.model.worker_protocol import Alive, Finished, Started, Token, WorkEvent, WorkRefused
from dispatcher.policies.tiers import Tier
from dispatcher.workers.wire import OrderRefused, encode_event, encode_order, parse_event, parse_order
from gpu_worker.service.executions.engine_reader import engine_order
from tests.support.worker.harness import order
from tests.support.world.virtual_time import START

GOOD = json.loads(encode_order(order()))


def test_the_engine_gets_what_the_gate_ordered() -> None:
    body = {"prompt": "hello", "seed": -(2**63), "stop": ["\n", "END"], "tools": [{"type": "function"}], "top_p": 0.5}
    work = order(body=body, choices=3)
    request = engine_order(parse_order(encode_order(work)), START)
    assert (request.execution, request.terms.tenant, request.choices) == (work.execution, "a", 3)
    assert (request.endpoint, request.body) == (Endpoint.COMPLETION, body)


def test_tier_stage_salt_and_time_limit_reach_the_engine() -> None:
    work = order(tier=Tier.PREMIUM, app="chat", stage=2, interaction="i-7", cache_salt="s", deadline_at=START + 9)
    request = engine_order(parse_order(encode_order(work)), START + 2)
    assert (request.tier, request.stage, request.terms.interaction, request.cache_salt) == (Tier.PREMIUM, 2, "i-7", "s")
    assert request.timeout_s == 7.0
    assert request.terms.app == "a/chat", "no tenant's application is another's"
    late = engine_order(parse_order(encode_order(work)), START + 20)
    assert late.timeout_s == 0.0
    assert engine_order(parse_order(encode_order(order())), START).terms.app == ""


def test_a_trace_is_checked_and_may_be_missing() -> None:
    traced = order(trace="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    assert parse_order(encode_order(traced)) == traced
    assert "trace" not in GOOD, "a worker of an older version knows no such field"
    assert parse_order(json.dumps(GOOD).encode()).trace == ""
    for bad in ("hello", traced.trace + "x", traced.trace.upper(), f"{traced.trace}\n"):
        with pytest.raises(OrderRefused, match=r"^trace: string_pattern_mismatch$"):
            parse_order(json.dumps(GOOD | {"trace": bad}).encode())


@pytest.mark.parametrize("name", sorted(GOOD))
def test_no_field_may_be_missing(name: str) -> None:
    with pytest.raises(OrderRefused, match=f"^{name}: missing$"):
        parse_order(json.dumps({key: value for key, value in GOOD.items() if key != name}).encode())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tenant", ""),
        ("tenant", "t" * 129),
        ("attempt", 0),
        ("attempt", 10**30),
        ("slot", 0),
        ("durable", 1),
        ("durable", None),
        ("weight", 0),
        ("weight", float("nan")),
        ("weight", float("inf")),
        ("tier", "royal"),
        ("deadline_at", float("nan")),
        ("deadline_at", float("-inf")),
        ("deadline_at", "soon"),
        ("endpoint", "speech"),
        ("body", []),
        ("body", None),
        ("choices", 0),
        ("max_tokens", -1),
        ("max_tokens", 1e400),
        ("stage", -1),
        ("stage", "first"),
        ("app", "a" * 65),
        ("interaction", "i" * 65),
        ("cache_salt", "s" * 65),
        ("priority", 1),
        ("vllm_xargs", {}),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(OrderRefused, match=f"^{name}"):
        parse_order(json.dumps({**GOOD, name: value}).encode())


@given(st.binary(max_size=200) | st.just(b"[" * 100_000) | st.just(b'{"a":' * 100_000))
def test_no_bytes_break_it(raw: bytes) -> None:
    with pytest.raises(OrderRefused):
        parse_order(raw)


def test_a_refusal_never_repeats_the_value() -> None:
    with pytest.raises(OrderRefused) as refused:
        parse_order(json.dumps({**asdict(order()), "prompt": ["canary"]}).encode())
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    "event", [Started(1), Finished("stop", 1, 2), Alive(), WorkRefused(429, "c", "m", 1.5, final=True)]
)
def test_an_event_is_read_as_it_was_written_and_a_newer_field_is_ignored(event: WorkEvent | Alive) -> None:
    raw = encode_event(event)
    assert parse_event(raw) == event
    assert parse_event(raw.replace(b"{", b'{"newer":[1],', 1)) == event


@given(st.text())
def test_an_event_is_one_line_of_ascii(text: str) -> None:
    raw = encode_event(Token(text, 1))
    assert raw.isascii()
    assert raw.count(b"\n") == 1
    assert len(raw.decode().splitlines()) == 1
    assert json.loads(raw)["text"] == text

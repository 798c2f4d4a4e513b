"""The queue policy decides which requests enter the server, and when; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from dispatcher.model.requests import Endpoint
from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import Finished, RefusedByPolicy, Started, WorkOrder, own_order
from gpu_worker.engines.openai.engine import OpenAiEngine
from gpu_worker.policies.fairness.accounting import TenantService
from gpu_worker.policies.fairness.tiered import make_queue
from tests.support.worker.openai_server import FakeServer, counting, engine_of, last, options, outcome

pytestmark = pytest.mark.virtual_time


def asked(name: str, tenant: str, tokens: int = 10, **given: Any) -> WorkOrder:
    return own_order(name, tenant, {"messages": [{"content": name}]}, tokens, Endpoint.CHAT, **given)


def order(server: FakeServer) -> list[str]:
    """The requests in the order in which they entered the server."""
    return [body["messages"][0]["content"] for body in server.bodies]


async def served(engine: OpenAiEngine, *requests: WorkOrder) -> None:
    await asyncio.gather(*(outcome(engine, request) for request in requests))


@pytest.mark.parametrize(("policy", "place"), [("vtc", 3), ("tiered:vtc", 3), ("fcfs", 20)])
async def test_a_quiet_tenants_request_enters_next(policy: str, place: int) -> None:
    server = FakeServer()
    async with engine_of(server, policy=policy, places=2) as engine:
        flood = asyncio.ensure_future(served(engine, *(asked(f"f{n}", "flood") for n in range(20))))
        await asyncio.sleep(0.05)
        await served(engine, asked("quiet", "quiet"))
        await flood
    assert server.open_most == 2
    assert order(server).index("quiet") == place - 1 if place < 20 else 20


async def test_tenants_are_charged_for_tokens_as_they_arrive() -> None:
    async with engine_of(FakeServer(), places=1) as engine:
        running = asyncio.ensure_future(served(engine, asked("a", "tenant", 50)))
        await asyncio.sleep(0.255)
        halfway = engine.stats().tenants["tenant"].output_tokens
        await running
        whole = engine.stats().tenants["tenant"].output_tokens
    assert (20 <= halfway <= 26, whole) == (True, 50)


@pytest.mark.parametrize("policy", ["vtc", "tiered:vtc"])
async def test_the_prompt_is_charged_as_the_server_counts_it(policy: str) -> None:
    async with engine_of(FakeServer(), policy=policy) as engine:
        await served(engine, asked("a", "tenant", 3))
        assert engine.stats().tenants["tenant"] == TenantService(7, 3, 7 + 2 * 3)


async def test_long_answers_cost_later_turns() -> None:
    """Equal numbers of requests, one tenant's ten times as long: the other tenant's enter first."""
    server = FakeServer()
    async with engine_of(server, places=1) as engine:
        long = [asked(f"l{number}", "long", 100) for number in range(3)]
        short = [asked(f"s{number}", "short", 10) for number in range(3)]
        await served(engine, *long, *short)
    assert order(server) == ["l0", "s0", "s1", "s2", "l1", "l2"]


async def test_a_request_with_choices_takes_a_place_for_each() -> None:
    server = FakeServer(two_choices)
    async with engine_of(server, places=4) as engine:
        await served(engine, *(asked(f"a{number}", "t", choices=2) for number in range(6)))
    assert server.open_most == 2


async def test_more_choices_than_places_enter_alone() -> None:
    async with engine_of(FakeServer(two_choices), places=1) as engine:
        events, error = await outcome(engine, asked("a", "t", choices=2))
        assert error is None
        assert last(events).reasons == ("length", "length")


async def test_the_premium_reserve_keeps_places_free_and_nothing_is_evicted() -> None:
    server = FakeServer()
    policy = make_queue("tiered:vtc", {"premium_reserve": 0.5})
    engine = OpenAiEngine(policy, options(server), places=2, monotonic_s=asyncio.get_running_loop().time)
    await engine.start()
    flood = asyncio.ensure_future(served(engine, *(asked(f"b{n}", "b", tier=Tier.BACKGROUND) for n in range(3))))
    await asyncio.sleep(0.05)
    await served(engine, asked("p", "p", tier=Tier.PREMIUM), asked("q", "p", tier=Tier.PREMIUM))
    await flood
    preempted = engine.stats().counts.preemptions.total()
    await engine.stop()
    entered = order(server)
    assert entered[:2] == ["b0", "p"]
    assert preempted == 0


async def test_an_aborted_request_frees_its_place() -> None:
    server = FakeServer()
    async with engine_of(server, places=1) as engine:
        running = asyncio.ensure_future(outcome(engine, asked("a", "t", 1000)))
        waiting = asyncio.ensure_future(outcome(engine, asked("b", "t", 1)))
        await asyncio.sleep(0.055)
        await engine.abort("a")
        events, _ = await running
        await waiting
    entered, end = order(server), last(events)
    assert entered == ["a", "b"]
    assert (end.reason, end.input_tokens, 4 <= end.output_tokens <= 6) == ("aborted", 7, True)


async def test_a_waiting_request_is_aborted_without_reaching_the_server() -> None:
    server = FakeServer()
    async with engine_of(server, places=1) as engine:
        running = asyncio.ensure_future(outcome(engine, asked("a", "t", 5)))
        waiting = asyncio.ensure_future(outcome(engine, asked("b", "t", 5)))
        await asyncio.sleep(0.01)
        await engine.abort("b")
        events, _ = await waiting
        await running
    entered, end = order(server), last(events)
    assert (entered, end.reason, end.output_tokens) == (["a"], "aborted", 0)


async def test_a_closed_stream_aborts_its_request() -> None:
    server = FakeServer()
    async with engine_of(server) as engine:
        async with aclosing(engine.generate(asked("a", "t", 1000))) as events:
            async for event in events:
                if not isinstance(event, Started):
                    break
        await asyncio.sleep(0.01)
        assert (engine.stats().running, server.open) == (0, 0)


@pytest.mark.parametrize("places", [1, 2])
async def test_requests_end_at_their_deadline(places: int) -> None:
    async with engine_of(FakeServer(), places=places) as engine:
        both = asked("a", "t", 1000, timeout_s=1.0), asked("b", "t", 1000, timeout_s=1.0)
        ends = await asyncio.gather(*(outcome(engine, request) for request in both))
        assert asyncio.get_running_loop().time() < 1_000_002
        assert [last(events).reason for events, _ in ends] == ["aborted", "aborted"]
        assert engine.stats().counts.expired == 2


async def test_a_slow_reader_keeps_no_place() -> None:
    server = FakeServer()
    async with engine_of(server, places=1) as engine:
        slow = engine.generate(asked("slow", "t", 10))
        await anext(slow)
        await served(engine, asked("b", "u", 1))
        rest = [event async for event in slow]
        assert last([Started(0), *rest]) == Finished("length", 7, 10)
    assert order(server) == ["slow", "b"]


async def test_a_policy_that_limits_requests_refuses() -> None:
    async with engine_of(FakeServer(), policy="rpm:1") as engine:
        requests = [asked("a", "t"), asked("b", "t")]
        first, second = [error for _, error in [await outcome(engine, request) for request in requests]]
    assert first is None
    assert isinstance(second, RefusedByPolicy)


async def test_a_second_request_of_a_name_is_refused() -> None:
    async with engine_of(FakeServer()) as engine:
        ends = await asyncio.gather(outcome(engine, asked("a", "t")), outcome(engine, asked("a", "t")))
    (_, first), (_, second) = ends
    assert (first, second and second.code) == (None, "duplicate_request")


async def test_stopping_ends_everything() -> None:
    server = FakeServer()
    async with engine_of(server, places=1) as engine:
        tasks = [asyncio.ensure_future(outcome(engine, asked(name, "t", 1000))) for name in "ab"]
        await asyncio.sleep(0.1)
    assert ([last((await task)[0]).reason for task in tasks], server.open) == (["aborted", "aborted"], 0)


async def two_choices(body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    async for part in counting(body):
        yield part
        yield part.replace(b'"index": 0', b'"index": 1') if b'"index"' in part else b""

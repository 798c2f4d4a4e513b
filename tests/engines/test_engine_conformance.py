"""What a worker relies on, whatever engine runs behind it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dispatcher.model.requests import Endpoint
from dispatcher.policies.service import WEIGHTED_TOKENS
from gpu_worker.engines.interface import Engine, EngineError, Finished, PromptTooLong, Started, Token
from gpu_worker.policies.fairness.interface import QueueRequest
from gpu_worker.policies.fairness.registry import make_policy
from tests.engines.engine_kinds import (
    cancelled,
    engine_of,
    events_of,
    finished,
    gather_text,
    idle,
    past_first_token,
    recorded,
    request,
    text_of,
)


async def test_started_then_tokens_then_finished(engine: Engine) -> None:
    first, *tokens, last = await events_of(engine, request("r"))
    assert isinstance(first, Started)
    assert first.input_tokens > 0
    assert [token.output_tokens for token in tokens if isinstance(token, Token)] == list(range(1, 9))
    assert last == Finished("length", first.input_tokens, 8)


async def test_many_at_once_all_finish_and_every_token_is_counted(engine: Engine) -> None:
    asked = [request(f"r{n}", f"t{n % 3}", max_tokens=n % 5 + 1, prompt="word " * (n % 7)) for n in range(20)]
    ends = await asyncio.gather(*(finished(engine.generate(one)) for one in asked))
    await idle(engine)
    stats = engine.stats()
    for tenant in ("t0", "t1", "t2"):
        mine = [end for one, end in zip(asked, ends, strict=True) if one.terms.tenant == tenant]
        got = stats.tenants[tenant]
        assert got.input_tokens == sum(end.input_tokens for end in mine)
        assert got.output_tokens == sum(end.output_tokens for end in mine)
        assert got.service == sum(WEIGHTED_TOKENS(end.input_tokens, end.output_tokens) for end in mine)


async def test_a_prompt_that_does_not_fit_is_refused_before_it_is_queued(kind: str, home: Path) -> None:
    async with engine_of(kind, make_policy("vtc"), home, kv=256) as engine:
        for one in (request("long", prompt="far too long " * 400), request("greedy", max_tokens=256)):
            with pytest.raises(PromptTooLong, match="256"):
                await anext(engine.generate(one))
        assert engine.stats().waiting == 0
        assert len(await text_of(engine, request("fits", max_tokens=100))) > 0


async def test_an_id_that_is_here_already_is_refused(engine: Engine) -> None:
    stream = engine.generate(request("r", max_tokens=1500))
    await past_first_token(stream)
    with pytest.raises(EngineError):
        await anext(engine.generate(request("r")))
    await engine.abort("r")
    assert (await finished(stream)).reason == "aborted", "the first is undisturbed"


async def test_abort_ends_the_stream_with_what_was_generated_and_frees_its_cache(engine: Engine) -> None:
    stream = engine.generate(request("r", max_tokens=1500))
    await past_first_token(stream)
    assert engine.stats().kv_use > 0
    await engine.abort("r")
    events = [event async for event in stream]
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.reason == "aborted"
    assert last.output_tokens == max([1, *(event.output_tokens for event in events[:-1] if isinstance(event, Token))])
    await idle(engine)
    got = engine.stats().tenants["a"]
    assert (got.input_tokens, got.output_tokens) == (last.input_tokens, last.output_tokens)
    await engine.abort("r")
    await engine.abort("unknown")


async def test_one_that_waits_is_aborted_without_having_cost_anything(kind: str, home: Path) -> None:
    async with engine_of(kind, make_policy("vtc"), home, batch=1) as engine:
        running = engine.generate(request("first", max_tokens=1500))
        await past_first_token(running)
        waiting = engine.generate(request("second", "b"))
        await anext(waiting)
        await engine.abort("second")
        assert (await finished(waiting)).output_tokens == 0
        await running.aclose()
        await idle(engine)
        assert "b" not in engine.stats().tenants


async def test_a_stream_closed_early_is_an_abort(engine: Engine) -> None:
    stream = engine.generate(request("r", max_tokens=1500))
    await past_first_token(stream)
    await stream.aclose()
    task = asyncio.ensure_future(events_of(engine, request("s", max_tokens=1500)))
    await asyncio.sleep(0)
    await cancelled(task)
    await idle(engine)


async def test_a_stop_string_cuts_the_text_and_nothing_after_it_is_charged(engine: Engine) -> None:
    text = await text_of(engine, request("whole", max_tokens=40))
    for start in range(1, 40, 7):
        stop = text[start : start + 6]
        tenant = f"t{start}"
        events = await events_of(engine, request(f"r{start}", tenant, max_tokens=40, stop=("\0", stop)))
        sent = "".join(event.text for event in events if isinstance(event, Token))
        last = events[-1]
        assert sent == text[: text.index(stop)]
        assert isinstance(last, Finished)
        assert last.reason == "stop"
        assert engine.stats().tenants[tenant].output_tokens == last.output_tokens


async def test_a_stop_string_that_never_comes_holds_nothing_back_in_the_end(engine: Engine) -> None:
    text = await text_of(engine, request("whole", max_tokens=12))
    same = await text_of(engine, request("again", max_tokens=12, stop=(text[-5:] + "\0",)))
    assert same == text


@pytest.mark.parametrize(("policy_name", "next_is_the_newcomer"), [("vtc", True), ("fcfs", False)])
async def test_the_order_after_a_flood_is_the_policys(
    kind: str, home: Path, policy_name: str, next_is_the_newcomer: bool
) -> None:
    """After a flood of z, VTC admits one request of b next; first come, first served admits it last.

    The policy admits two of the flood, then none until b is in its queue: which thread is faster decides nothing. The
    lift puts b level with z at worst, and a tie goes by name.
    """
    policy, calls = recorded(policy_name)
    snapshot = policy.peek

    def peek() -> QueueRequest | None:
        admitted = sum(call == "admit" for call, _ in calls)
        return snapshot() if admitted < 2 or ("enqueue", "b") in calls else None

    policy.peek = peek  # type: ignore[method-assign]
    async with engine_of(kind, policy, home) as engine:
        streams = [engine.generate(request(f"z{n}", "z")) for n in range(10)]
        for stream in streams:
            await anext(stream)
        flood = [asyncio.ensure_future(finished(stream)) for stream in streams]
        await asyncio.gather(*flood[:2])
        await finished(engine.generate(request("b", "b")))
        await asyncio.gather(*flood)
    order = [request_id for call, request_id in calls if call == "admit"]
    assert order.index("b") == (2 if next_is_the_newcomer else 10)


async def test_what_does_not_fit_the_cache_waits_and_is_not_overtaken(kind: str, home: Path) -> None:
    policy, calls = recorded("fcfs")
    async with engine_of(kind, policy, home, batch=4, kv=512) as engine:
        asked = [request("big0", max_tokens=300), request("big1", max_tokens=300), request("small", max_tokens=4)]
        await gather_text(engine, asked)
        await idle(engine)
    assert [request_id for call, request_id in calls if call == "admit"] == ["big0", "big1", "small"]


async def test_the_engine_stops_with_work_left(kind: str, home: Path) -> None:
    async with engine_of(kind, make_policy("vtc"), home, batch=1) as engine:
        running = engine.generate(request("first", max_tokens=1500))
        await past_first_token(running)
        waiting = engine.generate(request("second"))
        await anext(waiting)
        await engine.stop()
        assert (await finished(running)).reason == "aborted"
        assert (await finished(waiting)).reason == "aborted"
        with pytest.raises(EngineError):
            await anext(engine.generate(request("late")))


async def test_a_policy_that_fails_fails_the_requests_and_none_hangs(kind: str, home: Path) -> None:
    policy = make_policy("vtc")
    async with engine_of(kind, policy, home) as engine:
        policy.peek = lambda: 1 / 0  # type: ignore[assignment, return-value]
        with pytest.raises(EngineError):
            await events_of(engine, request("r"))


async def test_chat_messages_become_a_prompt(engine: Engine) -> None:
    turns = [{"role": "system", "content": "Be fair."}, {"role": "user", "content": "What?"}]
    facts = engine.facts
    both, last = [
        await anext(engine.generate(request(name, endpoint=Endpoint.CHAT, messages=messages)))
        for name, messages in (("both", turns), ("last", turns[1:]))
    ]
    assert isinstance(both, Started)
    assert isinstance(last, Started)
    assert both.input_tokens > last.input_tokens > 0
    assert facts.context_tokens == 2048
    assert 1 < facts.bytes_per_token < 10

"""vLLM's own server as a worker's engine: events, errors, tools, schemas, stats, and kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from dispatcher.model.requests import Endpoint
from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import (
    EngineError,
    EngineEvent,
    Finished,
    PromptTooLong,
    Started,
    Token,
    WorkOrder,
    own_order,
)
from gpu_worker.engines.supervised import SupervisedEngine
from gpu_worker.engines.vllm.engine import VllmEngine, VllmShape
from tests.support.hang_guard import HANG_S
from tests.support.vllm import slow_steps
from tests.support.world.virtual_time import LoopClock

LIMITS = ("--max-model-len", "960", "--num-gpu-blocks-override", "33")
ARGUMENTS = (*LIMITS, "--tool-call-parser", "hermes", *slow_steps.ARGUMENTS)
SHAPE = VllmShape(batch=4, swap_bytes=20 << 20, arguments=ARGUMENTS)
TIERS = {"premium_reserve": 0.2}
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
QUESTION = [{"role": "user", "content": "How is the weather?"}]


class House:
    """One engine for all tests of this file, under one loop; supervised, as a worker has it."""

    def __init__(self, home: Path) -> None:
        def make() -> VllmEngine:
            return VllmEngine(model=None, home=home, policy="tiered:vtc", tiers=TIERS, shape=SHAPE)

        self.runner = asyncio.Runner()
        self.engine = SupervisedEngine(make, LoopClock(), hang_s=HANG_S)
        self.run(self.engine.start())

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def close(self) -> None:
        self.run(self.engine.stop())
        self.runner.close()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="1",
        PYTHONPATH=os.pathsep.join([str(Path.cwd()), *sys.path]),
    )
    found = House(tmp_path_factory.mktemp("home"))
    yield found
    found.close()


def asked(name: str, tokens: int = 12, **changes: Any) -> WorkOrder:
    body = {"prompt": "What is served next?", "temperature": 0.0}
    body |= {field: changes.pop(field) for field in [*changes] if field in ("prompt", "temperature", "seed", "stop")}
    return own_order(name, changes.pop("tenant", "a"), body, tokens, **changes)


def chat(name: str, tokens: int = 200, **body: Any) -> WorkOrder:
    return own_order(name, "a", {"messages": QUESTION, "temperature": 0.0, **body}, tokens, Endpoint.CHAT)


def text_of(events: list[EngineEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Token))


def arguments_of(events: list[EngineEvent]) -> Any:
    """Return the arguments of the one tool call."""
    deltas = [event.delta["tool_calls"] for event in events if isinstance(event, Token) and event.delta]
    return json.loads("".join(call["function"].get("arguments", "") for calls in deltas for call in calls))


async def events_of(engine: Any, request: WorkOrder) -> list[EngineEvent]:
    return [event async for event in engine.generate(request)]


async def how_it_ends(engine: Any, request: WorkOrder) -> str:
    try:
        last = (await events_of(engine, request))[-1]
    except EngineError as error:
        return error.code
    assert isinstance(last, Finished)
    return last.reason


def test_started_then_tokens_then_finished(house: House) -> None:
    estimate, started, *tokens, last = house.run(events_of(house.engine, asked("one")))
    assert isinstance(estimate, Started)
    assert isinstance(started, Started)
    counts = [event.output_tokens for event in tokens]
    assert counts == sorted(set(counts)), "several may come at once, none twice"
    assert counts[-1] == 12
    assert isinstance(last, Finished)
    assert replace(last, cached_tokens=0) == Finished("length", started.input_tokens, 12)


def test_a_seed_gives_the_same_text_and_a_stop_string_ends_it(house: House) -> None:
    first, again = (
        text_of(house.run(events_of(house.engine, asked(f"seed-{n}", temperature=1.0, seed=7)))) for n in "ab"
    )
    assert first == again
    stop = first[5:9]
    events = house.run(events_of(house.engine, asked("stop", temperature=1.0, seed=7, stop=[stop])))
    assert text_of(events) == first[: first.index(stop)]
    assert events[-1].reason == "stop"


def test_a_chat_with_choices_and_logprobs(house: House) -> None:
    request = replace(chat("choices", 6, temperature=1.0, logprobs=True, top_logprobs=1), choices=2)
    *events, last = house.run(events_of(house.engine, request))
    pieces = [event for event in events if isinstance(event, Token)]
    assert {piece.choice for piece in pieces} == {0, 1}
    assert all(piece.logprobs is not None for piece in pieces if piece.text)
    assert (last.output_tokens, last.reasons) == (12, ("length", "length"))


def test_a_schema_gives_valid_json(house: House) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER}}
    events = house.run(events_of(house.engine, chat("schema", response_format=form)))
    assert valid(json.loads(text_of(events)))
    assert events[-1].reason == "stop"


@pytest.mark.parametrize("name", ["named", "strict"])
def test_a_named_tool_gets_arguments_of_its_schema(house: House, name: str) -> None:
    """Also without `strict`: vLLM itself would accept any JSON then."""
    function = {"name": "weather", "parameters": WEATHER, **({"strict": True} if name == "strict" else {})}
    tools = [{"type": "function", "function": function}]
    choice = {"type": "function", "function": {"name": "weather"}}
    events = house.run(events_of(house.engine, chat(name, tools=tools, tool_choice=choice)))
    assert valid(arguments_of(events))


def valid(found: Any) -> bool:
    return set(found) == {"city", "days"} and len(found["city"]) <= 8 and found["days"] in range(10)


def test_the_result_of_a_tool_is_accepted(house: House) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    events = house.run(events_of(house.engine, chat("result", 5, messages=messages, tools=TOOLS)))
    assert events[-1].output_tokens == 5


def test_its_facts_name_what_the_arguments_allow(house: House) -> None:
    facts = house.engine.facts
    assert {"chat", "completion", "n", "structured", "tools", "vllm"} <= facts.capabilities
    assert not {"reasoning", "images", "embeddings"} & facts.capabilities
    assert facts.context_tokens == 960
    assert facts.bytes_per_token > 4.2, "measured: the tiny model's vocabulary was trained on the text"


def test_an_abort_ends_the_iterator_and_frees_everything(house: House) -> None:
    async def story() -> EngineEvent:
        events = house.engine.generate(asked("aborted", 400))
        for _ in range(4):
            await anext(events)
        await house.engine.abort("aborted")
        *_, last = [event async for event in events]
        while house.engine.stats().kv_use or house.engine.stats().running:
            await house.engine.clock.sleep(0.05)
        return last

    last = house.run(story())
    assert isinstance(last, Finished)
    assert last.reason == "aborted"


def test_what_cannot_fit_is_refused_before_it_starts(house: House) -> None:
    with pytest.raises(PromptTooLong):
        house.run(events_of(house.engine, asked("long", 1000)))


def test_why_the_scheduler_ended_it_reaches_the_tenant(house: House) -> None:
    """Before any token, and with logprobs, which vLLM's server expects of every token."""
    with pytest.raises(PromptTooLong, match="this tier"):
        house.run(events_of(house.engine, asked("large", 900)))
    with pytest.raises(PromptTooLong, match="this tier"):
        house.run(events_of(house.engine, chat("large-chat", 900, logprobs=True)))
    *_, last = house.run(events_of(house.engine, asked("late", timeout_s=0.0)))
    assert (last.reason, last.output_tokens) == ("aborted", 0)
    assert house.engine.serves()


def test_its_stats_know_tenants_tiers_and_what_the_machine_can_do(house: House) -> None:
    async def story() -> Any:
        before = house.engine.stats().tenants.get("watched")
        assert before is None
        await events_of(house.engine, asked("watched", tenant="watched", weight=2.0, tier=Tier.PREMIUM))
        while (seen := house.engine.stats().tenants.get("watched")) is None or seen.output_tokens < 12:
            await house.engine.clock.sleep(0.05)
        return house.engine.stats()

    stats = house.run(story())
    got = stats.tenants["watched"]
    assert got.service == got.input_tokens + 2 * 12
    assert stats.gauges.swap_bytes_total > 0
    assert not any("calibration" in name for name in stats.tenants)


def test_a_prefix_is_shared_under_one_salt_alone(house: House) -> None:
    """By what is charged: a prompt that comes out of the cache costs a tenth."""
    prompt = "Each field has the water it is due, by turn. " * 12

    async def story() -> list[float]:
        charged: list[float] = []
        before = 0.0
        for name, salt in (("s1", "ours"), ("s2", "ours"), ("s3", "theirs"), ("s4", "")):
            request = asked(name, 2, prompt=prompt, tenant="salted", cache_salt=salt)
            await events_of(house.engine, request)
            while (got := house.engine.stats().tenants.get("salted")) is None or got.output_tokens < 2 * (
                len(charged) + 1
            ):
                await house.engine.clock.sleep(0.05)
            charged.append(got.service - before)
            before = got.service
        return charged

    first, again, other, none = house.run(story())
    assert first == other == none > 100
    assert again < 0.4 * first


def test_premium_goes_before_a_flood_of_background(house: House) -> None:
    async def story() -> list[str]:
        order: list[str] = []

        async def listen(request: WorkOrder) -> None:
            async for event in house.engine.generate(request):
                if isinstance(event, Token) and request.execution not in order:  # it may bring two tokens
                    order.append(request.execution)

        flood = [asked(f"b{n}", 150, tier=Tier.BACKGROUND, tenant="batch") for n in range(12)]
        tasks = [asyncio.create_task(listen(request)) for request in flood]
        while len(order) < 4:
            await asyncio.sleep(0.005)
        tasks.append(asyncio.create_task(listen(asked("premium", 4, tier=Tier.PREMIUM, tenant="paying"))))
        await asyncio.gather(*tasks)
        return order

    order = house.run(story())
    assert len(order) == 13
    assert order.index("premium") <= 8  # of 13; four were there before it, and four more if it came late


def test_killed_with_minus_nine_all_hear_of_it_and_another_engine_serves(house: House) -> None:
    """The last of this file: it costs a start."""

    async def story() -> list[str]:
        before = house.engine.stats().tenants["a"].service
        running = [asyncio.create_task(how_it_ends(house.engine, asked(f"k{n}", 400))) for n in range(3)]
        while house.engine.stats().running < 3:
            assert not any(task.done() for task in running)
            await house.engine.clock.sleep(0.02)
        for process in psutil.Process().children(recursive=True):
            if "EngineCore" in process.name():
                process.send_signal(signal.SIGKILL)
        ended = await asyncio.gather(*running)
        while house.engine.restarts == 0:
            assert not house.engine.hopeless.is_set()
            await house.engine.clock.sleep(0.1)
        ended.append(await how_it_ends(house.engine, asked("after")))
        assert house.engine.stats().tenants["a"].service >= before
        return ended

    assert house.run(story()) == ["engine_restarted"] * 3 + ["length"]

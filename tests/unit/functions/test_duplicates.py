"""The reliability bar 5: every message and every invoke comes five times, and again eleven minutes later.

Each call is charged once, its answer is the same each time, and another body under its key is refused. Eleven minutes
are more than the gate remembers a process for, and more than Lambda and SQS take to repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import ANY

import pytest

from dispatcher.model.commands import End, Return, Silent
from dispatcher.operations.calls.detached import execute_detached
from dispatcher.operations.context import Context
from dispatcher.shard.settings import ShardSettings
from functions.invoke.handler import invoke
from functions.result.handler import result
from tests.support.world.memory_gate import CHAT, COMPLETION, Gate

TIMES = 5
LATER_S = 11 * 60.0
REMAINING_S = 60.0
COST = 10 + 2 * 3
"""Of each call here: two tokens of prompt are ten to the scripted worker, and three tokens of output."""

Repeat = Callable[[Gate, Context, str, str], Awaitable[Any]]


async def whole(gate: Gate, context: Context, key: str, prompt: str) -> Any:
    body = {"model": "m", "prompt": prompt, "max_tokens": 3}
    reply = await gate.caller("a", context).post(COMPLETION, body, idempotency_key=key)
    return reply.json() if reply.status == 200 else (reply.status, reply.error["code"])


async def streamed(gate: Gate, context: Context, key: str, prompt: str) -> Any:
    """Return the text and the id: a stream that is repeated has its text in fewer pieces."""
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": 3, "stream": True}
    reply = await gate.caller("a", context).post(CHAT, body, idempotency_key=key)
    if reply.status != 200:
        return reply.status, reply.error["code"]
    chunks = [event for event in reply.events if event != "[DONE]"]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    return text, {chunk["id"] for chunk in chunks}


async def invoked(gate: Gate, context: Context, key: str, prompt: str) -> Any:
    """Send what Lambda sends: an event of which every retry has the same request id."""
    event = {"api_key": gate.keys["a"], "model": "m", "prompt": prompt, "max_tokens": 3}
    return _payload(await invoke(context, event, key, REMAINING_S))


async def invoked_with_key(gate: Gate, context: Context, key: str, prompt: str) -> Any:
    """Send what an SDK sends: each retry is an invocation with a request id of its own."""
    event = {"api_key": gate.keys["a"], "model": "m", "prompt": prompt, "max_tokens": 3, "idempotency_key": key}
    return _payload(await invoke(context, event, gate.ids.new(), REMAINING_S))


def _payload(payload: dict[str, Any]) -> Any:
    return (payload["status"], payload["error"]["code"]) if "error" in payload else payload


@dataclass(frozen=True)
class Fronts:
    gate: Gate
    contexts: Sequence[Context]

    async def together(self, repeat: Repeat, key: str, prompt: str = "hello") -> list[Any]:
        """Send the same request five times at once, to different fronts."""
        fronts = (self.contexts[number % len(self.contexts)] for number in range(TIMES))
        return await asyncio.gather(*(repeat(self.gate, front, key, prompt) for front in fronts))

    async def in_turn(self, repeat: Repeat, key: str, prompt: str = "hello") -> list[Any]:
        return [await repeat(self.gate, self.contexts[-1 - n % len(self.contexts)], key, prompt) for n in range(TIMES)]


def fronts_of(gate: Gate, count: int) -> Fronts:
    return Fronts(gate, [gate.context, *(gate.process() for _ in range(count - 1))])


of_one_and_eight = pytest.mark.parametrize("count", [1, 8], ids=["one front", "eight fronts"])
KINDS = {"whole": whole, "streamed": streamed, "invoked": invoked, "invoked with a key": invoked_with_key}


@of_one_and_eight
@pytest.mark.parametrize("repeat", KINDS.values(), ids=KINDS)
async def test_a_repeated_call_is_one_call_also_eleven_minutes_later(gate: Gate, count: int, repeat: Repeat) -> None:
    fronts = fronts_of(gate, count)
    answers = await fronts.together(repeat, "k") + await fronts.in_turn(repeat, "k")
    conflicts = await fronts.in_turn(repeat, "k", "another body")
    await gate.quiet()
    await asyncio.sleep(LATER_S)
    answers += await fronts.together(repeat, "k") + await fronts.in_turn(repeat, "k")
    conflicts += await fronts.together(repeat, "k", "another body")
    assert answers == [answers[0]] * 4 * TIMES
    assert conflicts == [(409, "idempotency_conflict")] * 2 * TIMES
    await _charged_once(gate, 1)
    again = await fronts.together(repeat, "k-2")
    assert again == [again[0]] * TIMES
    assert again[0] != answers[0]
    await _charged_once(gate, 2)


@pytest.mark.parametrize("repeat", KINDS.values(), ids=KINDS)
async def test_a_kept_answer_needs_no_worker(gate: Gate, repeat: Repeat) -> None:
    first = await repeat(gate, gate.context, "k", "hello")
    await asyncio.sleep(LATER_S)
    gate.shard.decide(Silent("w", is_worker=True))
    front = gate.process()
    assert await repeat(gate, front, "k", "hello") == first
    assert await repeat(gate, front, "k", "another body") == (409, "idempotency_conflict")


@of_one_and_eight
async def test_a_repeated_message_executes_its_call_once(gate: Gate, count: int) -> None:
    """An execution whose time ends lets its call go. The gate launches the call by a message, which comes again."""
    fronts = fronts_of(gate, count)
    event = {"api_key": gate.keys["a"], "model": "m", "prompt": "hello", "max_tokens": 3}
    busy = [asyncio.ensure_future(whole(gate, gate.context, f"busy-{number}", "long")) for number in range(2)]
    await asyncio.sleep(0.01)
    left = [await invoke(context, event, "r-1", 0.0) for context in fronts.contexts]
    assert left == [
        {"id": "r-1", "status": "queued", "queue_position": 1, "estimated_wait_s": ANY, "estimated_wait_p90_s": ANY},
        *[{"id": "r-1", "status": "queued"}] * (len(left) - 1),
    ]
    await asyncio.gather(*busy)
    await gate.quiet()
    (launched,) = gate.launcher.launched
    await _executed(fronts, launched[0])
    answers = [await result(context, {"api_key": gate.keys["a"], "id": "r-1"}) for context in fronts.contexts]
    await asyncio.sleep(LATER_S)
    assert await _executed(fronts, launched[0]) == [False] * TIMES
    answers += [await result(context, {"api_key": gate.keys["a"], "id": "r-1"}) for context in fronts.contexts]
    assert answers[0]["status"] == "done"
    assert answers == [answers[0]] * len(answers)
    await _charged_once(gate, 3)


@of_one_and_eight
async def test_repeated_reports_of_ends_and_returns_change_nothing(gate: Gate, count: int) -> None:
    """The leader itself refuses other commands of this age (leader.py)."""
    fronts = fronts_of(gate, count)
    await fronts.together(whole, "k")
    await gate.quiet()
    reports = [command for command in gate.shard.commands if isinstance(command, End | Return)]
    assert reports
    for wait_s in (0.0, LATER_S):
        await asyncio.sleep(wait_s)
        for report in reports * TIMES:
            gate.shard.decide(report)
    await _charged_once(gate, 1)


async def _executed(fronts: Fronts, call_id: str) -> list[bool]:
    contexts = (fronts.contexts[number % len(fronts.contexts)] for number in range(TIMES))
    return await asyncio.gather(*(execute_detached(context, call_id) for context in contexts))


async def _charged_once(gate: Gate, calls: int) -> None:
    """Check that so many calls were executed, ended and charged, each once.

    Several fronts may send an order of the same attempt: the worker takes the first of them.
    """
    await gate.at_rest()
    assert len(gate.workers.seen) == calls
    assert len(gate.ends("done")) == calls
    assert gate.spent("a") == calls * COST


def test_eleven_minutes_are_beyond_what_the_gate_remembers() -> None:
    assert ShardSettings().process_kept_s < LATER_S

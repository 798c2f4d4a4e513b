"""Two pools as real processes behind one front and one set of functions: every face, a flood, and a killed leader."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.support.hang_guard import HANG_S
from tests.support.local.pools_stack import MODELS, SLOTS, PoolsStack, pools_stack, requests_of

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]
CHAT, CODE = MODELS["chat"], MODELS["code"]
TOKENS = 8


def chat(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": TOKENS, **more}


async def whole(client: AsyncOpenAI, model: str, max_tokens: int = TOKENS) -> int:
    """Return the output tokens of an answer that is not streamed."""
    answer = await client.chat.completions.create(**chat(model, max_tokens=max_tokens))
    assert answer.usage is not None
    return int(answer.usage.completion_tokens)


async def streamed(client: AsyncOpenAI, model: str, max_tokens: int = TOKENS) -> int:
    stream = await client.chat.completions.create(
        **chat(model, max_tokens=max_tokens), stream=True, stream_options={"include_usage": True}
    )
    usage = [chunk.usage async for chunk in stream][-1]
    assert usage is not None
    return int(usage.completion_tokens)


async def until(snapshot: Any, holds: Any) -> Any:
    """Take snapshots until one holds, and return it."""
    async with asyncio.timeout(HANG_S):
        while not holds(found := await snapshot()):
            await asyncio.sleep(0.2)
        return found


async def later_result(stack: PoolsStack, key: str) -> dict[str, Any]:
    ask = {"api_key": stack.keys["quiet"], "id": key}
    found: dict[str, Any] = await until(
        lambda: stack.invoke("headgate-result", ask), lambda each: each.get("status") == "done"
    )
    return found


async def batch(client: AsyncOpenAI) -> list[str]:
    """Run a batch with a line for each pool and return the ids of the lines with an answer."""
    lines = [
        {"custom_id": model, "method": "POST", "url": "/v1/chat/completions", "body": chat(model)}
        for model in (CHAT, CODE)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = await client.files.create(file=("lines.jsonl", content), purpose="batch")
    made = await client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    over = await until(lambda: client.batches.retrieve(made.id), lambda each: each.status == "completed")
    text = (await client.files.content(over.output_file_id)).text
    return [json.loads(row)["custom_id"] for row in text.splitlines()]


async def test_every_face_serves_both_pools(tmp_path: Path) -> None:
    async with pools_stack(tmp_path) as stack, stack.client() as client:
        assert [model.id async for model in client.models.list()] == [CHAT, CODE]
        for number, model in enumerate((CHAT, CODE)):
            assert (await streamed(client, model), await whole(client, model)) == (TOKENS, TOKENS)
            ask = {"api_key": stack.keys["quiet"], **chat(model)}
            answer = await stack.invoke("headgate-invoke", ask)
            assert (answer["model"], answer["usage"]["completion_tokens"]) == (model, TOKENS)
            key = f"later-{number}"
            await stack.invoke("headgate-invoke", {**ask, "idempotency_key": key}, InvocationType="Event")
            assert (await later_result(stack, key))["response"]["model"] == model
            first = await client.responses.create(model=model, input="hello", max_output_tokens=TOKENS)
            second = await client.responses.create(
                model=CHAT, input="again", previous_response_id=first.id, max_output_tokens=TOKENS
            )
            assert second.status in ("completed", "incomplete")
        assert await batch(client) == [CHAT, CODE]
        totals = (await client.get("/usage", cast_to=dict[str, Any]))["totals"]
        assert totals["requests"] == 2 * 6 + 2
        assert requests_of(await stack.headgate("usage")) == totals["requests"]
        for pool, model in MODELS.items():
            top = await stack.headgate("top", "--once", "--pool", pool)
            assert [(worker["model"], worker["slots"]) for worker in top["workers"]] == [(model, SLOTS)]


async def test_a_flood_and_a_killed_leader_leave_the_other_pool_alone(tmp_path: Path) -> None:
    """The flood waits in its own pool, also for another tenant's calls. Then its leader is killed, and a stream of the
    other pool, whose leader stays, goes on."""
    async with pools_stack(tmp_path) as stack, stack.client("flood") as flood, stack.client() as quiet:
        flooding = [asyncio.create_task(whole(flood, CHAT, 2_000)) for _ in range(10 * SLOTS)]

        async def waiting() -> int:
            top = await stack.headgate("top", "--once", "--pool", "chat")
            return sum(tenant["waiting"] for tenant in top["tenants"])

        before = await stack.headgate("top", "--once", "--pool", "code")
        leader = (await stack.headgate("top", "--once", "--pool", "chat"))["leader"]
        assert await until(waiting, lambda count: count >= SLOTS)
        assert await asyncio.gather(*(streamed(flood, CODE) for _ in range(5))) == [TOKENS] * 5
        assert await waiting(), "the flood still waits"
        running = asyncio.create_task(streamed(quiet, CODE, 500))
        stack.kill(leader)
        assert await whole(quiet, CODE) == TOKENS
        assert await running == 500
        code = await stack.headgate("top", "--once", "--pool", "code")
        assert (code["epoch"], code["leader"]) == (before["epoch"], before["leader"])
        assert await streamed(quiet, CHAT) == TOKENS, "without its leader, the processes decide alone"
        for task in flooding:
            task.cancel()
        await asyncio.gather(*flooding, return_exceptions=True)

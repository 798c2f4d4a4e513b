"""The whole service on vLLM: gate, table, worker and engine, with unmodified clients; and its engine killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from gpu_worker.engines.random_llama import BUILT_MODEL_NAME
from tests.support.hang_guard import HANG_S
from tests.support.local.stack import Running, eventually, running, start, stop, usage
from tests.support.vllm import slow_steps

TENANTS = ("quiet", "flood")
OUTPUT = 400
"""Tokens: eight seconds of them, so that there is something to kill."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_NO_USAGE_STATS="1", VLLM_ENABLE_V1_MULTIPROCESSING="1")
    found = start(tmp_path_factory.mktemp("home"), "--engine", "vllm", "--", *slow_steps.ARGUMENTS)
    yield found
    stop(found)


async def asked(stack: Running, tenant: str, tokens: int, began: asyncio.Event | None = None) -> int:
    """Return the number of tokens, or minus the status of the error. `began`: stream, and set it at the first token."""
    client = openai.AsyncOpenAI(base_url=stack.openai_base_url, api_key=stack.api_keys[tenant], max_retries=0)
    create: Callable[..., Any] = client.completions.create
    question = {"model": BUILT_MODEL_NAME, "prompt": "What is served next?", "max_tokens": tokens, "timeout": HANG_S}
    question["extra_body"] = {"ignore_eos": True}  # a random model draws an end token now and then
    try:
        if began is None:
            return int((await create(**question)).usage.completion_tokens)
        count = 0
        async for _ in await create(**question, stream=True):
            count += 1
            began.set()
        return count
    except openai.APIStatusError as error:
        return -error.status_code
    except openai.APIError:
        return -1  # in a stream, after it began


def engine_of(stack: Running) -> psutil.Process:
    """Find the engine's process by its name: it overwrites the environment that marks the stack's processes."""

    def engines() -> list[psutil.Process]:
        family = psutil.Process(stack.process.pid).children(recursive=True)
        return [process for process in family if process.is_running() and "EngineCore" in process.name()]

    return eventually(engines, lambda found: len(found) == 1)[0]


def test_it_answers(stack: Running) -> None:
    assert asyncio.run(asked(stack, "quiet", 12)) == 12
    eventually(lambda: running(stack, "quiet"), lambda count: count == 0)
    assert usage(stack, "quiet").output_tokens == 12


def test_its_engine_killed_no_slot_is_lost_and_nothing_is_charged_twice(stack: Running) -> None:
    """Streams that had begun end with an error, and pay for what they got; the others are tried again and answered."""
    before = {tenant: usage(stack, tenant).service for tenant in TENANTS}
    outcomes = asyncio.run(_killed_at_the_first_token(stack))
    assert any(outcome < 0 for outcome in outcomes), f"nothing ran when it was killed: {outcomes}"
    for tenant in TENANTS:
        eventually(partial(running, stack, tenant), lambda count: count == 0)
        most = 3 * (20 + 2 * OUTPUT)
        assert 0 <= usage(stack, tenant).service - before[tenant] <= most, "each at most once"
    eventually(lambda: asyncio.run(asked(stack, "quiet", 8)), lambda tokens: tokens == 8)
    slots = asyncio.run(_all_slots(stack))
    assert slots == [16] * 8


async def _killed_at_the_first_token(stack: Running) -> list[int]:
    """Send streams and whole answers, and kill the engine at the first token. Return what came of each."""
    engine = engine_of(stack)
    began, whole = asyncio.Event(), None
    asking = [asked(stack, tenant, OUTPUT, stream) for tenant in TENANTS for stream in (began, whole, began)]
    tasks = [asyncio.create_task(one) for one in asking]
    await began.wait()
    engine.send_signal(signal.SIGKILL)
    return await asyncio.gather(*tasks)


async def _all_slots(stack: Running) -> list[int]:
    """Send as many requests at once as the worker has slots: all are free again."""
    return list(await asyncio.gather(*(asked(stack, TENANTS[number % 2], 16) for number in range(8))))


def test_a_log_of_it_names_no_prompt(stack: Running) -> None:
    logs = "".join(path.read_text(errors="replace") for path in Path(stack.home / "logs").glob("worker-*.log"))
    assert "the engine is replaced" in logs
    assert "What is served next?" not in logs

"""The scheduler in vLLM's own OpenAI server, with OpenAI's own client: for use without our worker."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from gpu_worker.engines.random_llama import TinySize, ensure_tiny_model
from tests.support.vllm import slow_steps


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    model, port = ensure_tiny_model(tmp_path_factory.mktemp("models"), TinySize()), free_port()
    log = tmp_path_factory.mktemp("log") / "server.log"
    settings = {"headgate": {"policy": "tiered:vtc", "tiers": {"preemptions_max": 3}}}
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)),
        *("--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager", "--block-size", "32"),
        *("--max-model-len", "320", "--max-num-seqs", "4", "--num-gpu-blocks-override", "12"),
        *("--scheduler-cls", "gpu_worker.engines.vllm.scheduler.TierScheduler"),
        *("--additional-config", json.dumps(settings), "--no-enable-prefix-caching"),
        *slow_steps.ARGUMENTS,
    ]
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path]),
    }
    with log.open("wb") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as process:
        try:
            while not _serves(port):
                assert process.poll() is None, log.read_text()[-2000:]
                time.sleep(0.3)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()


def _serves(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=1.0).status_code == 200
    except httpx.HTTPError:
        return False


async def test_a_premium_stream_begins_while_background_fills_the_cache(server: str) -> None:
    client = openai.AsyncOpenAI(base_url=server, api_key="none", max_retries=0)
    happened: list[str] = []

    async def stream(name: str, tenant: str, tier: str, words: int, tokens: int) -> None:
        answer = await client.completions.create(
            model="tiny",
            prompt=f"{name} " + "water " * words,
            max_tokens=tokens,
            temperature=0.0,
            stream=True,
            extra_body={
                "ignore_eos": True,
                "vllm_xargs": {"headgate_tenant": tenant, "headgate_tier": tier, "headgate_weight": 1.0},
            },
        )
        begun = False
        async for chunk in answer:
            if chunk.choices[0].text and not begun:
                begun = True
                happened.append(f"{name} begins")
        happened.append(f"{name} ends")

    tasks = [asyncio.create_task(stream(f"b{n}", "batch", "background", 60, 120)) for n in range(8)]
    while len(happened) < 2:
        await asyncio.sleep(0.005)
    tasks.append(asyncio.create_task(stream("premium", "paying", "premium", 100, 4)))
    await asyncio.gather(*tasks)
    assert len(happened) == 18
    begun = [what for what in happened if what.endswith("begins")]
    assert begun.index("premium begins") <= 4  # of 9; the others of the flood wait for it

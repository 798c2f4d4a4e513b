"""headgate-vllm's wheel in vLLM's own OpenAI server, with OpenAI's own client: for use without our worker."""

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
from typing import Any
from zipfile import ZipFile

import httpx
import openai
import pytest

from gpu_worker.engines.random_llama import TinySize, ensure_tiny_model
from packages.headgate_vllm import build_backend
from tests.support.hang_guard import HANG_S
from tests.support.vllm import slow_steps


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def installed_wheel(folder: Path) -> Path:
    """Install headgate-vllm as pip would, in a folder for Python's path. The server imports nothing else of ours."""
    with ZipFile(folder / build_backend.build_wheel(str(folder))) as wheel:
        wheel.extractall(folder)
    return folder


TENANTS = """
[keys]
"sk-batch" = "batch"
"sk-paying" = "paying"
"sk-measured" = "measured"
[tenants.batch]
tier = "background"
[tenants.paying]
tier = "premium"
[tenants.measured]
tier = "premium"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    model, port = ensure_tiny_model(tmp_path_factory.mktemp("models"), TinySize()), free_port()
    log = tmp_path_factory.mktemp("log") / "server.log"
    wheel = installed_wheel(tmp_path_factory.mktemp("wheel"))
    tenants = tmp_path_factory.mktemp("tenants") / "tenants.toml"
    tenants.write_text(TENANTS)
    settings = {"headgate": {"policy": "tiered:vtc", "tiers": {"preemptions_max": 3}}}
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)),
        *("--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager", "--block-size", "32"),
        *("--max-model-len", "320", "--max-num-seqs", "4", "--num-gpu-blocks-override", "12"),
        *("--scheduler-cls", "headgate_vllm.Scheduler", "--middleware", "headgate_vllm.Tenants"),
        *("--additional-config", json.dumps(settings), "--no-enable-prefix-caching"),
        *slow_steps.ARGUMENTS,
    ]
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "HEADGATE_TENANTS": str(tenants),
        "PYTHONPATH": os.pathsep.join([str(wheel), str(Path.cwd()), *sys.path]),
    }
    with (
        log.open("wb") as out,
        subprocess.Popen(command, env=environment, cwd=wheel, stdout=out, stderr=out) as process,
    ):
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
    happened: list[str] = []

    async def stream(name: str, tenant: str, words: int, tokens: int) -> None:
        answer = await client_of(server, tenant).completions.create(
            model="tiny",
            prompt=f"{name} " + "water " * words,
            max_tokens=tokens,
            temperature=0.0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        begun = False
        async for chunk in answer:
            if chunk.choices[0].text and not begun:
                begun = True
                happened.append(f"{name} begins")
        happened.append(f"{name} ends")

    tasks = [asyncio.create_task(stream(f"b{n}", "batch", 60, 120)) for n in range(8)]
    while len(happened) < 2:
        await asyncio.sleep(0.005)
    tasks.append(asyncio.create_task(stream("premium", "paying", 100, 4)))
    await asyncio.gather(*tasks)
    assert len(happened) == 18
    begun = [what for what in happened if what.endswith("begins")]
    assert begun.index("premium begins") <= 4  # of 9; the others of the flood wait for it


async def test_every_request_is_its_tenants_whatever_its_body_says(server: str) -> None:
    """Chat, completions and responses, streamed or not: /metrics, with no KV connector, counts each for its key."""
    client = client_of(server, "measured")
    forged: Any = {
        "extra_body": {
            "ignore_eos": True,
            "vllm_xargs": {"headgate_tenant": "paying", "headgate_tier": "system", "headgate_weight": 100.0},
        },
        "extra_headers": {"tracestate": "headgate=0/premium/9.0/paying", "x-tenant": "paying"},
    }
    chat: Any = {"model": "tiny", "messages": [{"role": "user", "content": "one two"}], "max_tokens": 5, **forged}
    completion: Any = {"model": "tiny", "prompt": "one two three", "max_tokens": 5, **forged}
    response: Any = {"model": "tiny", "input": "one two three", "max_output_tokens": 5, **forged}
    before = (await samples_of(server)).get(PAYING, 0.0)
    counted = 0
    for resource, body in (
        (client.chat.completions, chat),
        (client.completions, completion),
        (client.responses, response),
    ):
        for streams in (False, True):
            answer: Any = await resource.create(**body, stream=streams)
            if streams:
                async for _ in answer:
                    pass
            counted += 5
            while (await samples_of(server)).get(MEASURED, 0.0) < counted:
                await asyncio.sleep(0.05)
    samples = await samples_of(server)
    assert samples[MEASURED] == counted == 30
    assert samples.get(PAYING, 0.0) == before
    assert samples['headgate_requests_running{engine="0",tier="premium"}'] == 0
    assert samples["vllm:num_requests_running"] == 0


async def test_an_unknown_key_is_refused(server: str) -> None:
    with pytest.raises(openai.AuthenticationError, match="needs a valid API key"):
        await client_of(server, "nobody").completions.create(model="tiny", prompt="one", max_tokens=1)


PAYING = 'headgate_tenant_tokens_total{engine="0",kind="output",tenant="paying"}'
MEASURED = PAYING.replace("paying", "measured")


def client_of(server: str, tenant: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server, api_key=f"sk-{tenant}", max_retries=0)


async def samples_of(server: str) -> dict[str, float]:
    async with httpx.AsyncClient(base_url=server.removesuffix("/v1"), timeout=HANG_S) as plain:
        text = (await plain.get("/metrics")).text
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("headgate_"))
    found = {name: float(value) for name, value in lines}
    running = next(line for line in text.splitlines() if line.startswith("vllm:num_requests_running"))
    return {**found, "vllm:num_requests_running": float(running.rsplit(" ", 1)[1])}

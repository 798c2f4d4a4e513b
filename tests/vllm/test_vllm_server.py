"""The scheduler in vLLM's own OpenAI server, with OpenAI's own client: for use without our worker."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import tomllib
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


def installed_plugin(folder: Path) -> Path:
    """Make a distribution with the entry points of pyproject.toml: the one that is installed may be older."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    found = folder / "headgate_plugin-1.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: headgate-plugin\nVersion: 1\n")
    (found / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    model, port = ensure_tiny_model(tmp_path_factory.mktemp("models"), TinySize()), free_port()
    log = tmp_path_factory.mktemp("log") / "server.log"
    plugins = installed_plugin(tmp_path_factory.mktemp("plugins"))
    settings = {"headgate": {"policy": "tiered:vtc", "tiers": {"preemptions_max": 3}, "trust_client_fields": True}}
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
        "PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(plugins), *sys.path]),
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


async def test_its_own_metrics_have_the_tenants_without_a_connector(server: str) -> None:
    """With nothing but the scheduler's class and the plugin, which tells the engine core that it takes the reports."""
    client = openai.AsyncOpenAI(base_url=server, api_key="none", max_retries=0)
    xargs = {"headgate_tenant": "measured", "headgate_tier": "premium"}
    await client.completions.create(
        model="tiny", prompt="one two three", max_tokens=5, extra_body={"ignore_eos": True, "vllm_xargs": xargs}
    )
    async with httpx.AsyncClient(base_url=server.removesuffix("/v1")) as plain:
        while 'tenant="measured"' not in (text := (await plain.get("/metrics")).text):
            await asyncio.sleep(0.05)
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("headgate_"))
    assert float(samples['headgate_tenant_tokens_total{engine="0",kind="output",tenant="measured"}']) == 5
    assert float(samples['headgate_requests_running{engine="0",tier="premium"}']) == 0
    assert "vllm:num_requests_running" in text

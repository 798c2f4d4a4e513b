"""A quiet tenant's first token beside a flood: fairness inside vLLM, and at admission to an unmodified vLLM server.

    .venv-vllm/bin/python -m benchmarks.any_server_fairness [--model SHAPE] [--quiet N]

Each row is one worker's engine under the same load. The flood keeps FLOOD_OPEN long requests open; the quiet tenant
sends a short one every PAUSE_S. Inside: headgate's scheduler in vLLM (`--engine vllm`). At admission: an unmodified
vLLM server behind `--engine openai --batch N`. Both servers have a batch of BATCH sequences. The baseline is `fcfs` at
admission. In the rows "premium" the quiet tenant's tier is premium and the flood's background.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dispatcher.policies.tiers import Tier
from gpu_worker.engines.interface import Engine, Token, own_order

BATCH = 8
FLOOD_OPEN = 32
FLOOD_TOKENS = 96
QUIET_TOKENS = 16
PAUSE_S = 0.8
WARM_S = 5.0
"""The flood runs alone for this time first."""
MODEL = "random:4x256"
WORDS = "water is shared by turn and each field has what it is due "


@dataclass(frozen=True, slots=True)
class Row:
    """One measured engine. `places`: sequences in the server at a time; None: headgate schedules inside."""

    name: str
    places: int | None
    policy: str = "tiered:vtc"
    quiet: Tier = Tier.STANDARD
    flood: Tier = Tier.STANDARD


BASELINE = Row(f"fcfs at admission, N = {BATCH}", BATCH, "fcfs")
ROWS = (
    BASELINE,
    Row("at admission, N = 64", 64),
    Row(f"at admission, N = {BATCH}", BATCH),
    Row(f"at admission, N = {BATCH // 2}", BATCH // 2),
    Row("inside", None),
    Row(f"premium: at admission, N = {BATCH}", BATCH, quiet=Tier.PREMIUM, flood=Tier.BACKGROUND),
    Row("premium: inside", None, quiet=Tier.PREMIUM, flood=Tier.BACKGROUND),
)


@dataclass(slots=True)
class Load:
    """The two tenants of one row, and what they got."""

    engine: Engine
    row: Row
    first_s: list[float] = field(default_factory=list)
    flood_tokens: int = 0
    sent: int = 0

    async def play(self, requests: int) -> float:
        """Return the seconds from the first quiet request to the last one's end."""
        flooding = [asyncio.create_task(self._flood()) for _ in range(FLOOD_OPEN)]
        await asyncio.sleep(WARM_S)
        self.flood_tokens, began_s = 0, time.perf_counter()
        quiet = []
        for _ in range(requests):
            quiet.append(asyncio.create_task(self._ask("quiet", self.row.quiet, 4, QUIET_TOKENS)))
            await asyncio.sleep(PAUSE_S)
        self.first_s = [await each for each in quiet]
        seconds = time.perf_counter() - began_s
        for each in flooding:
            each.cancel()
        await asyncio.gather(*flooding, return_exceptions=True)
        return seconds

    async def _flood(self) -> None:
        while True:
            await self._ask("flood", self.row.flood, 5, FLOOD_TOKENS)

    async def _ask(self, tenant: str, tier: Tier, repeats: int, tokens: int) -> float:
        """Return the seconds to the first token."""
        self.sent += 1
        body = {"prompt": f"{self.sent} " + WORDS * repeats, "temperature": 0.0, "ignore_eos": True}
        request = own_order(f"r{self.sent}", tenant, body, tokens, tier=tier)
        began_s, first_s, seen = time.perf_counter(), 0.0, 0
        async for event in self.engine.generate(request):
            if isinstance(event, Token):
                first_s = first_s or time.perf_counter() - began_s
                self.flood_tokens += event.output_tokens - seen if tenant == "flood" else 0
                seen = event.output_tokens
        return first_s


@asynccontextmanager
async def engine_of(row: Row, model: str, home: Path, url: str) -> AsyncIterator[Engine]:
    from gpu_worker.engines.openai.engine import OpenAiEngine
    from gpu_worker.engines.openai.server_api import ServerOptions
    from gpu_worker.engines.vllm.engine import VllmEngine, VllmShape
    from gpu_worker.policies.fairness.registry import make_policy

    engine: Any
    if row.places is None:
        engine = VllmEngine(model=model, home=home, policy=row.policy, shape=VllmShape(batch=BATCH))
    else:
        engine = OpenAiEngine(make_policy(row.policy), ServerOptions(url), places=row.places)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


@asynccontextmanager
async def unmodified_server(model: str, home: Path) -> AsyncIterator[str]:
    """Start vLLM's server with its own scheduler; yield its URL."""
    from gpu_worker.engines.random_llama import model_folder

    folder, name = model_folder(model, home)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--model", str(folder), "--served-model-name", name, "--host", "127.0.0.1", "--port", str(port)]
    words += ["--max-num-seqs", str(BATCH), "--dtype", "float32", "--enforce-eager", "--block-size", "32"]
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words]
        server = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
            await server.wait()


async def measure(row: Row, model: str, home: Path, url: str, requests: int) -> tuple[float, float, float]:
    """Return the quiet tenant's P50 and P95 of the first token in seconds, and the flood's tokens per second."""
    async with engine_of(row, model, home, url) as engine:
        load = Load(engine, row)
        seconds = await load.play(requests)
    cuts = statistics.quantiles(load.first_s, n=20, method="inclusive")
    return statistics.median(load.first_s), cuts[-1], load.flood_tokens / seconds


async def compare(model: str, requests: int) -> None:
    print(f"CPU, {os.cpu_count()} cores; {model}; {requests} quiet requests, {FLOOD_OPEN} of the flood always open")
    print(f"{'':34} {'first token P50':>16} {'P95':>8} {'of fcfs':>8} {'flood tokens/s':>15}")
    with tempfile.TemporaryDirectory() as folder:
        found: dict[Row, tuple[float, float, float]] = {}
        async with unmodified_server(model, Path(folder)) as url:
            for row in (each for each in ROWS if each.places is not None):
                found[row] = await measure(row, model, Path(folder), url, requests)
        for row in (each for each in ROWS if each.places is None):
            found[row] = await measure(row, model, Path(folder), "", requests)
    for row in ROWS:
        p50_s, p95_s, per_s = found[row]
        print(f"{row.name:34} {p50_s:>14.2f} s {p95_s:>6.2f} s {p50_s / found[BASELINE][0]:>8.3f} {per_s:>15.0f}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.any_server_fairness", description=__doc__)
    parser.add_argument("--model", default=MODEL, help="random:LAYERSxWIDTH, or a local folder")
    parser.add_argument("--quiet", type=int, default=30, help="requests of the quiet tenant in each row")
    options = parser.parse_args()
    if importlib.util.find_spec("vllm") is None:
        print("any_server_fairness: skipped, vLLM is not installed; `make test-vllm` makes .venv-vllm, which has it")
        return 0
    os.environ.update(VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    asyncio.run(compare(options.model, options.quiet))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Real processes: a gate process, a worker over the modelled engine, and SIGKILL and SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import Accept, Offer, Over, Status
from dispatcher.model.errors import WorkerFailed
from dispatcher.model.worker_protocol import Finished, WorkEvent, WorkOrder
from dispatcher.processes.bootstrap import NoLauncher, RealClock, make_links, make_store
from dispatcher.service.link.link import Link
from dispatcher.settings.config import Config, load_config
from dispatcher.workers.client import HttpWorkerClient
from gpu_worker.service.spot_notice import LAST_S
from tests.support.attempts import streamed
from tests.support.emf import series_in
from tests.support.hang_guard import HANG_S
from tests.support.worker.harness import SECRET, SECRETS, order

MODEL = "headgate-modelled"

pytestmark = pytest.mark.stack


@dataclass
class Stack:
    folder: Path
    environment: dict[str, str]
    link: Link
    workers: HttpWorkerClient
    processes: list[asyncio.subprocess.Process]
    offered: dict[str, asyncio.Queue[Offer | Over]] = field(default_factory=lambda: defaultdict(asyncio.Queue))

    async def spawn(self, *arguments: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *arguments, stdout=asyncio.subprocess.PIPE, env=self.environment
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert "url" in json.loads(await process.stdout.readline())
        return process

    async def worker(self, *options: str) -> asyncio.subprocess.Process:
        home = str(self.folder)
        return await self.spawn(
            "gpu_worker", "--engine", "modelled", "--worker-id", "w", "--slots", "2", "--home", home, *options
        )

    async def accept(self) -> Offer:
        terms = CallTerms("a", MODEL, 8.0, time.time() + 300, False, "", "")
        tenant = TenantConfig(version=1, weight=1.0, rate_per_s=0.0, burst=0.0, tier="standard", waiting_max=10)
        call_id, process = self.link.new_id(), self.link.process
        self.link.hold(call_id, self.offered[call_id].put_nowait)
        outcome = await self.link.do(Accept(id=call_id, floor=0, process=process, terms=terms, config=tenant))
        assert isinstance(outcome, Offer)
        return outcome

    async def news(self, call_id: str) -> Offer | Over:
        async with asyncio.timeout(HANG_S):
            return await self.offered[call_id].get()


def work(offer: Offer, max_tokens: int) -> WorkOrder:
    return order(offer.id, attempt=offer.attempt, model=MODEL, max_tokens=max_tokens, deadline_at=time.time() + 300)


async def rest(events: AsyncIterator[WorkEvent]) -> list[WorkEvent]:
    return [event async for event in events]


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    settings = {"HEADGATE_STORE": f"sqlite:{tmp_path / 'gate.db'}", "HEADGATE_WORKER_SECRET": SECRET.decode()}
    config, clock = load_config(settings), RealClock()
    assert isinstance(config, Config)
    store = make_store(config)
    link = make_links(config, store, clock, NoLauncher())[0]
    client = HttpWorkerClient(secrets=SECRETS, clock=clock)
    made = Stack(tmp_path, {**os.environ, **settings}, link, client, [])
    try:
        await made.spawn("dispatcher")
        yield made
    finally:
        for process in made.processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
        await client.close()
        await link.close()
        await store.close()


async def test_a_worker_that_is_killed_and_started_again_gives_its_attempts_back_at_once(stack: Stack) -> None:
    worker = await stack.worker()
    offered = await stack.accept()
    events = streamed(stack.workers, offered, work(offered, 2000))
    await anext(events)
    worker.send_signal(signal.SIGKILL)
    with pytest.raises(WorkerFailed):
        await rest(events)
    await stack.worker()
    again = await stack.news(offered.id)
    assert isinstance(again, Offer)
    assert (again.attempt, again.worker) == (2, "w")
    last = (await rest(streamed(stack.workers, again, work(again, 3))))[-1]
    assert isinstance(last, Finished)
    over = await stack.link.do(Status(offered.id))
    assert over == Over(offered.id, 2, "done", last.input_tokens, last.output_tokens)


async def test_a_worker_whose_instance_ends_gives_back_what_cannot_finish(stack: Stack) -> None:
    """A spot notice of which the last moment has come: the worker does not drain for 300 s."""
    notice = stack.folder / "spot-notice"
    worker = await stack.worker("--notice", str(notice), "--drain-s", "300")
    offered = await stack.accept()
    events = streamed(stack.workers, offered, work(offered, 2000))
    await anext(events)
    ends_at = datetime.fromtimestamp(time.time() + LAST_S, UTC)
    notice.write_text(json.dumps({"action": "terminate", "time": ends_at.isoformat()}))
    with contextlib.suppress(WorkerFailed):
        assert not isinstance((await rest(events))[-1], Finished)
    assert await worker.wait() == 0
    assert not await stack.link.fleet(), "it has signed off"


async def test_a_worker_that_is_terminated_finishes_leaves_and_leaves_nothing_on_disk(stack: Stack) -> None:
    worker = await stack.worker()
    offered = await stack.accept()
    events = streamed(stack.workers, offered, work(offered, 20))
    await anext(events)
    worker.send_signal(signal.SIGTERM)
    assert isinstance((await rest(events))[-1], Finished)
    assert await worker.wait() == 0
    assert isinstance(await stack.link.do(Status(offered.id)), Over)
    assert not await stack.link.fleet()
    assert list((stack.folder / "outbox" / "pool-default").iterdir()) == []


async def test_a_worker_writes_its_metrics_as_lines_for_cloudwatch(stack: Stack) -> None:
    """The interval is long, so that only the end writes: no verdict depends on the machine's speed."""
    worker = await stack.worker("--emf-s", "9999")
    for _ in range(3):
        offered = await stack.accept()
        await rest(streamed(stack.workers, offered, work(offered, 20)))
    worker.send_signal(signal.SIGTERM)
    assert worker.stdout is not None
    written = (await worker.stdout.read()).decode()
    assert await worker.wait() == 0
    found = series_in(written)
    assert {each.dimensions for each in found} == {(("model", MODEL), ("pool", "default"), ("service", "headgate"))}
    values = {each.name: each.values for each in found}
    assert values["output_tokens_generated"] == (60,)
    assert values["failed_on_worker"] == values["engine_running"] == values["engine_waiting"] == (0,)
    assert len(values["worker_ttft_ms"]) == 3
    assert all(value > 0 for value in values["worker_ttft_ms"])
    assert {each.unit for each in found} == {"Count", "Percent", "Milliseconds"}


async def first_answer(client: httpx.AsyncClient, path: str) -> httpx.Response:
    """Ask until the server listens."""
    while True:
        with contextlib.suppress(httpx.ConnectError):
            return await client.get(path)
        await asyncio.sleep(0.1)


async def test_a_worker_answers_health_while_it_loads(stack: Stack) -> None:
    """An orchestrator kills what does not answer, and a large model loads for minutes. Here it never ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ("--engine", "modelled", "--load-s", "3600", "--port", str(port), "--home", str(stack.folder))
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "gpu_worker", *options, env=stack.environment)
    stack.processes.append(process)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=HANG_S) as client:
        async with asyncio.timeout(HANG_S):
            health = await first_answer(client, "/health")
        assert (health.status_code, health.json()) == (200, {"status": "loading"})
        assert (await client.post("/v1/execute", json={})).status_code == 503
        assert (await client.post("/health")).status_code == 503
    assert not await stack.link.fleet(), "it joins its pool when it can serve"
    process.terminate()
    assert await asyncio.wait_for(process.wait(), HANG_S) != 0

"""Measure the latency that headgate adds to a request.

`python -m benchmarks.added_latency [--requests N] [--store moto|dynamodb-local]`

The same one-token request goes, in turn, through the HTTP front (key, limits, admission in the table, execution,
settlement) and directly to the same worker, which answers at once. All of it is HTTP on this machine, one request at a
time. The table is a stand-in, so its own answer time is printed too; on AWS a request to DynamoDB takes single-digit
milliseconds. Requests to the table are counted as botocore sends them: before the worker is called, and in all.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from rich.console import Console
from rich.table import Table

from benchmarks.instant_worker import SLOTS, WORKER_ID
from dispatcher.bootstrap import NoLauncher, RealClock, RealIds, real_random
from dispatcher.model.old_fleet import Worker
from dispatcher.model.worker_protocol import WorkOrder
from dispatcher.old_operations.context import Context
from dispatcher.old_operations.directory import Directory
from dispatcher.old_stores.dynamodb.store import DynamoStore
from dispatcher.policies.clocks import Share
from dispatcher.policies.percentiles import percentile
from dispatcher.policies.tiers import Tier
from dispatcher.worker_client import HttpWorkerClient
from functions.http_api.app import make_app
from gpu_worker.__main__ import bound
from headgate.local import dynamodb_local
from headgate.local.processes import Children
from headgate.local.seed import TABLE, dynamodb, make_table, make_tenants
from headgate.local.stack import base_environment

MODEL = "headgate-modelled"
BODY = {"model": MODEL, "prompt": "hello", "max_tokens": 1}
SECRET = "not-a-secret-but-long-enough"  # noqa: S105 - signs execution tokens between two processes of this benchmark
WARMUP = 20


@dataclass
class Counter:
    """Counts requests to the table: all of them, and those before the worker was called."""

    total: int = 0
    before_call: list[int] = field(default_factory=list)
    mark: int = 0

    def sent(self, **_: Any) -> None:
        self.total += 1


class CountingClient(HttpWorkerClient):
    """Records how many requests the table has received when a worker is called."""

    counter: Counter

    def execute(self, worker: Worker, order: WorkOrder) -> Any:
        self.counter.before_call.append(self.counter.total - self.counter.mark)
        return super().execute(worker, order)


@dataclass(frozen=True)
class Bench:
    front_url: str
    key: str
    context: Context
    worker: Worker
    counter: Counter


@contextlib.asynccontextmanager
async def bench(store_name: str) -> AsyncIterator[Bench]:
    """Run the front in this process, the table and the worker in processes of their own."""
    clock = RealClock()
    children = Children(RealIds().new(), Path(tempfile.mkdtemp(prefix="headgate-bench-")))
    environment = {**base_environment(), "HEADGATE_WORKER_SECRET": SECRET}
    try:
        if store_name == "moto":
            url = await _started(children, "moto", "headgate.local.moto.server", environment)
        else:
            _, url = await dynamodb_local.start(children)
        worker_url = await _started(children, "worker", "benchmarks.instant_worker", environment)
        await make_table(url)
        client, counter = dynamodb(url), Counter()
        client.meta.events.register("before-send.dynamodb", counter.sent)
        store = DynamoStore(client, TABLE, clock=clock, random=real_random())
        keys = await make_tenants(store, {"tenant": Share()}, 1000)
        worker = Worker(WORKER_ID, "default", worker_url, MODEL, SLOTS, alive_until=clock.now() + 3600)
        seated = await store.register(worker)
        assert seated is not None
        workers = CountingClient(secret=SECRET.encode(), clock=clock)
        workers.counter = counter
        context = Context(store, Directory(store, clock), workers, NoLauncher(), clock, RealIds())
        async with _serving(context) as front_url:
            yield Bench(front_url, keys["tenant"], context, seated, counter)
    finally:
        await children.stop()


async def _started(children: Children, name: str, module: str, environment: dict[str, str]) -> str:
    child = await children.spawn(name, [sys.executable, "-m", module], environment=environment)
    return str((await child.announcement(60))["url"])


@contextlib.asynccontextmanager
async def _serving(context: Context) -> AsyncIterator[str]:
    listening = bound("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(make_app(lambda: context), log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await work()
    return (time.perf_counter() - started) * 1000


async def measure(requests: int, store_name: str) -> dict[str, Any]:
    """Return milliseconds and counts. Front, worker and table take turns, so that noise affects all three."""
    async with bench(store_name) as running, httpx.AsyncClient(timeout=30) as http:

        async def through_front() -> None:
            running.counter.mark = running.counter.total
            headers = {"authorization": f"Bearer {running.key}"}
            (await http.post(f"{running.front_url}/v1/completions", json=BODY, headers=headers)).raise_for_status()

        async def directly(number: int) -> None:
            order = WorkOrder(
                tenant="tenant", invocation=f"direct-{number}", attempt=1, slot=0, model=MODEL, weight=1.0,
                tier=Tier.STANDARD, deadline_at=time.time() + 60, prompt="hello", messages=None, max_tokens=1,
                temperature=1.0, seed=None, stop=(), app="", stage=0, interaction="", cache_salt="",
            )  # fmt: skip
            async for _ in HttpWorkerClient.execute(running.context.workers, running.worker, order):  # type: ignore[arg-type]
                pass

        async def table() -> None:
            await running.context.store.get("tenant", "none")

        for number in range(WARMUP):
            await through_front()
            await running.context.finish()
            await directly(-number - 1)
        running.counter.before_call.clear()
        seen = running.counter.total
        names = ("through the front", "straight to the worker", "one read of the table")
        times: dict[str, list[float]] = {name: [] for name in names}
        for number in range(requests):
            times["through the front"].append(await timed(through_front))
            await running.context.finish()  # the drain afterwards is in no request's latency
            times["straight to the worker"].append(await timed(lambda n=number: directly(n)))  # type: ignore[misc]
            times["one read of the table"].append(await timed(table))
        all_requests = running.counter.total - seen - requests
        return {
            "requests": requests,
            "store": store_name,
            "ms": {name: {"p50": percentile(t, 0.5), "p99": percentile(t, 0.99)} for name, t in times.items()},
            "table_requests_before_the_call": max(running.counter.before_call),
            "table_requests_in_all": all_requests / requests,
        }


def show(result: dict[str, Any]) -> None:
    console = Console()
    console.print(f"Added latency: {result['requests']} requests in turn, table: {result['store']}")
    table = Table()
    for heading in ("", "P50 ms", "P99 ms"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, figures in result["ms"].items():
        table.add_row(name, f"{figures['p50']:.1f}", f"{figures['p99']:.1f}")
    front, direct = result["ms"]["through the front"], result["ms"]["straight to the worker"]
    table.add_row("added", f"{front['p50'] - direct['p50']:.1f}", f"{front['p99'] - direct['p99']:.1f}")
    table.add_row("ratio", f"{front['p50'] / direct['p50']:.1f}", f"{front['p99'] / direct['p99']:.1f}")
    console.print(table)
    console.print(
        f"requests to the table until the worker is called: {result['table_requests_before_the_call']}; "
        f"in all, settlement and the drain after it included: {result['table_requests_in_all']:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--store", choices=("moto", "dynamodb-local"), default="moto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    with contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):
        result = asyncio.run(measure(options.requests, options.store))
    if options.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()

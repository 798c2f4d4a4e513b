"""Measure the latency and the CPU time that headgate adds to a request.

`python -m benchmarks.added_latency [--requests N] [--store sqlite|moto|dynamodb-local]`

The same request of two tokens goes, one at a time, through the HTTP front (key, limits, the gate's decision, execution,
the end in the log), and directly from this process: the gate's decision alone, then the execution alone. The execution
ends when the log has its end. The worker answers at once. Front, gate process, worker and store are processes of this
machine; their CPU time is taken from the kernel. moto and DynamoDB Local are stand-ins for DynamoDB, so the store's own
answer time is printed too; on AWS a request to DynamoDB takes single-digit milliseconds.
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
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.instant_worker import WORKER_ID
from dispatcher.bootstrap import NoLauncher, RealClock, RealIds, make_link, make_store
from dispatcher.config import load_config
from dispatcher.model.commands import Accept, Offer
from dispatcher.model.worker_protocol import Finished, WorkOrder
from dispatcher.policies.clocks import Share
from dispatcher.policies.percentiles import percentile
from dispatcher.policies.tiers import Tier
from dispatcher.ports import GateLink, Store
from dispatcher.worker_client import HttpWorkerClient
from headgate.local import dynamodb_local
from headgate.local.ports import usable
from headgate.local.processes import Child, Children
from headgate.local.seed import TABLE, make_table, make_tenants, table_store
from headgate.local.stack import base_environment

STORES = ("sqlite", "moto", "dynamodb-local")
MODEL = "headgate-modelled"
TENANT = "tenant"
BODY = {"model": MODEL, "prompt": "hello", "max_tokens": 2, "stream": True}
SECRET = "not-a-secret-but-long-enough"  # noqa: S105 - signs execution tokens between processes of this benchmark
WARMUP = 20
START_S = 60.0
FRONT_FIRST, FRONT_LAST = "front: first token", "front: last token"
ACCEPT, EXECUTE, READ = "gate: accept and dispatch", "worker: to the last event", "one read of the store"


@dataclass(frozen=True)
class Bench:
    front_url: str
    key: str
    store: Store
    link: GateLink
    worker_url: str
    processes: Mapping[str, psutil.Process]


@contextlib.asynccontextmanager
async def bench(store_name: str) -> AsyncIterator[Bench]:
    folder = Path(tempfile.mkdtemp(prefix="headgate-bench-"))
    children = Children(RealIds().new(), folder)
    environment = {**base_environment(), "HEADGATE_WORKER_SECRET": SECRET, "HEADGATE_POOL": "default"}
    started: dict[str, Child] = {}
    try:
        store = await _store(store_name, folder, children, started, environment)
        keys = await make_tenants(store, {TENANT: Share()}, 1000)
        await _announced(children, started, "gate", ["-m", "dispatcher"], environment)
        outbox = str(folder / "outbox")
        worker = await _announced(children, started, "worker", ["-m", "benchmarks.instant_worker", outbox], environment)
        front_url = await _front(children, started, environment)
        link = make_link(load_config(environment), store, RealClock(), NoLauncher())
        processes = {name: psutil.Process(child.pid) for name, child in started.items()}
        yield Bench(front_url, keys[TENANT], store, link, worker, processes)
        await link.rest()
    finally:
        await children.stop()


async def _store(
    name: str, folder: Path, children: Children, started: dict[str, Child], environment: dict[str, str]
) -> Store:
    """Start the store's process, if it has one, and complete the environment."""
    if name == "sqlite":
        environment["HEADGATE_STORE"] = f"sqlite:{folder / 'gate.db'}"
        return make_store(load_config(environment))
    if name == "moto":
        url = await _announced(children, started, "store", ["-m", "headgate.local.moto.server"], environment)
    else:
        started["store"], url = await dynamodb_local.start(children)
    environment |= {"AWS_ENDPOINT_URL": url, "HEADGATE_STORE": "dynamodb", "HEADGATE_TABLE": TABLE}
    await make_table(url)
    return table_store(url)


async def _announced(
    children: Children, started: dict[str, Child], name: str, arguments: list[str], environment: Mapping[str, str]
) -> str:
    started[name] = child = await children.spawn_python(name, arguments, environment=environment)
    return str((await child.announcement(START_S))["url"])


async def _front(children: Children, started: dict[str, Child], environment: Mapping[str, str]) -> str:
    port = usable("127.0.0.1", 0)
    options = ["--port", str(port), "--no-access-log", "--log-level", "warning"]
    command = ["-m", "uvicorn", "functions.http_api.app:app", *options]
    started["front"] = await children.spawn_python("front", command, environment=environment)
    url = f"http://127.0.0.1:{port}"
    async with asyncio.timeout(START_S), httpx.AsyncClient() as http:
        while True:
            with contextlib.suppress(httpx.TransportError):
                await http.get(f"{url}/health")
                return url
            await asyncio.sleep(0.1)


async def through_front(running: Bench, http: httpx.AsyncClient) -> tuple[float, float]:
    """Return milliseconds to the first token and to the end of the stream."""
    started, first, last = time.perf_counter(), 0.0, ""
    headers = {"authorization": f"Bearer {running.key}"}
    async with http.stream("POST", f"{running.front_url}/v1/completions", json=BODY, headers=headers) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                first, last = first or _ms_since(started), line
    if last != "data: [DONE]":
        raise RuntimeError(f"the stream ended with {last!r}")
    return first, _ms_since(started)


async def accepted(running: Bench) -> Offer:
    outcome = await running.link.do(
        Accept(
            id=running.link.new_id(), floor=running.link.floor, process=running.link.process, tenant=TENANT,
            model=MODEL, cost=8.0, deadline_at=time.time() + 60, durable=False, app="", interaction="", version=1,
            weight=1.0, rate_per_s=0.0, burst=0.0, tier=Tier.STANDARD.value, waiting_max=1000,
        )
    )  # fmt: skip
    if not isinstance(outcome, Offer):
        raise RuntimeError(f"the gate answered {outcome}")
    return outcome


async def executed(running: Bench, client: HttpWorkerClient, offer: Offer) -> None:
    order = WorkOrder(
        tenant=TENANT, invocation=offer.id, attempt=offer.attempt, model=MODEL, weight=1.0, tier=Tier.STANDARD,
        deadline_at=time.time() + 60, prompt="hello", messages=None, max_tokens=2, temperature=1.0, seed=None,
        stop=(), app="", stage=0, interaction="", durable=False, cache_salt="",
    )  # fmt: skip
    events = [event async for event in client.execute(offer, order)]
    running.link.forget(offer.id)
    if not isinstance(events[-1], Finished):
        raise RuntimeError(f"the worker answered {events[-1]}")


async def measure(requests: int, store_name: str) -> dict[str, Any]:
    """Return milliseconds of wall and CPU time."""
    client = HttpWorkerClient(secret=SECRET.encode(), clock=RealClock())
    times: dict[str, list[float]] = {name: [] for name in (FRONT_FIRST, FRONT_LAST, ACCEPT, EXECUTE, READ)}
    async with bench(store_name) as running, httpx.AsyncClient(timeout=30) as http:
        for _ in range(WARMUP):
            await through_front(running, http)
            await executed(running, client, await accepted(running))
        for _ in range(requests):
            started = time.perf_counter()
            offer = await accepted(running)
            times[ACCEPT].append(_ms_since(started))
            started = time.perf_counter()
            await executed(running, client, offer)
            times[EXECUTE].append(_ms_since(started))
            started = time.perf_counter()
            await running.store.get("none")
            times[READ].append(_ms_since(started))
        before = _cpu_ms(running.processes)
        for _ in range(requests):
            first, last = await through_front(running, http)
            times[FRONT_FIRST].append(first)
            times[FRONT_LAST].append(last)
        after = _cpu_ms(running.processes)
        await client.close()
    return {
        "requests": requests,
        "store": store_name,
        "ms": {name: {"p50": percentile(t, 0.5), "p99": percentile(t, 0.99)} for name, t in times.items()},
        "cpu_ms_per_request": {name: (after[name] - before[name]) / requests for name in after},
    }


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000


def _cpu_ms(processes: Mapping[str, psutil.Process]) -> dict[str, float]:
    return {name: sum(process.cpu_times()[:2]) * 1000 for name, process in processes.items()}


def show(result: dict[str, Any]) -> None:
    console = Console()
    console.print(f"Added latency: {result['requests']} requests each, one at a time; store: {result['store']}")
    table = Table()
    for heading in ("", "P50 ms", "P99 ms"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, figures in result["ms"].items():
        table.add_row(name, f"{figures['p50']:.1f}", f"{figures['p99']:.1f}")
    console.print(table)
    cpu = ", ".join(f"{name} {ms:.1f}" for name, ms in sorted(result["cpu_ms_per_request"].items()))
    console.print(f"CPU ms for each request through the front ({WORKER_ID} answers at once): {cpu}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--store", choices=STORES, default="sqlite")
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

"""Measure what headgate adds to a request: latency to the first and the last token, and CPU time by process.

    python -m benchmarks.added_latency [--requests N] [--gateways headgate,…] [--stores memory,sqlite,…] [--json]

First headgate with the log in memory beside other gateways in front of an instant worker (benchmarks/peers/), each on a
core of its own: the latency that it adds (P50, one request at a time), its CPU time per request and per forwarded token
of a stream, and requests per second at 16 concurrent. `make bench-peers` installs the others; what is not installed is
left out, with a line that says so.

Then headgate with each store. Each store has a front, a gate process and a worker that answers at once, as processes,
and streams the same completion of TOKENS tokens, one request at a time. `memory` is the baseline: front, gate and
worker in one process, with the log in memory. The stores take turns in ROUNDS rounds, so that noise affects all of
them. CPU time is what the processes used during a store's own turns, their reports and heartbeats included.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.peers import gateways, measured
from dispatcher.policies.clocks import Share
from dispatcher.policies.percentiles import percentile
from dispatcher.ports import Store
from dispatcher.processes.bootstrap import RealIds, make_store
from dispatcher.settings.config import load_config
from headgate.local import dynamodb_local
from headgate.local.seed import TABLE, make_table, make_tenants, table_store
from headgate.local.stack import base_environment
from headgate.machine.places import usable
from headgate.machine.processes import Child, Children

STORES = ("memory", "sqlite", "moto", "dynamodb-local")
TOKENS = 8
MODEL = "headgate-modelled"
BODY = {"model": MODEL, "prompt": "hello", "max_tokens": TOKENS, "stream": True}
WARMUP, ROUNDS = 10, 4
START_S = 60.0


@dataclass
class Service:
    """`children`: by role. Times are in seconds."""

    url: str
    key: str
    children: dict[str, Child]
    first_s: list[float] = field(default_factory=list)
    last_s: list[float] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)

    def used_s(self) -> dict[str, float]:
        """Return the CPU time of each process so far."""
        return {role: sum(psutil.Process(child.pid).cpu_times()[:2]) for role, child in self.children.items()}


async def start(name: str, children: Children, folder: Path) -> Service:
    """Start the processes of one store and wait until they answer."""
    environment = {**base_environment(), "HEADGATE_WORKER_SECRET": secrets.token_urlsafe(33)}
    environment |= {"POWERTOOLS_TRACE_DISABLED": "true", "POWERTOOLS_SERVICE_NAME": "headgate"}
    environment |= {"POWERTOOLS_METRICS_NAMESPACE": "headgate"}
    if name == "memory":
        child = await children.spawn_python(name, ["-m", "benchmarks.memory_service"], environment=environment)
        ready = await child.announcement(START_S)
        return Service(ready["url"], ready["key"], {"all in one": child})
    started, store = await _table(name, children, folder, environment)
    key = (await make_tenants(store, {"tenant": Share()}, 1000))["tenant"]
    await store.close()
    gate = await _announced(children, f"{name}-gate", ["-m", "dispatcher"], environment)
    worker_module = ["-m", "benchmarks.instant_worker", str(folder / f"{name}-outbox")]
    worker = await _announced(children, f"{name}-worker", worker_module, environment)
    port = usable("127.0.0.1", 0)
    uvicorn = ["-m", "uvicorn", "functions.http_api.app:app", "--port", str(port), "--log-level", "warning"]
    front = await children.spawn_python(f"{name}-front", [*uvicorn, "--no-access-log"], environment=environment)
    return Service(f"http://127.0.0.1:{port}", key, {"front": front, "gate": gate, "worker": worker, **started})


async def _table(
    name: str, children: Children, folder: Path, environment: dict[str, str]
) -> tuple[dict[str, Child], Store]:
    """Start the table's process, if it has one; name the store in `environment`."""
    if name == "sqlite":
        environment["HEADGATE_STORE"] = f"sqlite:{folder / 'headgate.sqlite'}"
        return {}, make_store(load_config(environment))
    if name == "moto":
        child = await _announced(children, name, ["-m", "headgate.local.moto_server"], environment)
        url = str((await child.announcement(START_S))["url"])
    else:
        child, url = await dynamodb_local.start(children, START_S)
    await make_table(url)
    environment |= {"AWS_ENDPOINT_URL": url, "HEADGATE_TABLE": TABLE}
    return {"emulator": child}, table_store(url)


async def _announced(children: Children, name: str, command: list[str], environment: dict[str, str]) -> Child:
    child = await children.spawn_python(name, command, environment=environment)
    await child.announcement(START_S)
    return child


@contextlib.asynccontextmanager
async def running(names: list[str]) -> AsyncIterator[dict[str, Service]]:
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        children = Children(RealIds().new(), Path(folder) / "logs")
        try:
            yield {name: await start(name, children, Path(folder)) for name in names}
        finally:
            await children.stop()


async def ask(http: httpx.AsyncClient, service: Service) -> tuple[float, float]:
    """Stream one completion. Return the seconds to the first token and to the end."""
    began, first_s, tokens = time.perf_counter(), 0.0, 0
    headers = {"authorization": f"Bearer {service.key}"}
    async with http.stream("POST", f"{service.url}/v1/completions", json=BODY, headers=headers) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["text"]:
                first_s = first_s or time.perf_counter() - began
                tokens += 1
    if not tokens:
        raise RuntimeError(f"{service.url} streamed no token")
    return first_s, time.perf_counter() - began


async def turn(http: httpx.AsyncClient, service: Service, requests: int) -> None:
    """Measure so many requests, one after another."""
    before = service.used_s()
    for _ in range(requests):
        first_s, last_s = await ask(http, service)
        service.first_s.append(first_s)
        service.last_s.append(last_s)
    for role, used_s in service.used_s().items():
        service.cpu_s[role] = service.cpu_s.get(role, 0.0) + used_s - before[role]


async def warm_up(http: httpx.AsyncClient, service: Service) -> None:
    """Wait until the front answers, then send WARMUP requests."""
    async with asyncio.timeout(START_S):
        while True:
            with contextlib.suppress(httpx.HTTPError):
                await ask(http, service)
                break
            await asyncio.sleep(0.2)
    for _ in range(WARMUP):
        await ask(http, service)


async def measure(names: list[str], requests: int) -> dict[str, Any]:
    """Return milliseconds by store."""
    async with running(names) as services, httpx.AsyncClient(timeout=30, trust_env=False) as http:
        for service in services.values():
            await warm_up(http, service)
        for _ in range(ROUNDS):
            for service in services.values():
                await turn(http, service, requests // ROUNDS)
    return {"requests": requests, "tokens": TOKENS, "stores": {name: _ms(each) for name, each in services.items()}}


def _ms(service: Service) -> dict[str, Any]:
    count = len(service.first_s)
    times = {"first": service.first_s, "last": service.last_s}
    figures: dict[str, Any] = {
        f"{name}_{kind}_ms": 1000 * (percentile(found, part) or 0.0)
        for name, found in times.items()
        for kind, part in (("p50", 0.5), ("p99", 0.99))
    }
    cpu_ms = {role: 1000 * used_s / count for role, used_s in service.cpu_s.items()}
    own_ms = sum(used for role, used in cpu_ms.items() if role != "emulator")
    return {**figures, "cpu_ms": cpu_ms, "own_cpu_ms": own_ms}


def show(result: dict[str, Any]) -> None:
    title = f"{result['requests']} streamed completions of {result['tokens']} tokens in turn; milliseconds"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("store")
    headings = (
        "first token\nP50/P99",
        "last token\nP50/P99",
        "CPU\nfront",
        "\ngate",
        "\nworker",
        "\nsum",
        "\nemulator",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for name, found in result["stores"].items():
        cpu = {**found["cpu_ms"], "sum": found["own_cpu_ms"]}
        times = [f"{found[f'{kind}_p50_ms']:.1f}/{found[f'{kind}_p99_ms']:.1f}" for kind in ("first", "last")]
        roles = ("front", "gate", "worker", "sum", "emulator")
        table.add_row(name, *times, *(f"{cpu[role]:.1f}" if role in cpu else "–" for role in roles))
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--gateways", default=",".join(gateways.STARTS), help="empty: none")
    parser.add_argument(
        "--stores", help="empty: none", default=",".join(STORES if dynamodb_local.find() else STORES[:-1])
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    compared = _names(parser, "gateway", options.gateways, tuple(gateways.STARTS))
    stores = _names(parser, "store", options.stores, STORES)
    beside = asyncio.run(measured.run(compared, options.requests)) if compared else None
    result = asyncio.run(measure(stores, options.requests)) if stores else None
    if options.json:
        sys.stdout.write(json.dumps({"gateways": beside, **(result or {})}) + "\n")
        return
    if beside is not None:
        measured.show(beside)
    if result is not None:
        show(result)


def _names(parser: argparse.ArgumentParser, kind: str, given: str, known: tuple[str, ...]) -> list[str]:
    names = given.split(",") if given else []
    if unknown := set(names) - set(known):
        parser.error(f"no {kind} called {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


if __name__ == "__main__":
    main()

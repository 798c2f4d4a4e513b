"""Front, gate and instant worker in one process, with the log in memory: the baseline of benchmarks/added_latency.py.

`python -m benchmarks.memory_service` prints one JSON line, `{"url", "key"}`, and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import json
import sys

import uvicorn
from starlette.applications import Starlette

from benchmarks.instant_worker import SLOTS, WORKER_ID
from dispatcher.model.commands import Report
from dispatcher.policies.clocks import Share
from dispatcher.ports import Clock
from dispatcher.processes.bootstrap import NoLauncher, RealClock, RealIds, make_context, make_links, real_random
from dispatcher.processes.secret_source import fleet_secrets
from dispatcher.service.gate.process import GateProcess, GateStores
from dispatcher.service.link.finder import Fleet
from dispatcher.service.tcp import TcpTransport
from dispatcher.settings.config import Config, load_config
from functions.http_api.app import make_app
from gpu_worker.__main__ import bound
from gpu_worker.engines.modelled.engine import INSTANT, ModelledEngine
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.service.agent import Agent
from gpu_worker.service.executions.executions import Executions
from gpu_worker.service.executions.outbox import Outbox
from gpu_worker.service.server import make_app as make_worker_app
from headgate.local.seed import make_tenants
from tests.support.world.memory_store import MemoryStore

HOST = "127.0.0.1"


async def main() -> None:
    config, clock = load_config(), RealClock()
    store = MemoryStore(clock)
    gate = await _gate(config, store, clock)
    agent, serving_worker = await _worker(config, store, clock)
    await agent.join()
    keys = await make_tenants(store, {"tenant": Share()}, 1000)
    url, serving_front = _served(make_app(lambda: make_context(config, store=store, clock=clock)), lifespan="on")
    sys.stdout.write(json.dumps({"url": url, "key": keys["tenant"]}) + "\n")
    sys.stdout.flush()
    await asyncio.gather(gate, serving_worker, serving_front, agent.serve(serving_worker))


async def _gate(config: Config, store: MemoryStore, clock: Clock) -> asyncio.Task[None]:
    fleet = Fleet(store.log(config.pool), TcpTransport(), clock, RealIds(), fleet_secrets(config))
    stores = GateStores(store.mailboxes, store, store, NoLauncher())
    process = GateProcess(fleet, config.shard_settings(), stores, config.pool)
    await process.listen(f"{HOST}:0")
    return asyncio.create_task(process.run())


async def _worker(config: Config, store: MemoryStore, clock: Clock) -> tuple[Agent, asyncio.Task[None]]:
    engine = ModelledEngine(make_policy("vtc"), profile=INSTANT)
    await engine.start()
    link = make_links(config, store, clock, NoLauncher())[0]
    executions = Executions(WORKER_ID, engine, SLOTS, clock, Outbox(link, clock, real_random()))
    app = make_worker_app(executions, worker_id=WORKER_ID, secrets=fleet_secrets(config), clock=clock)
    url, serving = _served(app, lifespan="off")
    report = Report(WORKER_ID, url, engine.facts.model, SLOTS, 0, 4.0, 0.0, False, 0.0, 0, ())
    return Agent(report, link, executions, clock, real_random()), serving


def _served(app: Starlette, lifespan: str) -> tuple[str, asyncio.Task[None]]:
    listening = bound(HOST, 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan=lifespan))  # type: ignore[arg-type]
    return f"http://{HOST}:{listening.getsockname()[1]}", asyncio.create_task(server.serve(sockets=[listening]))


if __name__ == "__main__":
    asyncio.run(main())

"""A worker that answers at once: the real service over a modelled engine with steps of zero duration.

`python -m benchmarks.instant_worker OUTBOX` prints one JSON line, `{"url", "worker"}`, when the gate of its environment
knows it, and serves until it is killed. OUTBOX: a folder for its outbox.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import uvicorn
import uvloop

from dispatcher.model.commands import Report
from dispatcher.processes.bootstrap import NoLauncher, RealClock, make_links, make_store, real_random
from dispatcher.processes.secret_source import fleet_secrets
from dispatcher.settings.config import load_config
from gpu_worker.__main__ import bound
from gpu_worker.engines.modelled.engine import INSTANT, ModelledEngine
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.service.agent import Agent
from gpu_worker.service.executions.executions import Executions
from gpu_worker.service.executions.outbox import Outbox
from gpu_worker.service.executions.outbox_journal import Journal
from gpu_worker.service.server import make_app

WORKER_ID = "w-instant"
SLOTS = 64


async def main(outbox_folder: Path) -> None:
    config, clock = load_config(), RealClock()
    engine = ModelledEngine(make_policy("vtc"), profile=INSTANT)
    await engine.start()
    link = make_links(config, make_store(config), clock, NoLauncher())[0]
    outbox = Outbox(link, clock, real_random(), Journal(outbox_folder, WORKER_ID))
    executions = Executions(WORKER_ID, engine, SLOTS, clock, outbox)
    executions.recover()
    app = make_app(executions, worker_id=WORKER_ID, secrets=fleet_secrets(config), clock=clock)
    listening = bound("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    facts = engine.facts
    identity = Report(
        WORKER_ID, url, facts.model, SLOTS, facts.context_tokens, facts.bytes_per_token, 0.0, False, 0.0, 0, ()
    )
    agent = Agent(identity, link, executions, clock, real_random())
    await agent.join()
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    sys.stdout.write(json.dumps({"url": url, "worker": WORKER_ID}) + "\n")
    sys.stdout.flush()
    await agent.serve(serving)


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))

"""A worker that answers at once: the real HTTP server over a modelled engine with steps of zero duration.

`python -m benchmarks.instant_worker` prints one JSON line, `{"url", "worker"}`; it reports to no gate.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import uvicorn

from dispatcher.bootstrap import RealClock, real_random
from dispatcher.model.commands import Command, Done, Outcome
from gpu_worker.__main__ import bound
from gpu_worker.engines.modelled.engine import INSTANT, ModelledEngine
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.service.executions import Executions
from gpu_worker.service.outbox import Outbox
from gpu_worker.service.server import make_app

WORKER_ID = "w-instant"
SLOTS = 64


class AgreeingGate:
    """Acknowledges every report at once."""

    async def do(self, command: Command) -> Outcome:
        return Done()


async def main() -> None:
    engine = ModelledEngine(make_policy("vtc"), profile=INSTANT)
    await engine.start()
    clock = RealClock()
    executions = Executions(WORKER_ID, engine, SLOTS, clock, Outbox(AgreeingGate(), clock, real_random()))
    secret = os.environ["HEADGATE_WORKER_SECRET"].encode()
    app = make_app(executions, worker_id=WORKER_ID, secret=secret, clock=clock)
    listening = bound("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    sys.stdout.write(json.dumps({"url": url, "worker": WORKER_ID}) + "\n")
    sys.stdout.flush()
    await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(main())

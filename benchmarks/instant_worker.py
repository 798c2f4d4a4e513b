"""A worker that answers at once: the real HTTP server over a modelled engine with steps of zero duration.

`python -m benchmarks.instant_worker` prints one JSON line, `{"url", "worker"}`; it registers nowhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import uvicorn

from dispatcher.bootstrap import RealClock
from gpu_worker.__main__ import bound
from gpu_worker.engines.modelled.engine import INSTANT, ModelledEngine
from gpu_worker.policies.fairness.registry import make_policy
from gpu_worker.service.executions import Executions
from gpu_worker.service.server import make_app

WORKER_ID = "w-instant"
SLOTS = 64


async def settle_nothing(
    tenant: str, invocation_id: str, attempt: int, *, input_tokens: int, output_tokens: int
) -> None:
    """No client disconnects in this benchmark."""


async def main() -> None:
    engine = ModelledEngine(make_policy("vtc"), profile=INSTANT)
    await engine.start()
    clock = RealClock()
    executions = Executions(engine, SLOTS, clock, settle_nothing)
    secret = os.environ["HEADGATE_WORKER_SECRET"].encode()
    app = make_app(executions, worker_id=WORKER_ID, secret=secret, clock=clock)
    listening = bound("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    sys.stdout.write(json.dumps({"url": url, "worker": WORKER_ID}) + "\n")
    sys.stdout.flush()
    await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(main())

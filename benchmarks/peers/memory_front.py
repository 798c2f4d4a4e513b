"""A front and its gate in one process, with the log in memory. The worker is another process.

`python -m benchmarks.peers.memory_front` prints one JSON line, `{"url", "key", "position", "entry"}`, and serves until
it is killed. `position` and `entry` are the last entry of the log, which names the leader.
"""

from __future__ import annotations

import asyncio
import json
import sys

import uvicorn
from uvicorn.loops.auto import auto_loop_factory

from dispatcher.policies.clocks import Share
from dispatcher.processes.bootstrap import NoLauncher, RealClock, RealIds, make_context
from dispatcher.processes.secret_source import fleet_secrets
from dispatcher.service.gate.process import GateProcess, GateStores
from dispatcher.service.link.finder import Fleet
from dispatcher.service.tcp import TcpTransport
from dispatcher.settings.config import load_config
from functions.http_api.app import make_app
from functions.http_api.protocol import BoundedHeads
from gpu_worker.__main__ import bound
from headgate.local.seed import make_tenants
from tests.support.world.memory_store import MemoryStore

HOST = "127.0.0.1"
WAIT_S = 0.01


async def main() -> None:
    config, clock = load_config(), RealClock()
    store = MemoryStore(clock)
    fleet = Fleet(store.log(config.pool), TcpTransport(), clock, RealIds(), fleet_secrets(config))
    stores = GateStores(store.mailboxes, store, store, NoLauncher())
    gate = GateProcess(fleet, config.shard_settings(), stores, config.pool)
    await gate.listen(f"{HOST}:0")
    leading = asyncio.create_task(gate.run())
    while (last := await fleet.log.last()) is None:  # noqa: ASYNC110 - a log has no event
        await asyncio.sleep(WAIT_S)
    keys = await make_tenants(store, {"tenant": Share()}, 1000)
    app = make_app(lambda: make_context(config, store=store, clock=clock))
    listening = bound(HOST, 0)
    server = uvicorn.Server(uvicorn.Config(app, http=BoundedHeads, access_log=False, log_level="warning"))
    url = f"http://{HOST}:{listening.getsockname()[1]}"
    made = {"url": url, "key": keys["tenant"], "position": last[0], "entry": last[1].hex()}
    sys.stdout.write(json.dumps(made) + "\n")
    sys.stdout.flush()
    await asyncio.gather(leading, server.serve(sockets=[listening]))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:  # as uvicorn.run does
        runner.run(main())

"""`python -m gpu_worker`: engine, HTTP face and agent as one service.

Prints one JSON line, `{"url", "worker"}`, once it serves and is registered. SIGTERM drains. Exit code 2 and one line on
standard error for what cannot be run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import uvicorn

from dispatcher.bootstrap import RealClock, RealIds, make_store, real_random, worker_secret
from dispatcher.config import load_config
from dispatcher.errors import HeadgateError
from dispatcher.operations.settle import settle_lost
from dispatcher.ports import Worker
from gpu_worker.agent import Agent, NoSeat
from gpu_worker.engines.registry import ENGINES, EngineUnavailable, make_engine
from gpu_worker.executions import Executions
from gpu_worker.server import make_app


def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    options = _parser().parse_args()
    try:
        asyncio.run(serve(options))
    except (HeadgateError, EngineUnavailable, NoSeat, FileNotFoundError, ValueError) as error:
        sys.stderr.write(f"gpu_worker: {error}\n")
        sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gpu_worker", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default="transformers")
    parser.add_argument("--policy", default="vtc", help="the engine's queue policy")
    parser.add_argument("--model", default=None, help="a local Hugging Face model; default: a tiny one is built")
    parser.add_argument("--slots", type=int, default=8, help="executions at once")
    parser.add_argument("--batch", type=int, default=4, help="sequences that the engine computes at once")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--pool", default="default")
    parser.add_argument("--home", type=Path, default=Path(".headgate"), help="where a built model is kept")
    return parser


async def serve(options: argparse.Namespace) -> None:
    """Until SIGTERM or SIGINT, then drain."""
    config, clock = load_config(), RealClock()
    secret, store = worker_secret(config), make_store(config)
    engine = make_engine(
        options.engine, policy=options.policy, model=options.model, batch=options.batch, home=options.home
    )
    await engine.start()
    executions = Executions(engine, options.slots, clock, partial(settle_lost, store, clock))
    worker_id = f"w-{RealIds().new()[:12]}"
    app = make_app(executions, worker_id=worker_id, secret=secret, clock=clock)
    server = _Server(uvicorn.Config(app, log_config=None))
    sock = bound(options.host, options.port)
    url = f"http://{options.host}:{sock.getsockname()[1]}"
    facts = engine.facts
    worker = Worker(
        id=worker_id,
        pool=options.pool,
        url=url,
        model=facts.model,
        slots=options.slots,
        context_tokens=facts.context_tokens,
        bytes_per_token=facts.bytes_per_token,
    )
    agent = Agent(worker, store, executions, clock, real_random())
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    await agent.register()
    beating = asyncio.create_task(agent.run())
    sys.stdout.write(json.dumps({"url": url, "worker": worker_id}) + "\n")
    sys.stdout.flush()
    await _told_to_stop()
    beating.cancel()
    await agent.drain()
    server.should_exit = True
    await serving
    await engine.stop()


class _Server(uvicorn.Server):
    """Signals are the agent's: a worker drains before it goes."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _told_to_stop() -> None:
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    await told.wait()


def bound(host: str, port: int) -> socket.socket:
    """A socket to serve on. Raises ValueError where the port cannot be used."""
    # IPPROTO_TCP by name: only then does asyncio switch Nagle's algorithm off, which costs 40 ms an answer.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(512)
        return listening
    except OSError as error:
        raise ValueError(f"port {port} on {host} cannot be used: {error.strerror}") from None


if __name__ == "__main__":
    main()

"""`python -m gpu_worker`: engine, HTTP server, outbox and agent as one service.

Prints one JSON line, `{"url", "worker", "engine"}`, when it serves and the gate knows it; `engine` describes the device
and the sizes that the engine chose. Logs JSON lines on standard error.
SIGTERM drains the worker and ends it with exit code 0. Exit code 2 and one line on standard error: it cannot be
started. Exit code 1: a part of it ended by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import uvicorn
import uvloop
from botocore.exceptions import BotoCoreError

from dispatcher.log_lines import LogStreams
from dispatcher.model.commands import Report
from dispatcher.model.errors import ConfigurationError, HeadgateError
from dispatcher.ports import Clock
from dispatcher.processes.bootstrap import (
    NoLauncher,
    RealClock,
    RealIds,
    make_links,
    make_store,
    make_tracing,
    own_address,
    real_random,
)
from dispatcher.processes.secret_source import fleet_secrets
from dispatcher.service.link.sharded import combine
from dispatcher.settings.config import load_config
from gpu_worker.engines.interface import Engine, EngineFacts
from gpu_worker.engines.model_swaps import ModelSwaps
from gpu_worker.engines.registry import HANG_S, HANG_USUAL_S, EngineUnavailable, make_engine
from gpu_worker.engines.sleeping_engines import free_device_bytes, unmeasured
from gpu_worker.engines.supervised import SupervisedEngine
from gpu_worker.service.agent import Agent, AgentSettings
from gpu_worker.service.executions.executions import Executions
from gpu_worker.service.executions.outbox import Outbox
from gpu_worker.service.executions.outbox_journal import Journal
from gpu_worker.service.logs import log_json
from gpu_worker.service.options import GB, modelled_options, parse_options, server_options, transformers_options
from gpu_worker.service.server import Opening, make_app
from gpu_worker.service.shard_agents import ShardAgents, shard_agents
from gpu_worker.service.slo_watch import SloWatch
from gpu_worker.service.spot_notice import SpotNotice
from gpu_worker.service.swapper import Swapper
from gpu_worker.service.task_id import task_id
from gpu_worker.service.tiers_file import WorkerTiers

_IDLE_CONNECTION_S = 10
"""Longer than the gate keeps an idle connection."""
REST_S = 5
"""How long the gate's link may finish what it decided on its own, such as messages to other processes."""
CLOSING_S = 5
"""How long answers may still be sent after the last execution has ended."""

_GIB = 1 << 30

logger = logging.getLogger("headgate.worker")


def main() -> None:
    options = parse_options()
    with LogStreams():
        log_json()
        try:
            code = uvloop.run(serve(options))
        except (HeadgateError, EngineUnavailable, BotoCoreError, OSError, ValueError) as error:
            sys.stderr.write(f"gpu_worker: {error}\n")
            code = 2
    sys.exit(code)


async def serve(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, then drain. Return the exit code."""
    config, clock = load_config().of_pool(options.pool or ""), RealClock()
    if config.shards > 1 and len(options.models) > 1:
        raise ConfigurationError("a pool of several shards (HEADGATE_SHARDS) takes no worker of several models")
    secrets = fleet_secrets(config)
    sock = bound(options.host, options.port)
    tiers: WorkerTiers = options.tiers
    watch = SloWatch(clock, tiers.shedder())
    queue = tiers.priced(config.cached_fraction, config.adapter_load_tokens)
    makes: list[Callable[[], Engine]] = [
        partial(_engine, options, queue, number) for number in range(len(options.models))
    ]
    first, *others = makes
    opening = Opening()
    server = _server(opening)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        engine = await _start_engine(first, clock, HANG_S.get(options.engine, HANG_USUAL_S))
    except BaseException:
        await _close_server(server, serving)
        raise
    try:
        swaps = await _load_models(engine, others, clock, options.sleep_memory_gb) if others else None
        identity = _identity(options, engine.facts, sock.getsockname()[1])
        store = make_store(config)
        links = make_links(config, store, clock, NoLauncher())
        link = combine(links)
        outbox = Outbox(link, clock, real_random(), _journal(options, config.pool, identity.worker))
        tracing = make_tracing("worker")
        executions = Executions(
            identity.worker, engine, options.slots, clock, outbox, watch, engine.serves, started_at=clock.now(),
            tracing=tracing,
        )  # fmt: skip
        executions.recover()
        opening.open(make_app(executions, worker_id=identity.worker, secrets=secrets, clock=clock))
        settings = AgentSettings(drain_s=options.drain_s)
        agent: Agent | ShardAgents
        if config.shards > 1:
            agent = shard_agents(identity, links, executions, clock, real_random(), engine.changed, settings)
        else:
            agent = Agent(
                identity, link, executions, clock, real_random(),
                swapper=None if swaps is None else Swapper(swaps, executions, clock),
                settings=settings, engine_changed=engine.changed, connection_lost=links[0].lost,
                report_asked=links[0].report_asked,
            )  # fmt: skip
        notice = None if options.notice is None else SpotNotice(options.notice, clock, last_moment=agent.last_moment)
        async with _metric_lines(options.emf_s, config.pool, executions, clock):
            code = await _serve(server, serving, agent, engine, notice)
        await outbox.close()
        await tracing.flush()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REST_S):
                await link.rest()
        await store.close()
        return code
    finally:
        await engine.stop()
        await _close_server(server, serving)


async def _close_server(server: _Server, serving: asyncio.Task[None]) -> None:
    server.should_exit = True
    await asyncio.wait({serving})


async def _serve(
    server: _Server,
    serving: asyncio.Task[None],
    agent: Agent | ShardAgents,
    engine: SupervisedEngine,
    notice: SpotNotice | None,
) -> int:
    await agent.join()
    announcement = {"url": agent.identity.url, "worker": agent.identity.worker, "engine": engine.facts.description}
    sys.stdout.write(json.dumps(announcement) + "\n")
    sys.stdout.flush()
    announced = asyncio.Event() if notice is None else notice.announced
    stopping = asyncio.create_task(_stop_requested(serving, engine.hopeless, announced))
    watching = None if notice is None else asyncio.create_task(notice.watch())
    await agent.serve(stopping)
    if watching is not None:
        watching.cancel()
    await _close_server(server, serving)
    return 0 if not stopping.cancelled() and stopping.result() else 1


async def _start_engine(make: Callable[[], Engine], clock: Clock, hang_s: float = HANG_USUAL_S) -> SupervisedEngine:
    """Make and start the engine. Raises EngineUnavailable with a message of one line, whatever the engine raises."""
    engine = None
    try:
        engine = SupervisedEngine(make, clock, hang_s)
        await engine.start()
        return engine
    except EngineUnavailable:
        raise
    except Exception as error:
        if engine is not None:
            await engine.stop()
        reason = (str(error).strip() or "no reason given").splitlines()[0]
        raise EngineUnavailable(f"the engine does not start: {type(error).__name__}: {reason}") from error


async def _load_models(
    engine: SupervisedEngine, others: list[Callable[[], Engine]], clock: Clock, sleep_memory_gb: float
) -> ModelSwaps:
    """Load every model once. Raises EngineUnavailable with a message of one line."""
    measure = free_device_bytes if sleep_memory_gb else unmeasured
    if sleep_memory_gb and await measure() is None:
        logger.warning("no GPU's memory can be measured: whether a sleep frees it is not checked")
    try:
        return await ModelSwaps.prepared(engine, others, clock, int(sleep_memory_gb * GB), measure)
    except EngineUnavailable:
        raise
    except Exception as error:
        reason = (str(error).strip() or "no reason given").splitlines()[0]
        raise EngineUnavailable(f"a model cannot be loaded: {type(error).__name__}: {reason}") from error


@contextlib.asynccontextmanager
async def _metric_lines(every_s: float, pool: str, executions: Executions, clock: Clock) -> AsyncIterator[None]:
    """Write the metrics meanwhile, and those of the rest at the end. `every_s` 0: write none."""
    if not every_s:
        yield
        return
    from gpu_worker.service.metric_lines import MetricLines  # here: the library takes long to load

    lines = MetricLines(executions, pool, clock, every_s)
    writing = asyncio.create_task(lines.run())
    try:
        yield
    finally:
        writing.cancel()
        lines.write()


def _engine(options: argparse.Namespace, tiers: Mapping[str, Any], number: int) -> Engine:
    """Make the engine of these options with the model `number`, not started. `tiers`: for its queue policy."""
    return make_engine(
        options.engine,
        policy=options.policy,
        model=options.models[number],
        batch=options.batch,
        home=options.home,
        tiers=tiers,
        applications=options.tiers.applications,
        swap_bytes=int(options.swap_gib * _GIB),
        server=server_options(options, os.environ),
        arguments=options.arguments,
        modelled=modelled_options(options, number),
        transformers=transformers_options(options),
        sleep_level=options.sleep_level if options.sleep_memory_gb and len(options.models) > 1 else 0,
    )


def _identity(options: argparse.Namespace, facts: EngineFacts, port: int) -> Report:
    """Return the worker's heartbeat, without what changes."""
    return Report(
        worker=options.worker_id or task_id(os.environ) or f"w-{RealIds().new()[:12]}",
        url=f"http://{options.advertise or own_address(options.host)}:{port}",
        model=facts.model,
        slots=options.slots,
        context_tokens=facts.context_tokens,
        bytes_per_token=facts.bytes_per_token,
        service_per_s=0.0,
        draining=False,
        kv_use=0.0,
        queue_length=0,
        live=(),
        capabilities=tuple(sorted(facts.capabilities)),
    )


def _journal(options: argparse.Namespace, pool: str, worker: str) -> Journal:
    """Return the outbox on disk, in a folder for each pool: another pool's log does not know these reports."""
    return Journal(options.outbox / f"pool-{pool}", worker)


class _Server(uvicorn.Server):
    """Leaves signals alone: a worker drains before it ends."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: Opening) -> _Server:
    config = uvicorn.Config(
        app,
        log_config=None,
        lifespan="off",
        timeout_keep_alive=_IDLE_CONNECTION_S,
        timeout_graceful_shutdown=CLOSING_S,
    )
    return _Server(config)


async def _stop_requested(serving: asyncio.Task[None], hopeless: asyncio.Event, announced: asyncio.Event) -> bool:
    """Wait for the end. True: a signal asked for it, or the machine announced its own end. False: the HTTP server
    ended, or no engine can be started."""
    signalled = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled.set)
    waits = [asyncio.create_task(event.wait()) for event in (signalled, hopeless, announced)]
    await asyncio.wait({*waits, serving}, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if hopeless.is_set():
        logger.error("no engine can be started any more")
    elif serving.done():
        logger.error("the HTTP server ended by itself: %s", type(serving.exception()).__name__)
    return signalled.is_set() or announced.is_set()


def bound(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ValueError if the port cannot be used."""
    # IPPROTO_TCP by name: only then does asyncio switch off Nagle's algorithm, which costs 40 ms an answer.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(512)
        return listening
    except OSError as error:
        listening.close()
        raise ValueError(f"port {port} on {host} cannot be used: {error.strerror}") from None


if __name__ == "__main__":
    main()

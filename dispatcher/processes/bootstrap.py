"""Assembles a gate from its environment. Only this module makes the real clock, ids, random source and clients."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from dispatcher.model.batches import FileStore
from dispatcher.model.errors import ConfigurationError, StoreUnavailable
from dispatcher.model.fleet import FleetScaler
from dispatcher.model.shards import process_in
from dispatcher.model.tracing import NO_TRACING, Tracing
from dispatcher.operations.context import Context
from dispatcher.operations.pools import Pool, Pools
from dispatcher.operations.scaling import Waking
from dispatcher.ports import Clock, Ids, Launcher, Store
from dispatcher.processes.secret_source import fleet_secrets
from dispatcher.settings.config import Config, load_config

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

    from dispatcher.service.gate.shard_gates import ShardGates
    from dispatcher.service.link.finder import Fleet
    from dispatcher.service.link.link import Link
    from dispatcher.service.log_keeper import LogKeeper

_NAME_DIGITS = "abcdefghijklmnopqrstuvwxyz0123456789"
_NAME_CHARS = 12
_SQS_CONNECT_S = 1.0
SQS_READ_S = 3.0
_SQS_TRIES_MAX = 3
_ECS_CONNECT_S = 2.0
_ECS_READ_S = 5.0
_ECS_TRIES_MAX = 3


def own_address(host: str) -> str:
    """Return the address at which other hosts reach a process that listens at `host`: `host`, or, if that means all
    addresses of this host, the one of this host's name. Raises ConfigurationError if it is not known."""
    if host not in ("0.0.0.0", "::"):  # noqa: S104 (compared, not bound)
        return host
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        advice = "give it: HEADGATE_GATE_ADDRESS for a gate process, --advertise for a worker"
        raise ConfigurationError(f"this host's own address is not known; {advice}") from None


class RealClock:
    """Its methods are those of `time` themselves: a request reads the clock some sixty times."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class RealIds:
    def new(self) -> str:
        return "".join(secrets.choice(_NAME_DIGITS) for _ in range(_NAME_CHARS))

    def secret(self) -> str:
        return secrets.token_urlsafe(33)


def real_random() -> Random:
    """Return a random source for jitter. It must not be used for secrets."""
    return Random(secrets.randbits(64))


@dataclass(frozen=True, slots=True)
class SqsLauncher:
    """Launches a durable call by an SQS message with its id, for headgate-execute. The prompt stays in the table."""

    client: SQSClient
    queue_url: str
    threads: ThreadPoolExecutor

    async def launch(self, invocation_id: str, attempt: int) -> None:
        """Send the message. Raises StoreUnavailable."""
        from botocore.exceptions import BotoCoreError, ClientError

        message = json.dumps({"id": invocation_id, "attempt": attempt})
        send = partial(self.client.send_message, QueueUrl=self.queue_url, MessageBody=message)
        try:
            await asyncio.get_running_loop().run_in_executor(self.threads, send)
        except (BotoCoreError, ClientError) as error:
            raise StoreUnavailable(f"The queue cannot be used: {type(error).__name__}.") from None


class NoLauncher:
    """Launches nothing, for a gate without a queue. The worker then returns the attempt, and the call waits until the
    gate launches it on a connected executor (service/gate/courier.py)."""

    async def launch(self, invocation_id: str, attempt: int) -> None:
        return None


def make_store(config: Config) -> Store:
    """Return the store that HEADGATE_STORE names.

    The SDK reads region, credentials and endpoint from its own variables. Raises ConfigurationError if the file cannot
    be opened, or if there is no region or no valid endpoint.
    """
    if config.store_path:
        from dispatcher.stores.sqlite.store import SqliteStore

        return SqliteStore(config.store_path, RealClock())
    import boto3  # here, so that only a process that uses AWS loads it
    from botocore.exceptions import BotoCoreError

    from dispatcher.stores.dynamodb.store import DynamoStore, client_config

    try:
        client = boto3.client("dynamodb", config=client_config(config.store_threads))
    except (BotoCoreError, ValueError) as error:  # ValueError: the endpoint is not a URL
        raise ConfigurationError(
            f"cannot reach the table: {str(error).removesuffix('.')}; check AWS_DEFAULT_REGION and AWS_ENDPOINT_URL"
        ) from None
    return DynamoStore(
        client, config.table, clock=RealClock(), random=real_random(), threads=config.store_threads,
        log_stripes=config.log_stripes,
    )  # fmt: skip


def make_files(config: Config, clock: Clock) -> FileStore | None:
    """Return the store of the batch API's files that HEADGATE_FILES names; None if it is empty."""
    kind, _, place = config.files.partition(":")
    if kind == "folder":
        from dispatcher.files.folder import FolderFiles

        return FolderFiles(place, clock)
    if kind == "s3":
        import boto3

        from dispatcher.files.s3 import S3Files

        bucket, _, prefix = place.partition("/")
        return S3Files(boto3.client("s3"), bucket, prefix)
    return None


def make_launcher(config: Config) -> Launcher:
    """Return the launcher. Its time limits are short. With the SDK's own, an idle connection that broke unnoticed would
    delay all launches for a minute."""
    if not config.queue_url:
        return NoLauncher()
    import boto3
    from botocore.config import Config as ClientConfig

    limits = ClientConfig(
        connect_timeout=_SQS_CONNECT_S,
        read_timeout=SQS_READ_S,
        retries={"total_max_attempts": _SQS_TRIES_MAX, "mode": "standard"},
        tcp_keepalive=True,
    )
    return SqsLauncher(boto3.client("sqs", config=limits), config.queue_url, ThreadPoolExecutor(2, "headgate-sqs"))


def make_scaler(config: Config) -> FleetScaler | None:
    """Return the ECS service that HEADGATE_ECS_SERVICE names; None if it is empty."""
    if not config.ecs_service:
        return None
    import boto3
    from botocore.config import Config as ClientConfig

    from dispatcher.ecs import EcsService

    limits = ClientConfig(
        connect_timeout=_ECS_CONNECT_S,
        read_timeout=_ECS_READ_S,
        retries={"total_max_attempts": _ECS_TRIES_MAX, "mode": "standard"},
    )
    cluster, _, service = config.ecs_service.partition("/")
    return EcsService(boto3.client("ecs", config=limits), cluster, service)


def _make_waking(config: Config, clock: Clock) -> Waking | None:
    """Return what starts the first worker of an empty pool; None without an ECS service."""
    scaler = make_scaler(config) if config.models else None
    return None if scaler is None else Waking(scaler, (*config.models, *config.adapters), config.worker_start_s, clock)


def make_links(config: Config, store: Store, clock: Clock, launcher: Launcher) -> Sequence[Link]:
    """Return this process's link to each shard of one pool. Their process names are new, so that the ids of calls and
    the mailboxes of two links of one process are different. Raises ConfigurationError."""
    from dispatcher.service.link.link import Link

    process = RealIds().new()
    return [
        Link(
            process_in(process, number),
            _fleet(config, shard, store, clock),
            config.shard_settings(),
            mailboxes=store.mailboxes,
            launcher=launcher,
            answers=store,
        )
        for number, shard in enumerate(config.shard_names)
    ]


def make_gate_processes(config: Config) -> ShardGates:
    """Return a gate process of one pool (Config.of_pool) for each of its shards, which do not listen yet.

    While one leads, no garbage collection visits its whole state (service/garbage.py). Raises ConfigurationError.
    """
    from dispatcher.service.garbage import Garbage
    from dispatcher.service.gate.planning import PlannerProcess
    from dispatcher.service.gate.process import GateProcess, GateStores
    from dispatcher.service.gate.shard_gates import ShardGates

    store, clock = make_store(config), RealClock()
    stores = GateStores(store.mailboxes, store, store, make_launcher(config))
    settings, garbage = config.shard_settings(), Garbage()
    gates = [
        GateProcess(
            _fleet(config, shard, store, clock), settings, stores, shard, offload=asyncio.to_thread,
            plan_offload=PlannerProcess().run, garbage=garbage,
        )
        for shard in config.shard_names
    ]  # fmt: skip
    return ShardGates(gates, clock)


def make_log_keeper(config: Config, shard: str, store: Store, clock: Clock, ids: Ids) -> LogKeeper:
    """Return the keeper, which saves the snapshots of a shard that has no gate process (service/log_keeper.py)."""
    from dispatcher.service.log_keeper import LogKeeper

    return LogKeeper(store.log(shard), store, config.shard_settings(), shard, clock, ids)


def make_tracing(role: str) -> Tracing:
    """Return what writes this process's spans: nothing without OTEL_EXPORTER_OTLP_ENDPOINT. Raises ConfigurationError.

    The service's name is OTEL_SERVICE_NAME, or headgate-`role`.
    """
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not endpoint:
        return NO_TRACING
    from dispatcher.otlp import OtlpTracing, make_exporter, ratio_of  # here: the SDK takes long to load

    ratio = ratio_of(os.environ.get("OTEL_TRACES_SAMPLER_ARG", "1"))
    name = os.environ.get("OTEL_SERVICE_NAME", f"headgate-{role}")
    return OtlpTracing(name, ratio, real_random(), RealClock(), make_exporter(endpoint))


def _fleet(config: Config, shard: str, store: Store, clock: Clock) -> Fleet:
    from dispatcher.service.link.finder import Fleet
    from dispatcher.service.tcp import TcpTransport

    return Fleet(store.log(shard), TcpTransport(), clock, RealIds(), fleet_secrets(config))


def _pool(config: Config, store: Store, clock: Clock, launcher: Launcher) -> Pool:
    from dispatcher.service.link.sharded import combine

    link = combine(make_links(config, store, clock, launcher))
    classes = config.slo_classes.classes() if config.slo_classes else None
    return Pool(
        link, clock, config.pool, config.longest_s, config.models, config.adapters, classes,
        names_prefixes=config.prefix_lead > 0, waking=_make_waking(config, clock),
    )  # fmt: skip


def make_context(
    config: Config | None = None,
    *,
    store: Store | None = None,
    clock: Clock | None = None,
    role: str = "front",
) -> Context:
    """Return the context of a front, for all its pools. `config` None: read it from the environment.

    Raises ConfigurationError.
    """
    from dispatcher.workers.client import HttpWorkerClient

    config = config or load_config()
    clock = clock or RealClock()
    store = store or make_store(config)
    launcher = make_launcher(config)
    return Context(
        pools=Pools(*(_pool(each, store, clock, launcher) for each in config.each_pool())),
        store=store,
        workers=HttpWorkerClient(secrets=fleet_secrets(config), clock=clock),
        launcher=launcher,
        clock=clock,
        ids=RealIds(),
        settings=config,
        limit_settings=config.limits,
        files=make_files(config, clock),
        batch_queue=config.batch_queue,
        cors_origins=config.cors_origins,
        tracing=make_tracing(role),
    )

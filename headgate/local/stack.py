"""The local stack: the real handlers and a real engine behind unmodified SDKs, with local services in place of AWS.

    this process        the AWS endpoint (routes by service), Lambda's Invoke API, the SQS poller, the schedule
    moto                DynamoDB, SQS, CloudWatch            (or Amazon's DynamoDB Local for DynamoDB)
    front               functions.http_api.app under uvicorn, the app that Lambda runs behind the Web Adapter
    worker-0 …          python -m gpu_worker
    lambda-…            awslambdaric, a process for each Lambda environment, started when it is needed

The processes end with this one, however it ends (processes.py).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping

import httpx

from dispatcher.bootstrap import RealClock, RealIds, real_random
from dispatcher.model.errors import ConfigurationError, StoreUnavailable
from dispatcher.model.old_fleet import Snapshot, Worker
from dispatcher.old_stores.dynamodb.store import DynamoStore
from headgate.local.aws import LocalAws, headgate_wiring
from headgate.local.options import SMALL_MODEL, Addresses, StackOptions
from headgate.local.processes import Child, ChildDied, Children
from headgate.local.seed import CREDENTIALS, TABLE, dynamodb, make_queue, make_table, make_tenants

STOP_GRACE_S = 3.0
POOL = "default"

Step = Callable[[str], None]


class Stack:
    """One stack. Call `start` once, and `stop` in any case."""

    def __init__(self, options: StackOptions) -> None:
        self.options = options
        self._children = Children(RealIds().new(), options.home / "logs", on_death=self._died)
        self._aws: LocalAws | None = None
        self._store: DynamoStore | None = None
        self._clock = RealClock()
        self._death: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._worker: Worker | None = None
        self._first_to_stop: list[Child] = []
        """The front and the workers: they sign off at the table, so they end before it."""

    @property
    def model(self) -> str:
        """The name of the model that the workers serve."""
        return self._ready_worker().model

    @property
    def bytes_per_token(self) -> float:
        return self._ready_worker().bytes_per_token

    def now(self) -> float:
        return self._clock.now()

    async def start(self, on_step: Step = lambda _: None) -> Addresses:
        """Start all processes and return once they answer. Raises ConfigurationError, one line, if they do not."""
        front_port = _port(self.options.host, self.options.port)
        aws_port = _port(self.options.host, self.options.aws_port)
        try:
            return await self._start(front_port, aws_port, on_step)
        except (ChildDied, TimeoutError) as error:
            reason = str(error) or _too_slow(self.options)
            raise ConfigurationError(f"the local stack did not start: {reason}") from None

    async def stop(self) -> None:
        """End every process. Repeatable."""
        if self._aws is not None:
            await self._aws.stop()
            self._aws = None
        await asyncio.gather(*(child.stop(STOP_GRACE_S) for child in self._first_to_stop))
        await self._children.stop()

    async def failed(self) -> str:
        """Wait until a process of the stack ends by itself, and return its name, status and log."""
        return await asyncio.shield(self._death)

    async def snapshot(self, queue: str) -> Snapshot | None:
        """Return a tenant's queue and the pool as the gate sees them; None while the table does not answer."""
        if self._store is None:
            return None
        try:
            return await self._store.snapshot(POOL, queue)
        except StoreUnavailable:
            return None

    async def _start(self, front_port: int, aws_port: int, on_step: Step) -> Addresses:
        options = self.options
        on_step("DynamoDB, SQS and CloudWatch (moto)")
        moto_url = await self._announced("moto", ["-m", "headgate.local.moto.server"], base_environment())
        dynamodb_url = await self._dynamodb_url(moto_url, on_step)
        await make_table(dynamodb_url)
        environment = _environment(options, moto_url, dynamodb_url, await make_queue(moto_url))
        self._store = DynamoStore(dynamodb(dynamodb_url), TABLE, clock=self._clock, random=real_random())
        keys = await make_tenants(self._store, options.tenants, options.queue_items_max)
        on_step("Lambda endpoint")
        self._aws = LocalAws(
            self._children,
            environment,
            moto_url=moto_url,
            dynamodb_url=dynamodb_url,
            host=options.host,
            port=aws_port,
            wiring=headgate_wiring(environment, options.start_timeout_s),
        )
        aws_url = await self._aws.start()
        on_step(f"HTTP front, and {options.workers} worker(s) with the {options.engine} engine")
        workers = [self._start_worker(number, environment) for number in range(options.workers)]
        front_url, *_ = await asyncio.gather(self._start_front(front_port, environment), *workers)
        await self._registered(on_step)
        return Addresses(openai_base_url=f"{front_url}/v1", aws_endpoint_url=aws_url, api_keys=keys)

    async def _dynamodb_url(self, moto_url: str, on_step: Step) -> str:
        if self.options.store == "moto":
            return moto_url
        from headgate.local import dynamodb_local

        on_step("Amazon's DynamoDB Local")
        return await dynamodb_local.start(self._children, self.options.start_timeout_s)

    async def _start_front(self, port: int, environment: Mapping[str, str]) -> str:
        options = ["--host", self.options.host, "--port", str(port), "--no-access-log", "--log-level", "warning"]
        command = [sys.executable, "-m", "uvicorn", "functions.http_api.app:app", *options]
        self._first_to_stop.append(await self._children.spawn("front", command, environment=environment))
        url = f"http://{self.options.host}:{port}"
        await self._answering(f"{url}/health")
        return url

    async def _start_worker(self, number: int, environment: Mapping[str, str]) -> str:
        options = self.options
        command = ["-m", "gpu_worker", "--engine", options.engine, "--policy", options.policy]
        command += ["--slots", str(options.slots), "--host", options.host, "--port", "0", "--pool", POOL]
        command += ["--home", str(options.home)]
        if options.engine == "transformers" or options.model is not None:
            command += ["--model", options.model or SMALL_MODEL]
        child = await self._children.spawn(f"worker-{number}", [sys.executable, *command], environment=environment)
        self._first_to_stop.append(child)
        return str((await child.announcement(self.options.start_timeout_s))["url"])

    async def _announced(self, name: str, arguments: list[str], environment: Mapping[str, str]) -> str:
        """Start a child and return the URL that it announces."""
        child = await self._children.spawn(name, [sys.executable, *arguments], environment=environment)
        return str((await child.announcement(self.options.start_timeout_s))["url"])

    async def _answering(self, url: str) -> None:
        async with httpx.AsyncClient() as client, asyncio.timeout(self.options.start_timeout_s):
            while not self._death.done():
                try:
                    if (await client.get(url)).is_success:
                        return
                except httpx.TransportError:
                    await asyncio.sleep(0.1)
        raise ChildDied(self._death.result())

    async def _registered(self, on_step: Step) -> None:
        """Wait until the gate sees every worker."""
        on_step("waiting for the workers to register")
        async with asyncio.timeout(self.options.start_timeout_s):
            while not self._death.done():
                snapshot = await self.snapshot("")
                alive = [worker for worker in snapshot.workers if worker.takes_work(self.now())] if snapshot else []
                if len(alive) >= self.options.workers:
                    self._worker = alive[0]
                    return
                await asyncio.sleep(0.1)
        raise ChildDied(self._death.result())

    def _ready_worker(self) -> Worker:
        if self._worker is None:
            raise RuntimeError("the stack has not started")
        return self._worker

    def _died(self, child: Child) -> None:
        if not self._death.done():
            self._death.set_result(f"{child.name} ended with status {child.returncode}; its log is {child.log_path}")


def _too_slow(options: StackOptions) -> str:
    return f"a process was not ready after {options.start_timeout_s:g} s; --start-timeout gives it more time"


def base_environment() -> dict[str, str]:
    """Return this process's environment without variables that could lead a child to a real AWS account."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "HEADGATE_"))}
    return {**own, **CREDENTIALS, "PYTHONUNBUFFERED": "1"}


def _environment(options: StackOptions, moto_url: str, dynamodb_url: str, queue_url: str) -> dict[str, str]:
    return {
        **base_environment(),
        "AWS_ENDPOINT_URL": moto_url,
        "AWS_ENDPOINT_URL_DYNAMODB": dynamodb_url,
        "AWS_EC2_METADATA_DISABLED": "true",
        "HEADGATE_TABLE": TABLE,
        "HEADGATE_QUEUE_URL": queue_url,
        "HEADGATE_POOL": POOL,
        "HEADGATE_ORDER": options.order,
        "HEADGATE_WORKER_SECRET": secrets.token_urlsafe(33),
        "POWERTOOLS_SERVICE_NAME": "headgate",
        "POWERTOOLS_METRICS_NAMESPACE": "headgate",
        "POWERTOOLS_TRACE_DISABLED": "true",
        "OMP_NUM_THREADS": "1",
    }


def _port(host: str, port: int) -> int:
    """Return the port, or a free one for 0. Raises ConfigurationError if it is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigurationError(
                f"port {port} on {host} cannot be used: {error.strerror}; choose another"
            ) from None
        return int(probe.getsockname()[1])

"""The local stack: everything that headgate runs on AWS, as processes on one machine.

    moto                DynamoDB, SQS, CloudWatch            (`--store dynamodb-local`: DynamoDB Local for the table)
    this process        AWS endpoint: forwards to moto, runs Lambda functions (awslambdaric), polls the queue, sweeps
    front-0 …           OpenAI's API, the same app that Lambda runs behind the Web Adapter
    gate-0 …            python -m dispatcher, one beside every worker (of several pools: POOL-gate-0 …)
    worker-0 …          python -m gpu_worker
    executor-0          batches, if there are SLO classes; their files are in S3 (moto)
    lambda-…            awslambdaric, a process for each Lambda environment, started when it is needed

The workers and gates of each group of workers are a fleet, and the fronts of all pools are one more (fleet.py).

A front, a gate or a worker may be killed: the stack reports it and goes on. The processes end with this one, however
it ends (processes.py).
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from dispatcher.executor import ONLY_BATCHES
from dispatcher.model.errors import ConfigurationError, StoreUnavailable
from dispatcher.monitor.follower import LogFollower, open_follower
from dispatcher.monitor.picture import Picture, WorkerPicture
from dispatcher.policies.clocks import Share
from dispatcher.ports import Store
from dispatcher.processes.bootstrap import RealClock, RealIds
from dispatcher.settings.config import load_config
from headgate.local.aws import LocalAws, headgate_wiring
from headgate.local.seed import CREDENTIALS, TABLE, make_bucket, make_queue, make_table, make_tenants, table_store
from headgate.machine.fleet import FRONT, WORKER, LocalFleet, not_registered
from headgate.machine.options import Addresses, ProcessAddress, StackOptions, WorkerGroup
from headgate.machine.places import front_ports, usable
from headgate.machine.processes import Child, ChildDied, Children
from headgate.machine.proxies import bypass_proxies

_STOP_GRACE_S = 3.0
_REGISTERED_EVERY_S = 0.1

_Step = Callable[[str], None]


class Fleets:
    """The processes of all pools: a fleet for each group of workers, and one for the fronts before them.

    `environment` holds the variables of gate and machine, without HEADGATE_POOL.
    """

    def __init__(self, options: StackOptions, children: Children, environment: Mapping[str, str]) -> None:
        self._fronts = LocalFleet(options, children, environment, "", [ONLY_BATCHES])
        self._workers = [
            LocalFleet(
                options.model_copy(update=dict(group.values)),
                children,
                {**environment, "HEADGATE_POOL": group.pool},
                group.pool,
                label=label,
            )
            for group, label in zip(options.groups, _labels(options.groups), strict=True)
        ]

    @property
    def addresses(self) -> list[ProcessAddress]:
        return [address for fleet in self._all for address in fleet.addresses]

    def front_urls(self) -> list[str]:
        return self._fronts.urls(FRONT)

    def has(self, child: Child) -> bool:
        return any(fleet.member_of(child) is not None for fleet in self._all)

    def reasons(self, role: str) -> str:
        return "; ".join(filter(None, (fleet.reasons(role) for fleet in self._all)))

    def missing_role(self) -> str | None:
        """Return "front" or "worker" if no such process is left, so that no request can be served; else None."""
        return next((role for role in (FRONT, WORKER) if not any(fleet.urls(role) for fleet in self._all)), None)

    async def start(self, ports: Sequence[int], *, executors: int) -> None:
        """Start the gates, then the workers, executors, and a front on each port. Raises ChildDied, TimeoutError."""
        await asyncio.gather(*(fleet.start_gates() for fleet in self._workers))
        await asyncio.gather(
            *(fleet.start_workers() for fleet in self._workers),
            self._fronts.start_fronts(ports, executors=executors),
        )

    async def stop(self, grace_s: float) -> None:
        """End the fronts, then the workers and their gates, each with `grace_s` seconds before it is killed."""
        await self._fronts.stop(grace_s)
        await asyncio.gather(*(fleet.stop(grace_s) for fleet in self._workers))

    @property
    def _all(self) -> list[LocalFleet]:
        return [self._fronts, *self._workers]


class Stack:
    """One stack. Call `start` once, and `stop` in any case. `on_loss`: called with a line when a process is lost."""

    def __init__(self, options: StackOptions, on_loss: _Step = lambda _: None) -> None:
        self.options = options
        self._children = Children(
            RealIds().new(), options.home / "logs", on_death=self._died, temporary=options.temporary
        )
        self._aws: LocalAws | None = None
        self._fleets: Fleets | None = None
        self._store: Store | None = None
        self._followers: dict[str, LogFollower] = {}
        """The log follower of each pool, in order."""
        self._clock = RealClock()
        self._death: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._workers: dict[str, WorkerPicture] = {}
        """One of each pool, in order."""
        self._on_loss = on_loss
        self._operator_token = secrets.token_urlsafe(33)
        self._services: list[ProcessAddress] = []
        """The processes that the stack cannot do without."""

    @property
    def model(self) -> str:
        """The name of the first pool's model."""
        return self._ready_worker().model

    @property
    def bytes_per_token(self) -> float:
        return self._ready_worker().bytes_per_token

    async def start(self, on_step: _Step = lambda _: None) -> Addresses:
        """Start all processes and return once they answer. Raises ConfigurationError, one line, if they do not."""
        ports = front_ports(self.options.host, self.options.port, self.options.fronts)
        aws_port = usable(self.options.host, self.options.aws_port)
        try:
            return await self._start(ports, aws_port, on_step)
        except (ChildDied, TimeoutError) as error:
            reason = str(error) or _too_slow(self.options)
            raise ConfigurationError(f"the local stack did not start: {reason}") from None

    async def stop(self) -> None:
        """End every process. Repeatable."""
        if self._aws is not None:
            await self._aws.stop()
            self._aws = None
        if self._fleets is not None:
            await self._fleets.stop(_STOP_GRACE_S)
        await self._children.stop()
        if self._store is not None:
            await self._store.close()
            self._store = None

    async def failed(self) -> str:
        """Wait until the stack can serve no more, and return the reason."""
        return await asyncio.shield(self._death)

    async def picture(self) -> Picture | None:
        """Return what the first pool's log says of tenants and workers; None while the table does not answer."""
        return await self._picture_of(next(iter(self._followers.values()), None))

    async def _picture_of(self, follower: LogFollower | None) -> Picture | None:
        if follower is None:
            return None
        try:
            await follower.catch_up()
        except StoreUnavailable:
            return None
        return follower.picture(self._clock.now())

    async def add_tenants(self, shares: Mapping[str, Share]) -> dict[str, str]:
        """Create tenants in the running stack and return the key of each."""
        if self._store is None:
            raise RuntimeError("the stack has not started")
        return await make_tenants(self._store, shares, self.options.queue_items_max)

    async def _start(self, ports: list[int], aws_port: int, on_step: _Step) -> Addresses:
        options = self.options
        on_step("DynamoDB, S3, SQS and CloudWatch (moto)")
        moto_url = await self._service("moto", ["-m", "headgate.local.moto_server"])
        dynamodb_url = await self._dynamodb_url(moto_url, on_step)
        await make_table(dynamodb_url)
        environment = _environment(options, moto_url, dynamodb_url, await make_queue(moto_url), self._operator_token)
        if options.slo_classes:
            environment["HEADGATE_SLO_CLASSES"] = options.slo_classes
        takes_batches = bool(options.slo_classes) or options.batches
        if takes_batches:
            environment["HEADGATE_FILES"] = await make_bucket(moto_url)
        self._store = table_store(dynamodb_url)
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
        on_step(f"{options.fronts} HTTP front(s), {_engines_text(options)}")
        self._fleets = Fleets(options, self._children, environment)
        await self._fleets.start(ports, executors=1 if takes_batches else 0)
        config = load_config(environment)
        pools = dict.fromkeys(group.pool for group in options.groups)
        self._followers = {pool: open_follower(self._store, config.of_pool(pool), self._clock) for pool in pools}
        await self._await_workers(on_step)
        on_step("warming the Lambda functions")
        await self._aws.warm(next(iter(keys.values())))
        return self._addresses(self._fleets, aws_url, keys)

    def _addresses(self, fleets: Fleets, aws_url: str, keys: dict[str, str]) -> Addresses:
        fronts = fleets.front_urls()
        base_urls = [f"{url}/v1" for url in fronts]
        return Addresses(
            openai_base_url=base_urls[0],
            openai_base_urls=base_urls,
            aws_endpoint_url=aws_url,
            model=self.model,
            pools={pool: worker.model for pool, worker in self._workers.items()},
            api_keys=keys,
            operator_url=f"{fronts[0]}/operator",
            operator_token=self._operator_token,
            processes=[*fleets.addresses, *self._services],
        )

    async def _dynamodb_url(self, moto_url: str, on_step: _Step) -> str:
        if self.options.store == "moto":
            return moto_url
        from headgate.local import dynamodb_local

        on_step("Amazon's DynamoDB Local")
        child, url = await dynamodb_local.start(self._children, self.options.start_timeout_s)
        self._services.append(ProcessAddress(role="dynamodb-local", pid=child.pid, url=url))
        return url

    async def _service(self, name: str, arguments: list[str]) -> str:
        """Start a service of the stack and return the URL that it announces."""
        child = await self._children.spawn_python(name, arguments, environment=base_environment())
        url = str((await child.announcement(self.options.start_timeout_s))["url"])
        self._services.append(ProcessAddress(role=name, pid=child.pid, url=url))
        return url

    async def _await_workers(self, on_step: _Step) -> None:
        """Wait until the logs name every worker."""
        on_step("waiting for the workers to register")
        try:
            async with asyncio.timeout(self.options.start_timeout_s):
                for pool, follower in self._followers.items():
                    self._workers[pool] = await self._all_serve(follower, _workers_of(self.options, pool))
        except TimeoutError:
            reasons = "" if self._fleets is None else self._fleets.reasons(WORKER)
            raise TimeoutError(not_registered(self.options.start_timeout_s, reasons)) from None

    async def _all_serve(self, follower: LogFollower, workers: int) -> WorkerPicture:
        """Wait until so many workers of a pool serve, and return one. Raises ChildDied."""
        while not self._death.done():
            picture = await self._picture_of(follower)
            serving = [worker for worker in picture.workers if worker.state == "serving"] if picture else []
            if len(serving) >= workers:
                return serving[0]
            await asyncio.sleep(_REGISTERED_EVERY_S)
        raise ChildDied(self._death.result())

    def _ready_worker(self) -> WorkerPicture:
        if not self._workers:
            raise RuntimeError("the stack has not started")
        return next(iter(self._workers.values()))

    def _died(self, child: Child) -> None:
        line = child.ending()
        if self._fleets is None or not self._fleets.has(child):
            self._fail(line)
            return
        self._on_loss(line)
        missing = self._fleets.missing_role()
        if missing is not None:
            self._fail(f"no {missing} is left: {line}")

    def _fail(self, reason: str) -> None:
        if not self._death.done():
            self._death.set_result(reason)


def _too_slow(options: StackOptions) -> str:
    return f"a process was not ready after {options.start_timeout_s:g} s; --start-timeout gives it more time"


def _workers_of(options: StackOptions, pool: str) -> int:
    return sum(group.values.get("workers", options.workers) for group in options.groups if group.pool == pool)


def _engines_text(options: StackOptions) -> str:
    """Return the workers of each engine in words."""
    engines = Counter[str]()
    for group in options.groups:
        engines[group.values.get("engine", options.engine)] += group.values.get("workers", options.workers)
    return ", ".join(
        f"{workers} {'worker' if workers == 1 else 'workers'} with the {engine} engine"
        for engine, workers in engines.items()
    )


def _labels(groups: Sequence[WorkerGroup]) -> list[str]:
    """Return what comes before the names of each group's processes; nothing if there is one group."""
    if len(groups) == 1:
        return [""]
    of_pool, seen = Counter(group.pool for group in groups), Counter[str]()
    labels = []
    for group in groups:
        labels.append(f"{group.pool}-{seen[group.pool]}-" if of_pool[group.pool] > 1 else f"{group.pool}-")
        seen[group.pool] += 1
    return labels


def base_environment() -> dict[str, str]:
    """Return this process's environment without variables that could lead a child to a real AWS account."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "HEADGATE_"))}
    bypass_proxies(own)
    return {**own, **CREDENTIALS, "PYTHONUNBUFFERED": "1"}


def _environment(
    options: StackOptions, moto_url: str, dynamodb_url: str, queue_url: str, operator_token: str
) -> dict[str, str]:
    return {
        **base_environment(),
        **options.variables,
        "AWS_ENDPOINT_URL": moto_url,
        "AWS_ENDPOINT_URL_DYNAMODB": dynamodb_url,
        "AWS_EC2_METADATA_DISABLED": "true",
        "HEADGATE_STORE": "dynamodb",
        "HEADGATE_TABLE": TABLE,
        "HEADGATE_QUEUE_URL": queue_url,
        "HEADGATE_ORDER": options.order,
        "HEADGATE_WORKER_SECRET": secrets.token_urlsafe(33),
        "HEADGATE_OPERATOR_TOKEN": operator_token,
        "POWERTOOLS_SERVICE_NAME": "headgate",
        "POWERTOOLS_METRICS_NAMESPACE": "headgate",
        "POWERTOOLS_TRACE_DISABLED": "true",
        "OMP_NUM_THREADS": "1",
    }

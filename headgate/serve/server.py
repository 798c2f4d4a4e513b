"""The server of `headgate serve`: starts its processes, watches them and the disk, and stops them in order.

    front-0 …    OpenAI's API
    executor-0   durable calls that no process holds, for example after the death of their front; and batches
    gate-0 …     one beside every worker; one of them leads
    worker-0 …   engine and scheduler

All of them share one SQLite database in the data folder. If one of them is killed, it is started again, and its calls
are finished by the others or dispatched again. It is started again soon, and then with growing delays.

At the start the server creates the tenants of the tenants' file that do not exist yet, or a default one if there is no
tenant.

The server reports that the data folder's disk is nearly full, and that it has space again. On a full disk SQLite
refuses every write, so the gate refuses every request. The logs of the processes, which would show the reason, are on
the same disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from dispatcher.model.errors import ConfigurationError, LogError, LogNewer, StoreUnavailable
from dispatcher.model.shards import SHARDS_MAX
from dispatcher.model.tenants import Tenant
from dispatcher.monitor.follower import LogFollower, open_follower
from dispatcher.operations.administration import StoreAdmin
from dispatcher.ports import Clock, Store
from dispatcher.processes.bootstrap import RealClock, RealIds, make_store
from dispatcher.settings.config import load_config
from headgate.machine.fleet import FRONT, WORKER, LocalFleet, Member, not_registered
from headgate.machine.options import FleetOptions, ProcessAddress, WorkerFailure
from headgate.machine.places import front_ports
from headgate.machine.processes import Child, ChildDied, Children
from headgate.serve.folder import DataFolder
from headgate.tenants_file import ServedTenants, read_tenants


class ServeOptions(FleetOptions):
    """Options of a server and its processes. `home` is the data folder."""

    tenants: Path | None = Field(
        default=None, description="YAML file of tenants; those that do not exist yet are created."
    )
    shards: int = Field(
        default=1, ge=1, le=SHARDS_MAX, description="Logs among which the tenants are divided, each with a leader."
    )

    @model_validator(mode="after")
    def _fits_the_fleet(self) -> ServeOptions:
        if self.shards > 1 and self.swapping:
            raise PydanticCustomError("shards", "--shards and --fleet do not go together: each worker has one model")
        return self


class ServeAddresses(BaseModel):
    """The fields of `headgate serve --json`."""

    model_config = ConfigDict(frozen=True)

    openai_base_url: str
    openai_base_urls: list[str]
    data: str
    """The data folder, which the other commands take as `--data`."""
    model: str
    api_keys: dict[str, str]
    """The keys of the tenants that this start created, by name. A key is shown only once."""
    operator_url: str
    """The page for operators; its token is in the file operator-token of the data folder."""
    processes: list[ProcessAddress]


STOP_GRACE_S = 40.0
"""The longest time for each process to stop. It is above a worker's own bounds for a drain (gpu_worker/service)."""
_REGISTERED_EVERY_S = 0.1
POOL = "default"
_DEFAULT_TENANT = "default"
FREE_MIN_BYTES = 64 * 1024 * 1024
_CHECK_EVERY_S = 10.0
FIRST_S, MOST_S = 0.5, 30.0
STEADY_S = 10.0
"""A process that served for this time counts as healthy, and its next restart comes after FIRST_S again.

A worker that crashes 5 s after it was ready has finished hardly any call, and each call that it had begun has lost one
of its three attempts. With growing delays, other workers get these calls. A process that serves longer between its
crashes is useful, so it is started again soon. The time in which it loads its model does not count.
"""

_Report = Callable[[str], None]


@dataclass(slots=True)
class Restarts:
    """Decides when a process that ended is started again, and counts the restarts of each. Pure; times in seconds."""

    _delays: dict[str, float] = field(default_factory=dict)
    _started: dict[str, float] = field(default_factory=dict)
    """The time at which each living process was ready."""

    def started(self, name: str, now: float) -> None:
        self._started[name] = now

    def delay(self, name: str, now: float) -> float:
        """Return the delay before the next start of a process that ended at `now`, or that did not start."""
        lived = now - self._started.pop(name, now)
        before = self._delays.get(name)
        delay = FIRST_S if before is None or lived >= STEADY_S else min(2 * before, MOST_S)
        self._delays[name] = delay
        return delay


class DiskWatch:
    """Reports each change between a disk with space and one that is nearly full."""

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        self._folder, self._report = folder, report
        self._is_low = False

    async def run(self, clock: Clock) -> None:
        """Check until cancelled."""
        while True:
            self.check(shutil.disk_usage(self._folder).free)
            await clock.sleep(_CHECK_EVERY_S)

    def check(self, free_bytes: int) -> None:
        """Report if the disk has become nearly full, or has space again, since the last check."""
        was_low, self._is_low = self._is_low, free_bytes < FREE_MIN_BYTES
        if self._is_low and not was_low:
            self._report(
                f"the disk of {self._folder} has {free_bytes / 2**20:.0f} MiB left: when it is full, every request is "
                "refused until there is space again; no restart is needed then"
            )
        elif was_low and not self._is_low:
            self._report(f"the disk of {self._folder} has space again")


class Server:
    """The processes of one server. Call `start` once, and always call `stop`. `report` gets a line for each death."""

    def __init__(self, options: ServeOptions, report: _Report) -> None:
        self.options = options
        self._folder = DataFolder(options.home)
        self._report = report
        self._clock = RealClock()
        self._children = Children(
            RealIds().new(),
            self._folder.logs,
            on_death=self._died,
            grace_s=STOP_GRACE_S,
            temporary=options.temporary,
        )
        self._restarts = Restarts()
        self._reviving: set[asyncio.Task[None]] = set()
        """These tasks start processes again, or play a failure."""
        self._fleet: LocalFleet | None = None
        self._store: Store | None = None
        self._lock: int | None = None
        self._disk: asyncio.Task[None] | None = None

    async def start(self, on_step: _Report = lambda _: None) -> ServeAddresses:
        """Start all processes, and return when they answer. If they do not, raise ConfigurationError with one line."""
        classes = json.loads(self.options.slo_classes or "{}")
        file = read_tenants(self.options.tenants, classes=classes) if self.options.tenants is not None else None
        ports = front_ports(self.options.host, self.options.port, self.options.fronts)
        self._folder.prepare()
        self._lock = self._folder.lock()
        self._disk = asyncio.create_task(DiskWatch(self.options.home, self._report).run(self._clock))
        try:
            return await self._start(ports, file, on_step)
        except (ChildDied, TimeoutError) as error:
            raise ConfigurationError(f"headgate did not start: {error}") from None
        except LogNewer as error:
            raise ConfigurationError(
                f"the log in {self.options.home} was written by a newer headgate: {error}. Nothing was changed"
            ) from None
        except LogError as error:
            raise ConfigurationError(
                f"the log in {self.options.home} cannot be used: {str(error).removesuffix('.')}. "
                "Restore a copy of the folder, or begin a new one with --data"
            ) from None
        except StoreUnavailable as error:
            reason = f" ({error.__cause__})" if error.__cause__ else ""
            raise ConfigurationError(f"the database in {self.options.home} cannot be used: {error}{reason}") from None

    async def stop(self) -> None:
        """Stop all processes after the running requests have finished. A second call does nothing more."""
        ended = [*self._reviving, *([self._disk] if self._disk is not None else [])]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        if self._fleet is not None:
            await self._fleet.stop(STOP_GRACE_S)
        await self._children.stop()
        if self._store is not None:
            await self._store.close()
        if self._lock is not None:
            os.close(self._lock)
        self._store = self._lock = None

    async def _start(self, ports: list[int], file: ServedTenants | None, on_step: _Report) -> ServeAddresses:
        options = self.options
        classes = {"HEADGATE_SLO_CLASSES": options.slo_classes} if options.slo_classes else {}
        shards = {"HEADGATE_SHARDS": str(options.shards)} if options.shards > 1 else {}
        file_settings = file.environment() if file is not None else {}
        settings = {"HEADGATE_ORDER": options.order, **classes, **shards, **file_settings}
        self._folder.keep_settings(settings)
        environment = {**_environment(self._folder), **settings}
        config = load_config(environment)
        self._store = make_store(config)
        follower = open_follower(self._store, config, self._clock)
        await follower.catch_up()  # if the log cannot be used, the start ends here, before any process is started
        on_step(f"{options.workers} {'worker' if options.workers == 1 else 'workers'} with the {options.engine} engine")
        self._fleet = LocalFleet(options, self._children, environment, POOL)
        await self._fleet.start(ports, executors=1)
        for member in self._fleet.members:
            self._restarts.started(member.child.name, self._clock.monotonic())
            if member.engine:
                on_step(f"{member.child.name} on {member.engine}")
        model = await self._await_workers(follower, on_step)
        # Keys are created last, because they are shown only once, and a start that fails does not show them.
        keys = await _create_missing(self._store, file.wanted() if file is not None else ())
        for failure in options.failures:
            self._go_on_with(self._play(failure))
        base_urls = [f"{url}/v1" for url in self._fleet.urls(FRONT)]
        return ServeAddresses(
            openai_base_url=base_urls[0],
            openai_base_urls=base_urls,
            data=str(options.home),
            model=model,
            api_keys=keys,
            operator_url=f"{self._fleet.urls(FRONT)[0]}/operator",
            processes=self._fleet.addresses,
        )

    async def _await_workers(self, follower: LogFollower, on_step: _Report) -> str:
        """Wait until the log contains every worker of this start, and return their model."""
        assert self._fleet is not None  # noqa: S101 - set by the caller
        on_step("waiting for the workers to register")
        try:
            async with asyncio.timeout(self.options.start_timeout_s):
                while True:
                    await follower.catch_up()
                    urls = set(self._fleet.urls(WORKER))  # a worker that died meanwhile comes back at another address
                    workers = [each for each in follower.picture(self._clock.now()).workers if each.url in urls]
                    if len(workers) == self.options.workers:
                        return workers[0].model
                    await self._clock.sleep(_REGISTERED_EVERY_S)
        except TimeoutError:
            reasons = self._fleet.reasons(WORKER)
            raise TimeoutError(not_registered(self.options.start_timeout_s, reasons)) from None

    def _died(self, child: Child) -> None:
        """Report that a process died, and start it again. Before it is ready, the code that starts it does this."""
        member = self._fleet.member_of(child) if self._fleet is not None else None
        if member is None:
            return
        self._report(child.ending())
        self._go_on_with(self._revive(member))

    def _go_on_with(self, work: Coroutine[None, None, None]) -> None:
        """Do this beside the server, until it stops."""
        task = asyncio.create_task(work)
        self._reviving.add(task)
        task.add_done_callback(self._reviving.discard)

    async def _play(self, failure: WorkerFailure) -> None:
        """Kill the worker when it is time, and start it again. One that is dead then has its failure already."""
        assert self._fleet is not None  # noqa: S101 - the caller has started it
        await self._clock.sleep(failure.at_s)
        member = next(each for each in self._fleet.members if (each.role, each.number) == (WORKER, failure.worker))
        if member.child.returncode is not None:
            return
        member.child.kill()
        self._report(f"{member.child.name} fails for {failure.for_s:g} s, as the fleet's file says")
        await self._clock.sleep(failure.for_s)
        await self._revive(member)

    async def _revive(self, ended: Member) -> None:
        assert self._fleet is not None  # noqa: S101 - the member is of this fleet
        name = ended.child.name
        while True:
            await self._clock.sleep(self._restarts.delay(name, self._clock.monotonic()))
            try:
                await self._fleet.restart(ended)
            except (ChildDied, TimeoutError, OSError) as error:
                self._report(f"{name} did not start again: {str(error) or 'not ready in time'}")
                continue
            self._restarts.started(name, self._clock.monotonic())
            self._report(f"{name} was started again")
            return


async def _create_missing(store: Store, wanted: Sequence[Tenant]) -> dict[str, str]:
    """Create the tenants that do not exist yet, and return the key of each, by name. Raises ConfigurationError.

    A key is shown only once. Existing tenants stay unchanged; `headgate tenants set` changes them.
    """
    existing = {tenant.name for tenant in await store.list_tenants()}
    if not existing and not wanted:
        wanted = [Tenant(_DEFAULT_TENANT)]
    missing = [tenant for tenant in wanted if tenant.name not in existing]
    admin = StoreAdmin(store, RealIds(), RealClock(), lambda: "headgate serve")
    return {tenant.name: await admin.create(tenant) for tenant in missing}


def _environment(folder: DataFolder) -> Mapping[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    return {
        **own,
        "PYTHONUNBUFFERED": "1",
        "HEADGATE_STORE": folder.store,
        "HEADGATE_FILES": folder.files,
        "HEADGATE_POOL": POOL,
        "HEADGATE_WORKER_SECRET": folder.secret(),
        "HEADGATE_OPERATOR_TOKEN": folder.operator_token(),
        "POWERTOOLS_SERVICE_NAME": "headgate",
        "POWERTOOLS_METRICS_NAMESPACE": "headgate",
        "POWERTOOLS_TRACE_DISABLED": "true",
    }

"""The fronts, gate processes and workers of one machine, as child processes.

front-0 …   functions.http_api.app under uvicorn, the same app that Lambda runs behind the Web Adapter
gate-0 …    python -m dispatcher, one beside every worker: any of them can lead
worker-0 …  python -m gpu_worker
executor-0  python -m dispatcher.executor: batches, and durable calls that no process holds (the latter in
            `headgate serve` only; Lambda does this work on AWS)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from headgate.machine.options import SMALL_MODEL, FleetOptions, ProcessAddress, SwappingWorker
from headgate.machine.processes import Child, Children

FRONT, _EXECUTOR, WORKER, _GATE = "front", "executor", "worker", "gate"
_STOP_ORDER = (FRONT, _EXECUTOR, WORKER, _GATE)
"""The fronts stop first, so that no new requests arrive. Then the workers drain and sign off at the gates, which stop
last."""
_ANSWER_EVERY_S = 0.1
_INTERNAL_HOST = "127.0.0.1"
"""Gates and workers listen on this machine only, whatever the fronts listen on."""
_WILDCARDS = {"0.0.0.0": _INTERNAL_HOST, "::": "[::1]"}  # noqa: S104 (compared, not bound)


@dataclass(frozen=True, eq=False)
class Member:
    """A process of the fleet. `port` is that of a front, and 0 for any other process. `engine`: what a worker says of
    its engine's device and sizes."""

    role: str
    number: int
    url: str | None
    child: Child
    port: int = 0
    engine: str = ""

    def address(self) -> ProcessAddress:
        return ProcessAddress(role=self.role, pid=self.child.pid, url=self.url)


class LocalFleet:
    """Starts and stops the processes. `environment` holds the variables of gate and machine. `label` comes before the
    names of processes and workers: so several fleets of one machine have different ones."""

    def __init__(
        self,
        options: FleetOptions,
        children: Children,
        environment: Mapping[str, str],
        pool: str,
        executor_arguments: Sequence[str] = (),
        label: str = "",
    ) -> None:
        self._options = options
        self._label = label
        self._executor_arguments = executor_arguments
        self._children = children
        self._environment = environment
        self._pool = pool
        self.members: list[Member] = []

    @property
    def addresses(self) -> list[ProcessAddress]:
        return [member.address() for member in self._alive()]

    def urls(self, role: str) -> list[str]:
        """Return the addresses of the processes of a role that are alive, in order."""
        return [member.url or "" for member in self._alive() if member.role == role]

    def reasons(self, role: str) -> str:
        """Return the last sentence of each process of a role, with the process's name; empty if none says anything."""
        said = [(member.child.name, member.child.reason()) for member in self.members if member.role == role]
        return "; ".join(f"{name}: {sentence}" for name, sentence in said if sentence)

    def member_of(self, child: Child) -> Member | None:
        return next((member for member in self.members if member.child is child), None)

    async def start(self, ports: Sequence[int], *, executors: int = 0) -> None:
        """Start a gate beside every worker, the workers, executors, and a front on each port.

        Raises ChildDied, TimeoutError.
        """
        await self.start_gates()
        await asyncio.gather(self.start_workers(), self.start_fronts(ports, executors=executors))

    async def start_gates(self) -> None:
        """Start a gate for each worker. Raises ChildDied, TimeoutError."""
        await asyncio.gather(*(self.start_gate(number) for number in range(self._options.workers)))

    async def start_workers(self) -> None:
        """Raises ChildDied, TimeoutError."""
        await asyncio.gather(*(self.start_worker(number) for number in range(self._options.workers)))

    async def start_fronts(self, ports: Sequence[int], *, executors: int = 0) -> None:
        """Start executors, and a front on each port. Raises ChildDied, TimeoutError."""
        await asyncio.gather(
            *(self.start_executor(number) for number in range(executors)),
            *(self.start_front(number, port) for number, port in enumerate(ports)),
        )

    async def restart(self, ended: Member) -> Member:
        """Start a process that replaces an ended one. Raises ChildDied, TimeoutError."""
        if ended.role == FRONT:
            return await self.start_front(ended.number, ended.port)
        return await {_GATE: self.start_gate, WORKER: self.start_worker, _EXECUTOR: self.start_executor}[ended.role](
            ended.number
        )

    async def start_front(self, number: int, port: int) -> Member:
        host = self._options.host
        command = ["-m", "functions.http_api.server", "--host", host, "--port", str(port)]
        child = await self._spawn(FRONT, number, command)
        url = f"http://{_WILDCARDS.get(host, f'[{host}]' if ':' in host else host)}:{port}"
        async with _ended_if_late(child):
            await self._answering(f"{url}/health", child)
        return self._add_member(Member(FRONT, number, url, child, port))

    async def start_gate(self, number: int) -> Member:
        command = ["-m", "dispatcher", "--host", _INTERNAL_HOST, "--port", "0"]
        return await self._start_member(_GATE, number, command)

    async def start_worker(self, number: int) -> Member:
        return await self._start_member(WORKER, number, self._worker_command(number))

    def _worker_command(self, number: int) -> list[str]:
        """Return the command. A worker that is started again has the name of the one that ended.

        So it returns the attempts of that one at once. Under another name they wait for the end of their lease.
        """
        options = self._options
        small = SMALL_MODEL if options.engine == "transformers" else None
        swapping = options.swapping[number] if options.swapping else None
        names = [options.model or small] if swapping is None else [each.name for each in swapping.models]
        named = {
            "--engine": options.engine,
            "--policy": options.policy,
            "--slots": options.slots if swapping is None else swapping.slots,
            "--batch": self._batch(swapping),
            "--swap-gib": options.swap_gib or None,
            "--kv-tokens": options.kv_tokens,
            "--step-tokens": options.step_tokens,
            "--dtype": options.dtype,
            "--sleep-memory-gb": options.sleep_memory_gb or None,
            "--sleep-level": options.sleep_level if options.sleep_level != 1 else None,
            "--tiers": options.worker_tiers,
            "--url": options.url,
            "--context-tokens": options.context_tokens,
            "--host": _INTERNAL_HOST,
            "--port": 0,
            "--pool": self._pool,
            "--worker-id": f"w-{self._children.mark}-{self._label}{number}",
            "--home": options.home,
        }
        given = [(name, str(value)) for name, value in named.items() if value is not None]
        given += [("--model", name) for name in names if name is not None]
        if swapping is not None and options.engine == "modelled":
            given += [("--load-s", f"{model.load_s:g}") for model in swapping.models]
            given += [("--profile", model.profile) for model in swapping.models if model.profile]
        rest = ["--", *options.engine_arguments] if options.engine_arguments else []
        return ["-m", "gpu_worker", *(text for pair in given for text in pair), *rest]

    def _batch(self, swapping: SwappingWorker | None) -> int | None:
        """Return the sequences of an engine's batch: as many as a fleet's file says that run at once, because what a
        gate knows of a wait ends at the worker's slot. None: the worker's default."""
        return swapping.slots if swapping is not None and self._options.batch is None else self._options.batch

    async def start_executor(self, number: int) -> Member:
        return await self._start_member(_EXECUTOR, number, ["-m", "dispatcher.executor", *self._executor_arguments])

    async def stop(self, grace_s: float) -> None:
        """End the processes in _STOP_ORDER, each with `grace_s` seconds before it is killed. Repeatable."""
        for role in _STOP_ORDER:
            await asyncio.gather(*(member.child.stop(grace_s) for member in self.members if member.role == role))

    async def _spawn(self, role: str, number: int, arguments: Sequence[str]) -> Child:
        return await self._children.spawn_python(
            f"{self._label}{role}-{number}", arguments, environment=self._environment
        )

    async def _start_member(self, role: str, number: int, arguments: Sequence[str]) -> Member:
        child = await self._spawn(role, number, arguments)
        async with _ended_if_late(child):
            announcement = await child.announcement(self._options.start_timeout_s)
        engine = announcement.get("engine", "")
        return self._add_member(Member(role, number, announcement.get("url"), child, engine=engine))

    def _alive(self) -> list[Member]:
        alive = [member for member in self.members if member.child.returncode is None]
        return sorted(alive, key=lambda member: (_STOP_ORDER.index(member.role), member.number))

    def _add_member(self, member: Member) -> Member:
        """Add the member. It replaces the ended process of the same name, if there is one."""
        self.members = [each for each in self.members if (each.role, each.number) != (member.role, member.number)]
        self.members.append(member)
        return member

    async def _answering(self, url: str, child: Child) -> None:
        """Wait until the URL answers. Raises ChildDied, TimeoutError."""
        timeout_s = self._options.start_timeout_s
        try:
            async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(timeout_s):
                while child.returncode is None:
                    try:
                        if (await client.get(url)).is_success:
                            return
                    except httpx.TransportError:
                        await asyncio.sleep(_ANSWER_EVERY_S)
        except TimeoutError:
            raise TimeoutError(child.lateness(timeout_s)) from None
        await child.announcement(timeout_s)  # raises ChildDied, with all of its output in the log
        raise child.early_end()


def not_registered(timeout_s: float, reasons: str) -> str:
    """Return a line about workers that serve but did not register. `reasons`: what they say themselves."""
    suffix = f": {reasons}" if reasons else ""
    return f"not all workers were in the log after {timeout_s:g} s (--start-timeout gives them more time){suffix}"


@asynccontextmanager
async def _ended_if_late(child: Child) -> AsyncIterator[None]:
    """End the child if it is not ready in time. Else a restart would leave it beside the process that replaces it."""
    try:
        yield
    except TimeoutError:
        await child.stop(0.0)
        raise

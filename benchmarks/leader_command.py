"""CPU of a leader's command with all around it: `python -m benchmarks.leader_command [--baseline FOLDER]`.

A gate process (`python -m dispatcher`) leads on a SQLite file. A client in another process sends it arrivals and ends
over the gate's own protocol and waits for each outcome: one command after another, and 64 at a time. Counted is the CPU
of the gate process: signatures, frames, decisions, entries, the file, outcomes and news.

FOLDER is the checkout of another commit. Its gate process runs in turns with this one's and with the floor
(benchmarks/peers/leader_floor.py), because equal runs differ. The table has the least of the runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.process_cpu import process_cpu_s
from dispatcher.model.call import TenantConfig
from dispatcher.model.commands import Accept, Command, End, Offer, Outcome, Report, Waiting
from dispatcher.model.fleet_secrets import FleetSecrets
from dispatcher.model.formats import NEWEST
from dispatcher.ports import Connection
from dispatcher.processes.bootstrap import RealClock
from dispatcher.service.authentication import sign_as_client
from dispatcher.service.frames import Do, Hello, News, Result, decode_frame, encode_frames, encode_message
from dispatcher.service.tcp import TcpTransport
from dispatcher.shard.alone import LoneGate

WAYS = {"one after another": 1, "64 at a time": 64}
THIS = "this"
WARM_UP = 200
PROCESS, TENANTS = "p8f3k2m9x1q4", 20
JOINED_S = 20.0
REPORT_S = 2.0
RUN_S = 120.0
"""A run that takes longer has lost an outcome."""


class Client:
    """A front that sends each command once and waits for its outcome."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._clock = connection, RealClock()
        self._calls = LoneGate()
        self._calls.unnamed = TenantConfig(1, 1.0, 50.0, 5000.0, "standard", 100_000)
        self._sent = 0
        self._outcomes: dict[int, asyncio.Future[Outcome]] = {}
        self._offers: dict[str, asyncio.Future[Offer]] = {}
        self._connection.send(_frame(Hello(NEWEST, PROCESS, "client", "")))

    async def receive(self) -> None:
        await self._connection.deliver(self._on_frame)

    def _on_frame(self, frame: bytes) -> None:
        for message in decode_frame(frame):
            if isinstance(message, Result):
                self._outcomes.pop(message.number).set_result(message.outcome)
            elif isinstance(message, News) and isinstance(message.news, Offer):
                self._offer(message.news.id).set_result(message.news)

    def _offer(self, call_id: str) -> asyncio.Future[Offer]:
        return self._offers.setdefault(call_id, asyncio.get_running_loop().create_future())

    async def do(self, command: Command) -> Outcome:
        self._sent += 1
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._outcomes[self._sent] = outcome
        self._connection.send(_frame(Do(self._sent, self._clock.now(), command)))
        return await outcome

    async def report(self, workers: int) -> None:
        """Send a report of each worker."""
        await asyncio.gather(*(self.do(_report(number)) for number in range(workers)))

    async def keep_reporting(self, workers: int) -> None:
        """Send reports until cancelled, so that no lease ends."""
        while True:
            await self._clock.sleep(REPORT_S)
            await self.report(workers)

    async def call(self) -> None:
        """Send a call, and its end when it has a worker: two commands."""
        accept = self._next_call()
        outcome = await self.do(accept)
        if isinstance(outcome, Waiting):
            outcome = await self._offer(accept.id)
        self._offers.pop(accept.id, None)
        if not isinstance(outcome, Offer):
            raise RuntimeError(f"the call was not offered: {outcome}")
        await self.do(End(outcome.id, outcome.attempt, "done", 240, 160, first_token_s=0.1))

    def _next_call(self) -> Accept:
        return self._calls.new_call(
            f"tenant{self._calls.sent % TENANTS}",
            cost=400.0,
            deadline_at=self._clock.now() + 300.0,
            process=PROCESS,
            floor=max(0, self._calls.sent - 1000),
            model="llama",
        )


def _frame(message: Any) -> bytes:
    (frame,) = encode_frames([encode_message(message)])
    return frame


def _report(number: int) -> Report:
    return Report(
        worker=f"w{number}", url=f"http://10.0.0.{number % 250}:8471", model="llama", slots=64, context_tokens=32_768,
        bytes_per_token=131_072.0, service_per_s=2_000.0, draining=False, kv_use=0.5, queue_length=0, live=(),
    )  # fmt: skip


class Gate:
    """A gate process of the checkout `folder`, or its floor, with a log of its own."""

    def __init__(self, folder: Path, module: str, store: Path, secret: str) -> None:
        names = {"POWERTOOLS_SERVICE_NAME": "headgate", "POWERTOOLS_METRICS_NAMESPACE": "headgate"}
        environment = {**os.environ, **names, "HEADGATE_STORE": f"sqlite:{store}", "HEADGATE_WORKER_SECRET": secret}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=folder,
            env={**environment, "PYTHONPATH": str(folder)},
            stdout=subprocess.PIPE,
        )
        if self._process.stdout is None:
            raise RuntimeError("the gate process has no output")
        self.address = str(json.loads(self._process.stdout.readline())["url"])

    def cpu_s(self) -> float:
        return process_cpu_s(self._process.pid)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


async def _connect(address: str, secret: str) -> Client:
    async with asyncio.timeout(JOINED_S):
        connection = await TcpTransport().connect(address)
        return Client(await sign_as_client(connection, FleetSecrets(secret), secrets.token_urlsafe(33)))


async def _spend(gate: Gate, secret: str, workers: int, commands: int) -> dict[str, float]:
    """Return the microseconds of the gate's CPU a command, by way."""
    await asyncio.sleep(1.0)  # it takes over
    client = await _connect(gate.address, secret)
    receiving = asyncio.create_task(client.receive())
    await client.report(workers)
    reporting = asyncio.create_task(client.keep_reporting(workers))
    spent = {}
    async with asyncio.timeout(RUN_S):
        for way, parallel in WAYS.items():
            await _run(client, WARM_UP, parallel)
            before = gate.cpu_s()
            await _run(client, commands, parallel)
            spent[way] = (gate.cpu_s() - before) / commands * 1e6
    reporting.cancel()
    receiving.cancel()
    return spent


async def _run(client: Client, commands: int, parallel: int) -> None:
    left = iter(range(commands // 2))

    async def call_until_done() -> None:
        for _ in left:
            await client.call()

    await asyncio.gather(*(call_until_done() for _ in range(parallel)))


def spent_by(folder: Path, module: str, workers: int, commands: int) -> dict[str, float]:
    secret = secrets.token_urlsafe(33)
    with tempfile.TemporaryDirectory() as scratch:
        gate = Gate(folder, module, Path(scratch) / "gate.db", secret)
        try:
            return asyncio.run(_spend(gate, secret, workers, commands))
        finally:
            gate.end()


def table_of(columns: dict[str, list[dict[str, float]]], workers: int) -> Table:
    """Return the microseconds of each way by gate; of this one also as ratios to each of the others."""
    table = Table(title=f"A gate's CPU a command on SQLite, {workers} workers (microseconds, least of the runs)")
    others = [name for name in columns if name != THIS]
    for name in ("", *columns, *(f"to {name}" for name in others)):
        table.add_column(name, justify="right" if name else "left")
    for way in WAYS:
        least = {name: min(run[way] for run in runs) for name, runs in columns.items()}
        ratios = (f"{least[THIS] / least[name]:.2f}" for name in others)
        table.add_row(way, *(f"{value:.0f}" for value in least.values()), *ratios)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leader_command", description=__doc__)
    parser.add_argument("--baseline", type=Path, help="the checkout of another commit")
    parser.add_argument("--commands", type=int, default=4_000, help="for each way and run")
    parser.add_argument("--runs", type=int, default=3, help="of each process, in turns")
    parser.add_argument("--workers", type=int, default=20, help="of the pool")
    options = parser.parse_args(arguments)
    if min(options.commands // 2, options.runs, options.workers) < 1:
        parser.error("at least two commands, one run and one worker")
    here = Path(__file__).resolve().parent.parent
    processes = {"floor": (here, "benchmarks.peers.leader_floor")}
    if options.baseline:
        processes["baseline"] = (options.baseline.resolve(), "dispatcher")
    processes[THIS] = (here, "dispatcher")
    columns: dict[str, list[dict[str, float]]] = {name: [] for name in processes}
    for _ in range(options.runs):
        for name, (folder, module) in processes.items():
            columns[name].append(spent_by(folder, module, options.workers, options.commands))
    Console(width=120).print(table_of(columns, options.workers))
    return 0


if __name__ == "__main__":
    sys.exit(main())

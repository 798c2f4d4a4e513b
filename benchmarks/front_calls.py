"""What a request costs a front: `python -m benchmarks.front_calls [--requests N] [--functions N]`.

A front with its gate in one process and the log in memory (benchmarks/peers/memory_front.py), an instant worker in
another one. Chat requests of 8 tokens come one after another, 16 at a time, and streamed. The table has the
milliseconds of the front's CPU, and then, of as many requests again under a profiler, the tasks that it made and its
calls of Python functions and of C functions. Counts, unlike times, do not depend on what else the machine does.

`--functions`: so many lines more, of the functions with the most time of their own under the profiler, 16 at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from uvicorn.loops.auto import auto_loop_factory

from benchmarks.http_load import Caller, Front
from benchmarks.peers import memory_front
from benchmarks.process_cpu import process_cpu_s
from dispatcher.log_lines import LogStreams
from headgate.local.stack import base_environment

SERVE = "--serve"
BEGIN, END = signal.SIGUSR1, signal.SIGUSR2
WARM_UP, READY_S, WRITTEN_S = 100, 20.0, 10.0


@dataclass(frozen=True)
class Way:
    name: str
    parallel: int
    stream: bool


WAYS = (Way("one after another", 1, False), Way("16 at a time", 16, False), Way("16 streams at a time", 16, True))


async def serve_counted(results: Path) -> None:
    """Serve as a front. Between BEGIN and END count calls and tasks; then write them to `results`."""
    loop, profile, tasks = asyncio.get_running_loop(), cProfile.Profile(), [0]

    def make_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        tasks[0] += 1
        return asyncio.Task(work, loop=loop, **options)

    def begin() -> None:
        tasks[0] = 0
        profile.clear()
        loop.set_task_factory(make_task)
        profile.enable()

    def end() -> None:
        profile.disable()
        loop.set_task_factory(None)
        profile.dump_stats(results / "profile")
        (results / "unready").write_text(str(tasks[0]))
        (results / "unready").rename(results / "tasks")

    loop.add_signal_handler(BEGIN, begin)
    loop.add_signal_handler(END, end)
    with LogStreams():  # as a front does: its lines are not read here
        await memory_front.main()


@dataclass(frozen=True)
class Counted:
    """What a request cost."""

    cpu_ms: float
    tasks: float
    python_calls: float
    c_calls: float
    functions: Sequence[str]


class Bench:
    """A front and its instant worker as processes."""

    def __init__(self, scratch: Path, kept: ExitStack) -> None:
        self._scratch = scratch
        environment = {
            **base_environment(),
            "HEADGATE_WORKER_SECRET": secrets.token_urlsafe(33),
            "POWERTOOLS_TRACE_DISABLED": "true",
            "POWERTOOLS_SERVICE_NAME": "headgate",
            "POWERTOOLS_METRICS_NAMESPACE": "headgate",
        }
        started = self._start(kept, environment, "benchmarks.front_calls", SERVE, str(scratch))
        self._pid, made = started
        self._start(kept, environment, "benchmarks.peers.instant_server", str(made["position"]), made["entry"])
        self._front, self._key = Front(f"{made['url']}/v1", "/chat/completions"), made["key"]

    def _start(self, kept: ExitStack, environment: dict[str, str], *module: str) -> tuple[int, dict[str, Any]]:
        log = kept.enter_context((self._scratch / f"{module[0]}.log").open("wb"))
        process = subprocess.Popen([sys.executable, "-m", *module], env=environment, stdout=subprocess.PIPE, stderr=log)
        kept.callback(process.wait)
        kept.callback(process.kill)
        if process.stdout is None:
            raise RuntimeError("a process has no output")
        return process.pid, json.loads(process.stdout.readline())

    def _caller(self, *, stream: bool) -> Caller:
        hello = [{"role": "user", "content": "hello"}]
        return Caller.of("tenant", self._key, stream=stream, model="instant", messages=hello, max_tokens=8)

    async def wait(self) -> None:
        """Wait until a request is answered."""
        async with asyncio.timeout(READY_S):
            while (await self._front.call(self._caller(stream=False))).status != 200:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.1)

    async def count(self, way: Way, requests: int, functions: int) -> Counted:
        await self._send(way, WARM_UP)
        before = self._cpu_s()
        await self._send(way, requests)
        cpu_ms = 1000 * (self._cpu_s() - before) / requests
        os.kill(self._pid, BEGIN)
        await self._send(way, requests)
        os.kill(self._pid, END)
        tasks = await self._tasks()
        stats = pstats.Stats(str(self._scratch / "profile")).stats  # type: ignore[attr-defined]
        calls = {name: row[1] for name, row in stats.items()}
        in_c = sum(number for name, number in calls.items() if name[0] == "~")
        most = sorted(stats.items(), key=lambda item: -item[1][2])[:functions]
        lines = [
            f"{row[2] * 1e6 / requests:8.1f} µs {row[1] / requests:7.1f} calls  {name[0][-50:]}:{name[1]} {name[2]}"
            for name, row in most
        ]
        return Counted(cpu_ms, tasks / requests, (sum(calls.values()) - in_c) / requests, in_c / requests, lines)

    async def _send(self, way: Way, requests: int) -> None:
        left, caller = iter(range(requests)), self._caller(stream=way.stream)

        async def call_until_done() -> None:
            for _ in left:
                if (answer := await self._front.call(caller)).status != 200:
                    raise RuntimeError(f"a request failed: {answer}")

        await asyncio.gather(*(call_until_done() for _ in range(way.parallel)))

    async def _tasks(self) -> int:
        file = self._scratch / "tasks"
        async with asyncio.timeout(WRITTEN_S):
            while not file.exists():  # noqa: ASYNC110 - written by another process
                await asyncio.sleep(0.05)
        tasks = int(file.read_text())
        file.unlink()
        return tasks

    def _cpu_s(self) -> float:
        return process_cpu_s(self._pid)


async def count_all(requests: int, functions: int) -> dict[Way, Counted]:
    with ExitStack() as kept:
        bench = Bench(Path(kept.enter_context(tempfile.TemporaryDirectory())), kept)
        await bench.wait()
        return {way: await bench.count(way, requests, functions) for way in WAYS}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.front_calls", description=__doc__)
    parser.add_argument("--requests", type=int, default=400, help="for each way, twice")
    parser.add_argument("--functions", type=int, default=0, help="with the most time of their own, as further lines")
    options = parser.parse_args()
    if options.requests < 1 or options.functions < 0:
        parser.error("at least one request, and no negative number of functions")
    found = asyncio.run(count_all(options.requests, options.functions))
    table = Table(title="A request at the front")
    for column in ("", "CPU ms", "tasks", "Python calls", "C calls"):
        table.add_column(column, justify="right" if column else "left")
    for way, counted in found.items():
        table.add_row(
            way.name, f"{counted.cpu_ms:.2f}", f"{counted.tasks:.1f}", f"{counted.python_calls:,.0f}",
            f"{counted.c_calls:,.0f}",
        )  # fmt: skip
    Console().print(table)
    for line in found[WAYS[1]].functions:
        print(line)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
            runner.run(serve_counted(Path(sys.argv[2])))
    else:
        sys.exit(main())

"""Runs jobs in parallel processes. Results come in the order of the jobs.

Processes are spawned, so that they share nothing but what a job contains, and are kept from one map to the next. None
of them outlives the process that started it: on any error, Ctrl-C included, they are ended at once; if the starter is
killed, they notice it and end. Functions, jobs and results must be picklable.

Why not concurrent.futures: the workers of a ProcessPoolExecutor share one pipe for their results, and the parent keeps
its writing end open. If a worker is killed (by the kernel, for memory) while it sends a result that is larger than the
pipe's buffer, the parent waits for the rest for ever; so it does on Python 3.11, 3.12 and 3.13. Here each worker has a
pipe of its own, which ends with the worker.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from traceback import format_exc
from types import TracebackType
from typing import Any, TypeVar

from dispatcher.model.errors import ConfigurationError

J = TypeVar("J")
R = TypeVar("R")

_OnDone = Callable[[int, int], None]
"""Called with the number of jobs of the current map that are done, and the number of all of them."""
_ENDING_S = 2.0


class ProcessDied(ConfigurationError):
    """A process was ended from outside before its job was done."""


def _cores() -> int:
    """Return how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True, eq=False)
class _Worker:
    process: BaseProcess
    connection: Connection

    def send(self, function: Callable[[J], R], job: J) -> None:
        message = pickle.dumps((function, job))
        try:
            self.connection.send_bytes(message)
        except OSError:
            raise self._died() from None

    def result(self) -> Any:
        """Return what the job returned. Raises what it raised, with its traceback as a note; ProcessDied."""
        try:
            message = self.connection.recv_bytes()
        except (EOFError, OSError):
            raise self._died() from None
        value, error, traceback = pickle.loads(message)  # noqa: S301 - our own process wrote it
        if error is not None:
            error.add_note(traceback)
            raise error
        return value

    def _died(self) -> ProcessDied:
        self.process.join(_ENDING_S)
        code = self.process.exitcode
        cause = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        return ProcessDied(
            f"a process that was running a job ended {cause} before the job was done; if memory is short, run fewer "
            "processes (--processes)"
        )


class Processes:
    """A context manager. `count` None: one process for each core. One job, or one process, runs in this process."""

    def __init__(self, count: int | None = None, *, on_done: _OnDone | None = None) -> None:
        self.count = _cores() if count is None else count
        if self.count < 1:
            raise ValueError(f"at least one process is needed, not {count!r}")
        self.on_done = on_done
        self._workers: list[_Worker] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop(at_once=error is not None)

    def map(self, function: Callable[[J], R], jobs: Iterable[J]) -> list[R]:
        """Run the function on each job. Raises the first error of a job, or ProcessDied, and ends all other jobs."""
        listed = list(jobs)
        self._report(0, len(listed))
        if min(self.count, len(listed)) <= 1:
            return self._run_here(function, listed)
        try:
            return self._spread(function, listed)
        except BaseException:
            self.stop(at_once=True)
            raise

    def _run_here(self, function: Callable[[J], R], jobs: list[J]) -> list[R]:
        results = []
        for job in jobs:
            results.append(function(job))
            self._report(len(results), len(jobs))
        return results

    def _spread(self, function: Callable[[J], R], jobs: list[J]) -> list[R]:
        self._start(min(self.count, len(jobs)))
        waiting = deque(enumerate(jobs))
        results: dict[int, R] = {}
        busy: dict[Any, tuple[_Worker, int]] = {}
        idle = self._workers[: len(jobs)]
        while len(results) < len(jobs):
            while idle and waiting:
                worker, (number, job) = idle.pop(), waiting.popleft()
                busy[worker.connection] = (worker, number)
                worker.send(function, job)
            for connection in wait(list(busy)):
                worker, number = busy.pop(connection)
                results[number] = worker.result()
                idle.append(worker)
                self._report(len(results), len(jobs))
        return [results[number] for number in range(len(jobs))]

    def stop(self, *, at_once: bool = False) -> None:
        """End the processes. An idle process ends by itself when its connection closes."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.connection.close()
            if at_once:
                worker.process.terminate()
        for worker in workers:
            worker.process.join(_ENDING_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def _start(self, count: int) -> None:
        spawn = get_context("spawn")
        while len(self._workers) < count:
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(theirs,), daemon=True, name="headgate-simulate")
            _start_uninterrupted(process)
            theirs.close()
            self._workers.append(_Worker(process, ours))

    def _report(self, done: int, total: int) -> None:
        if self.on_done is not None:
            self.on_done(done, total)


def _start_uninterrupted(process: BaseProcess) -> None:
    """Start it with SIGINT blocked, here until it has started and there for good: a process that Ctrl-C finds half
    started prints a traceback. The resource tracker comes first, because starting it unblocks SIGINT."""
    ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ── In the other process ───────────────────────────────────────────────────────────────────────────────────────────


def _serve(connection: Connection) -> None:
    """Run one job after another until the connection closes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            connection.send_bytes(_answer(connection.recv_bytes()))
        except (EOFError, OSError):
            return


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _answer(message: bytes) -> bytes:
    try:
        function, job = pickle.loads(message)  # noqa: S301 - our own process wrote it
        return pickle.dumps((function(job), None, ""))
    except Exception as error:
        return _failure(error, format_exc())


def _failure(error: Exception, traceback: str) -> bytes:
    """Pickle the error, or a RuntimeError with its text if it cannot be pickled and loaded again."""
    try:
        message = pickle.dumps((None, error, traceback))
        pickle.loads(message)  # noqa: S301 - just written
    except Exception:
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}"), traceback))
    return message

"""Jobs over the cores there are, in processes of their own; results in the order of the jobs.

Processes are spawned, so that they share nothing but what a job says, and kept from one map to the next. None of them
outlives the one that started them: on any error, Ctrl-C included, they are ended at once; where the starter is killed
they notice and end by themselves. Functions, jobs and results must be picklable.
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
from traceback import format_exc
from types import TracebackType
from typing import Any, TypeVar

from dispatcher.model.errors import ConfigurationError

J = TypeVar("J")
R = TypeVar("R")

OnDone = Callable[[int, int], None]
"""Called with how many jobs of the current map are done, and how many there are."""
ENDING_S = 2.0


class ProcessDied(ConfigurationError):
    """A process was ended from outside before its job was done."""


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class _Worker:
    process: BaseProcess
    connection: Connection


class Processes:
    """A context manager. `count` None takes one a core. One job, or one process, runs right here."""

    def __init__(self, count: int | None = None, *, on_done: OnDone | None = None) -> None:
        self.count = cores() if count is None else count
        if self.count < 1:
            raise ValueError(f"at least one process is needed, not {count!r}")
        self.on_done = on_done
        self._workers: list[_Worker] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop(at_once=error is not None)

    def map(self, function: Callable[[J], R], jobs: Iterable[J]) -> list[R]:
        """Raises what a job raised, with where it did as a note; ProcessDied. Then nothing of this map runs on."""
        listed = list(jobs)
        self._tell(0, len(listed))
        if min(self.count, len(listed)) <= 1:
            return self._here(function, listed)
        try:
            return self._spread(function, listed)
        except BaseException:
            self.stop(at_once=True)
            raise

    def _here(self, function: Callable[[J], R], jobs: list[J]) -> list[R]:
        results = []
        for job in jobs:
            results.append(function(job))
            self._tell(len(results), len(jobs))
        return results

    def _spread(self, function: Callable[[J], R], jobs: list[J]) -> list[R]:
        waiting = deque(enumerate(jobs))
        results: dict[int, R] = {}
        busy: dict[Connection, tuple[_Worker, int]] = {}
        self._start(min(self.count, len(jobs)))
        for worker in self._workers[: len(jobs)]:
            _give(function, worker, waiting, busy)
        while busy:
            ready = set(map(id, wait(list(busy))))
            for connection in [connection for connection in busy if id(connection) in ready]:
                worker, number = busy.pop(connection)
                results[number] = _taken(worker)
                self._tell(len(results), len(jobs))
                if waiting:
                    _give(function, worker, waiting, busy)
        return [results[number] for number in range(len(jobs))]

    def stop(self, *, at_once: bool = False) -> None:
        """End the processes; those that are idle end by themselves."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.connection.close()
            if at_once:
                worker.process.terminate()
        for worker in workers:
            worker.process.join(ENDING_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def _start(self, count: int) -> None:
        spawning = get_context("spawn")
        while len(self._workers) < count:
            ours, theirs = spawning.Pipe()
            process = spawning.Process(target=_serve, args=(theirs,), daemon=True, name="headgate-simulate")
            process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours))

    def _tell(self, done: int, total: int) -> None:
        if self.on_done is not None:
            self.on_done(done, total)


def _give(
    function: Callable[[J], R],
    worker: _Worker,
    waiting: deque[tuple[int, J]],
    busy: dict[Connection, tuple[_Worker, int]],
) -> None:
    number, job = waiting.popleft()
    busy[worker.connection] = (worker, number)
    try:
        worker.connection.send_bytes(pickle.dumps((function, job)))
    except BrokenPipeError:
        raise _died(worker) from None


def _taken(worker: _Worker) -> Any:
    try:
        value, error, where = pickle.loads(worker.connection.recv_bytes())  # noqa: S301 - our own process wrote it
    except (EOFError, ConnectionError):
        raise _died(worker) from None
    if error is not None:
        error.add_note(where)
        raise error
    return value


def _died(worker: _Worker) -> ProcessDied:
    worker.process.join(ENDING_S)
    code = worker.process.exitcode
    how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
    return ProcessDied(
        f"a process that was running a job ended {how} before it was done; where memory is short take fewer "
        "at a time (--processes)"
    )


# ── In the other process ───────────────────────────────────────────────────────────────────────────────────────────


def _serve(connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches all: the one that started us decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            asked = connection.recv_bytes()
        except (EOFError, ConnectionError):
            return
        try:
            connection.send_bytes(_answer(asked))
        except (BrokenPipeError, ConnectionError):
            return


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _answer(asked: bytes) -> bytes:
    try:
        function, job = pickle.loads(asked)  # noqa: S301 - our own process wrote it
        return pickle.dumps((function(job), None, ""))
    except Exception as error:
        return _failure(error, format_exc())


def _failure(error: Exception, where: str) -> bytes:
    """The error itself where it survives the way, else one that says it."""
    try:
        told = pickle.dumps((None, error, where))
        pickle.loads(told)  # noqa: S301 - just written
    except Exception:
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}"), where))
    return told

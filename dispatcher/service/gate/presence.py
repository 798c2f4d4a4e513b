"""Finds the processes and workers that are dead, by the messages that this leader gets from them (rule 6, leases).

The leader writes to the log that a process is silent (it gets no offers) and later that it is gone (its calls are
cancelled), and that a worker is silent (it gets no new work) and later that it left (its attempts are returned):

    process   if its connection breaks: silent at once, gone 2 s after it became silent in the log
              if it sends nothing on an open connection: silent after 3 s, gone after 10 s
              if this leader never got a message from it: silent and gone after the same times, from the takeover on
    worker    if its connection breaks, or after 3 s without a heartbeat: silent
              one lease and one second after it became silent in the log: it left

A process or worker becomes gone only if it is silent in the log at that position, and has had time to object. If
another gate process still got its messages, or if the worker itself wrote to the log, the log would say that it is
present. The state alone does not show that: while an entry waits for the log, it is in the state already, and a table
that does not answer lets it wait for as long as a lease. For some seconds after a takeover, a pause or a jump of the
clock, nothing becomes silent, gone or lost (rule 10). All times are by this process's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from dispatcher.model.commands import Command, Done, Gone, Outcome, Present, Silent
from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.facts import Entry, ProcessSet, WorkerSet
from dispatcher.ports import Clock
from dispatcher.service.gate.courier import Session
from dispatcher.service.gate.group_commit import Reply, no_reply
from dispatcher.service.gate.replica import Replica
from dispatcher.shard.state.records import NO_PROCESS

SWEEP_S = 0.25
_SWEEP_LATE_S = 1.0
"""If a sweep begins later than it should by this time, the process was paused."""
SILENT_S = 3.0
GONE_BROKEN_S = 2.0
GONE_SILENT_S = 10.0
LEASE_S = 10.0
"""A worker aborts its executions before its last answered heartbeat is this old."""
LEASE_MARGIN_S = 1.0
_ATTEMPTS_LOST = 500
"""If many workers are lost together, one sweep gives up about this many attempts. Before their entry is written, the
items of the durable calls among them are read (kept_answers.py), and a leader steps down if an entry takes a second."""
DONE = Done()
AGAIN_S = 1.0
"""The shortest time between two submissions of the same command, unless its opposite was submitted in between."""


class Presence:
    """Submits the commands that follow from silence. `submit` puts a command into the next entry, with what gets its
    outcome.

    Call `sweep` every SWEEP_S seconds.
    """

    def __init__(self, replica: Replica, clock: Clock, submit: Callable[[Command, Reply], None]) -> None:
        self._replica, self._clock, self._submit = replica, clock, submit
        self._began_at = self._swept_at = clock.monotonic()
        self._sessions: dict[str, Session] = {}
        self._broken_at: dict[str, float] = {}
        self._heard_at: dict[str, float] = {}
        """The time of the last sign of life, by process or worker: an entry of the log, or a worker's heartbeat."""
        self._silent_since: dict[Silent, float] = {}
        """The time at which this process first knew that a process or worker is silent in the log."""
        self._worker_sessions: dict[str, Session] = {}
        self._asked: dict[Command, float] = {}
        """The time at which each command was submitted."""

    # Signs of life

    def on_joined(self, session: Session) -> None:
        self._sessions[session.process] = session
        self._broken_at.pop(session.process, None)
        self.heard(session)

    def heard(self, session: Session) -> None:
        """Record a frame. If the process is silent in the log, or a Silent was submitted, submit that it is present."""
        session.heard()
        process, silent = self._replica.shard.state.processes.get(session.process), Silent(session.process, False)
        if process is not None and (process.silent or silent in self._asked):
            self._asked.pop(silent, None)
            self._ask(Present(session.process))

    def on_reported(self, worker: str, session: Session) -> None:
        self._heard_at[worker] = self._clock.monotonic()
        self._silent_since.pop(Silent(worker, True), None)
        self._asked.pop(Silent(worker, True), None)
        self._worker_sessions[worker] = session

    def ask_reports(self, workers: Iterable[str]) -> None:
        """Ask workers for a report now: the log has orders for them."""
        for worker in workers:
            if (session := self._worker_sessions.get(worker)) is not None:
                session.ask_report()

    def on_left(self, session: Session) -> None:
        """Record a broken connection, and submit that its process and its workers are silent."""
        if self._sessions.get(session.process) is session:
            del self._sessions[session.process]
            self._broken_at[session.process] = self._clock.monotonic()
            self._process_silent(session.process)
        for worker in [name for name, its in self._worker_sessions.items() if its is session]:
            del self._worker_sessions[worker]
            self._worker_silent(worker)

    def entry(self, entry: Entry) -> None:
        """Record an entry of another process. Its writer lives, and the processes and workers that it calls present."""
        now = self._clock.monotonic()
        self._heard_at[entry.writer.rpartition(":")[0]] = now
        for fact in entry.facts:
            if isinstance(fact, WorkerSet) and fact.state not in ("silent", "resting", "retiring"):
                self._heard_at[fact.worker] = now
                self._silent_since.pop(Silent(fact.worker, True), None)
            elif isinstance(fact, ProcessSet) and fact.state == "present":
                self._heard_at[fact.process] = now
                self._silent_since.pop(Silent(fact.process, False), None)

    # Silence

    @property
    def must_read(self) -> bool:
        """True if a process or worker is about to be lost. Then the end of the log must be read first, because it may
        show that the process or worker lives."""
        return not self._replica.guard.is_calm and (any(self._gone_processes()) or any(self._lost_workers()))

    def sweep(self) -> None:
        """Submit the commands that follow from silence."""
        now = self._clock.monotonic()
        if now - self._swept_at > SWEEP_S + _SWEEP_LATE_S:
            self._replica.guard.stay_calm()
        self._swept_at = now
        self._replica.guard.check()
        if self._replica.guard.is_calm:
            return
        self._asked = {command: at for command, at in self._asked.items() if at > now - AGAIN_S}
        for process in list(self._replica.shard.state.processes):
            if self._unheard_s(process) > SILENT_S:
                self._process_silent(process)
        for worker in list(self._replica.shard.state.workers):
            if self._worker_unheard_s(worker) > SILENT_S:
                self._worker_silent(worker)
        for process in list(self._gone_processes()):
            self._ask(Gone(process, False))
        self._ask_for_lost_workers()
        self._forget()

    def _ask_for_lost_workers(self) -> None:
        """Submit the loss of workers until they have _ATTEMPTS_LOST attempts together."""
        attempts = 0
        for worker in list(self._lost_workers()):
            if attempts < _ATTEMPTS_LOST:
                self._ask(Gone(worker, True))
                attempts += len(self._replica.shard.state.workers[worker].running)

    def _gone_processes(self) -> Iterator[str]:
        now = self._clock.monotonic()
        for name, process in self._replica.shard.state.processes.items():
            silent_s = self._silent_s(Silent(name, False), is_silent=process.silent)
            if not process.calls or silent_s <= GONE_BROKEN_S:
                continue
            if self._unheard_s(name) > GONE_SILENT_S and silent_s > GONE_SILENT_S - SILENT_S:
                yield name
                continue
            broken_at = self._broken_at.get(name)
            if broken_at is not None and now - max(broken_at, self._heard_at.get(name, 0.0)) > GONE_BROKEN_S:
                yield name

    def _lost_workers(self) -> Iterator[str]:
        for name, worker in self._replica.shard.state.workers.items():
            is_silent = worker.config.state == "silent"
            if self._silent_s(Silent(name, True), is_silent=is_silent) > LEASE_S + LEASE_MARGIN_S:
                yield name

    def _silent_s(self, silent: Silent, *, is_silent: bool) -> float:
        """Return the seconds since this process knows that the silence is in the log; 0 if it does not know it.

        `is_silent`: in the state. With an entry that waits for the log, a silence may be in the state alone.
        """
        if not is_silent:
            self._silent_since.pop(silent, None)
            return 0.0
        if self._replica.shard.decision is None:
            self._note_silent(silent)
        since = self._silent_since.get(silent)
        return 0.0 if since is None else self._clock.monotonic() - since

    def _note_silent(self, silent: Silent, outcome: Outcome | StoreUnavailable = DONE) -> None:
        """Remember since when the silence is in the log. `outcome`: of the command that put it there."""
        if outcome == DONE:
            self._silent_since.setdefault(silent, self._clock.monotonic())

    def _unheard_s(self, process: str) -> float:
        if process == NO_PROCESS:  # it is no process and sends no messages; the shard alone suspends its calls
            return 0.0
        session = self._sessions.get(process)
        heard_at = session.heard_at if session else self._began_at
        return self._clock.monotonic() - max(
            heard_at, self._heard_at.get(process, 0.0), self._broken_at.get(process, 0.0)
        )

    def _worker_unheard_s(self, worker: str) -> float:
        return self._clock.monotonic() - max(self._began_at, self._heard_at.get(worker, 0.0))

    def _process_silent(self, name: str) -> None:
        process, present = self._replica.shard.state.processes.get(name), Present(name)
        if process is not None and process.calls and (not process.silent or present in self._asked):
            self._asked.pop(present, None)
            self._ask(Silent(name, False))

    def _worker_silent(self, name: str) -> None:
        worker = self._replica.shard.state.workers.get(name)
        if worker is not None and worker.config.state != "silent":
            self._ask(Silent(name, True))

    def _ask(self, command: Command) -> None:
        now = self._clock.monotonic()
        if now - self._asked.get(command, -AGAIN_S) >= AGAIN_S:
            self._asked[command] = now
            self._submit(command, partial(self._note_silent, command) if isinstance(command, Silent) else no_reply)

    def _forget(self) -> None:
        """Forget processes and workers that the shard does not hold.

        Keep those with a message or a broken connection in the last SILENT_S: the log may not contain a new worker yet.
        """
        state, recent = self._replica.shard.state, self._clock.monotonic() - SILENT_S
        known = state.processes.keys() | state.workers.keys()
        self._broken_at = {name: at for name, at in self._broken_at.items() if name in known or at > recent}
        self._heard_at = {name: at for name, at in self._heard_at.items() if name in known or at > recent}
        self._silent_since = {each: at for each, at in self._silent_since.items() if each.name in known}

"""The leader. It decides for all connected processes by group commit, and sends them the outcomes and news.

It leads in one epoch. An entry with a later epoch deposes it. Then it does not answer the commands that it has not
written, and its clients repeat them to the new leader. If the log does not answer for a second, the leader steps down,
so that another process that reaches the log can lead. If there is no other process, it refuses the calls that are in no
entry yet, and leads on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from functools import partial

from dispatcher.model.commands import Accept, Command, Outcome, Refused, Report, Silent, UseFormat
from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.facts import Entry
from dispatcher.model.formats import NEWEST, OLDEST
from dispatcher.ports import Clock
from dispatcher.service.frames import Ask, Do, Heir, Hello, Message, NotLeader, ReadsFormat, Reply, Result
from dispatcher.service.garbage import Garbage
from dispatcher.service.gate.courier import Courier, Launches, Session
from dispatcher.service.gate.follower import Delivery, Offload, at_once, ignore_entry, ignore_load, ignore_orders
from dispatcher.service.gate.group_commit import GroupCommit, no_reply, unwritten
from dispatcher.service.gate.group_commit import Reply as CommitReply
from dispatcher.service.gate.planning import Planning
from dispatcher.service.gate.presence import GONE_SILENT_S, SWEEP_S, Presence
from dispatcher.service.gate.questions import answer
from dispatcher.service.gate.replica import Deposed, Replica

_BACKLOG_MAX_S = 1.0
BACKLOG_MAX = 20_000
_SLOW_ENTRY_S = 0.5
"""A leader that is behind because its present entry takes longer is not overloaded: its log does not answer."""
_COMMAND_MAX_AGE_S = 60.0
"""An Accept that was first sent longer ago is refused: the shard may have forgotten an earlier copy (rule 8)."""
IDLE_READ_S = 1.0
"""A leader that writes nothing reads the end of the log this often."""
_HEIRS = 2
_NAMES_MOST = 10


class Leader:
    """Leads from its own takeover entry until it is deposed, steps down or is stopped.

    `plan_offload` runs the planner (planning.py). `garbage`: this process's garbage collection, without long pauses
    while this object leads; None leaves it alone.
    """

    def __init__(
        self,
        replica: Replica,
        clock: Clock,
        courier: Courier,
        plan_offload: Offload = at_once,
        garbage: Garbage | None = None,
    ) -> None:
        self._replica, self._clock, self._courier, self._garbage = replica, clock, courier, garbage
        self.epoch = replica.shard.epoch
        self.commits = GroupCommit(replica, clock, courier.deliver, self._store_failed, self.epoch)
        self.presence = Presence(replica, clock, self.submit)
        self._launches = Launches(replica, clock, courier)
        self._planning = Planning(replica, clock, self.submit, plan_offload)
        self.heirs: list[Session] = []
        self._sessions: dict[Session, None] = {}
        replica.on_entry, replica.on_load = self._on_entry, self._on_load
        replica.on_ordered = self.presence.ask_reports

    async def run(self) -> None:
        """Lead until another process leads, until `stop`, or until the log does not answer. Raises LogError."""
        if self._garbage is not None:
            self._garbage.lead()
        commits = asyncio.create_task(self.commits.run())
        sweeps = asyncio.create_task(self._sweep())
        planning = asyncio.create_task(self._planning.run())
        try:
            await asyncio.wait((commits, sweeps), return_when=asyncio.FIRST_COMPLETED)
            for task in (commits, sweeps):
                if task.done() and not isinstance(task.exception(), Deposed | StoreUnavailable | None):
                    task.result()
        finally:
            planning.cancel()
            sweeps.cancel()
            commits.cancel()
            self._replica.on_entry, self._replica.on_load = ignore_entry, ignore_load
            self._replica.on_ordered = ignore_orders
            self._dismiss()
            if self._garbage is not None:
                self._garbage.follow()

    def stop(self) -> None:
        """Stop leading after the entry that is being written."""
        self.commits.stop()

    def submit(self, command: Command, reply: CommitReply = no_reply) -> None:
        """Put a command of the leader itself into the next entry.

        A worker's Silent is not urgent, like its reports. So it is decided after the reports that arrived before it.
        """
        self.commits.add(command, reply, urgent=not (isinstance(command, Silent) and command.is_worker))

    # Clients

    def on_joined(self, session: Session) -> None:
        if session not in self._sessions and session.reads > OLDEST:
            session.post(ReadsFormat(NEWEST))
        self._sessions[session] = None
        if session.role == "gate":
            self.heirs.append(session)
            self._name_heirs()
            return
        self._courier.sessions[session.process] = session
        if session.role == "executor":
            self._executes(session)
        self.presence.on_joined(session)

    def on_left(self, session: Session) -> None:
        self._sessions.pop(session, None)
        if session in self.heirs:
            self.heirs.remove(session)
            self._name_heirs()
            return
        if session in self._courier.executors:
            self._courier.executors.remove(session)
        if self._courier.sessions.get(session.process) is session:
            del self._courier.sessions[session.process]
            if (other := self._other_session(session.process)) is not None:
                self.on_joined(other)
        self.presence.on_left(session)

    def _other_session(self, process: str) -> Session | None:
        """Return another open session of the process, or None. There may be one: the greeting of an older connection
        may arrive after that of a newer one."""
        return next((each for each in self._sessions if each.process == process and not each.closed), None)

    def on_received(self, session: Session, messages: Sequence[Message]) -> None:
        """Handle a frame. Send its receipt within outgoing.WAIT_S, even while the log does not answer (rule 7)."""
        session.acknowledge()
        self.presence.heard(session)
        for message in messages:
            if isinstance(message, Do):
                self._do(session, message)
            elif isinstance(message, Ask):
                session.post(Reply(message.number, self._answer(message, session.reads)))
            elif isinstance(message, Hello) and message.role == "executor":
                self._executes(session)

    def _answer(self, question: Ask, reads: int) -> str:
        if question.topic == "readers":
            return json.dumps([(each.process, each.role, each.reads) for each in self._sessions])
        return answer(self._replica.shard, question.topic, question.arguments, reads)

    def _executes(self, session: Session) -> None:
        if session not in self._courier.executors:
            self._courier.executors.append(session)

    def _do(self, session: Session, message: Do) -> None:
        command = message.command
        refused = self._refusal(command, message.created_at)
        if refused is not None:
            session.post(Result(message.number, refused))
            return
        if isinstance(command, Report):
            self.presence.on_reported(command.worker, session)
        reply = partial(_reply, session, message.number)
        self.commits.add(command, reply, urgent=not isinstance(command, Report))

    def _refusal(self, command: Command, created_at: float) -> Refused | None:
        if isinstance(command, UseFormat):
            return self._refuse_format(command)
        if not isinstance(command, Accept):
            return None
        if self._clock.now() - created_at > _COMMAND_MAX_AGE_S:
            return Refused(command.id, "too_old", "The request took over a minute to reach the gate.", 1.0)
        is_behind = self.commits.backlog_s > _BACKLOG_MAX_S or self.commits.waiting > BACKLOG_MAX
        if self.commits.is_stalled or (is_behind and self.commits.writing_s > _SLOW_ENTRY_S):
            return unwritten(command)
        if is_behind:
            return Refused(command.id, "overloaded", "The gate is over a second behind. Try again later.", 1.0)
        return None

    def _refuse_format(self, command: UseFormat) -> Refused | None:
        """Refuse a format that a connected process does not read."""
        older = sorted({each.process for each in self._sessions if each.reads < command.format})
        if not older:
            return None
        names = ", ".join(older[:_NAMES_MOST]) + (" and others" if len(older) > _NAMES_MOST else "")
        message = f"These processes do not read format {command.format}: {names}. Update them, and try again."
        return Refused("", "older_readers", message, 0.0)

    def _dismiss(self) -> None:
        """Redirect the clients to the leader of a later epoch, if this process knows one."""
        shard = self._replica.shard
        self._redirect(self._sessions, shard.leader if shard.epoch != self.epoch else "")
        self._courier.sessions.clear()
        self._courier.executors.clear()

    def _redirect(self, sessions: Iterable[Session], leader: str) -> None:
        for session in sessions:
            session.post(NotLeader(leader, self._replica.shard.epoch))
            session.close_soon()

    def _name_heirs(self) -> None:
        for rank, session in enumerate(self.heirs):
            session.post(Heir(rank if rank < _HEIRS else -1))

    # The log

    def _on_entry(self, entry: Entry, deliveries: list[Delivery]) -> None:
        """Send the news of another process's entry to the processes that are connected here."""
        self.presence.entry(entry)
        for delivery in deliveries:
            self._courier.push(delivery)

    def _on_load(self) -> None:
        """Make all clients connect again, so that they ask for the status of their calls: news for them may be lost.

        A leader loads a snapshot if, for example, its clock jumps by an hour, because a read position is valid for an
        hour only (rule 1).
        """
        self._redirect([session for session in self._sessions if session not in self.heirs], "")

    def _store_failed(self, error: StoreUnavailable, commits: GroupCommit) -> None:
        if commits.is_stalled and self.heirs:
            raise error

    async def _sweep(self) -> None:
        """Check which processes are silent, and read the log while nothing is written.

        Return if the log has not taken an entry for STALLED_S and there is an heir. Then `run` ends.
        """
        while not (self.commits.is_stalled and self.heirs):
            await self._clock.sleep(SWEEP_S)
            self.commits.watch()
            if self.commits.is_stalled and not self.heirs:
                self.commits.withdraw()
            silent_s = self._clock.monotonic() - self.commits.committed_at
            if not self.commits.backlog_s and (silent_s > IDLE_READ_S or self.presence.must_read):
                await self._read_tail()
            self.presence.sweep()
            self._launches.sweep()
            self._close_silent()
            if self._garbage is not None:
                self._garbage.sweep(is_idle=not self._replica.shard.state.calls)

    def _close_silent(self) -> None:
        """Close the connections on which no frame arrives. If a machine vanishes, its connections do not break."""
        now = self._clock.monotonic()
        if not self._replica.guard.is_calm:
            for session in self._sessions:
                if now - session.heard_at > GONE_SILENT_S:
                    session.close()

    async def _read_tail(self) -> None:
        try:
            await self._replica.catch_up()
        except StoreUnavailable:
            return
        if self._replica.shard.epoch != self.epoch:
            raise Deposed()
        self.commits.committed_at = self._clock.monotonic()


def _reply(session: Session, number: int, outcome: Outcome | StoreUnavailable) -> None:
    if not isinstance(outcome, StoreUnavailable):
        session.post(Result(number, outcome))

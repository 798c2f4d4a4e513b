"""A gate process: it leads a shard, or follows the shard's leader. One runs beside every worker (rule 14).

It accepts connections. It hands the clients to its Leader, or redirects them while it does not lead.

The last entry of the log names the leader. A follower holds a connection to the leader. If the leader's port refuses
the connection, or the leader answers that it does not lead, the follower takes over: it appends an entry with its own
address and the next epoch. If the leader just sends no receipts, the follower first reads the log twice, and does not
take over if the leader wrote in between: then only this process cannot reach it.

The leader's first two followers are its heirs: they fold the log as it grows, and take over first: the first heir, then
the second, then the other followers. If two processes lead at once, one of them loses a write. The state stays right:
each position is written once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import NamedTuple
from zlib import crc32

from dispatcher.model.commands import Command
from dispatcher.model.errors import ConnectionLost, StoreUnavailable
from dispatcher.model.formats import NEWEST
from dispatcher.ports import Connection, InvocationStore, Launcher, Listener, MailboxStore, UsageStore
from dispatcher.service.authentication import HANDSHAKE_S, sign_as_server
from dispatcher.service.frames import Do, Heir, Hello, Message, NotLeader, decode_frame
from dispatcher.service.garbage import Garbage
from dispatcher.service.gate.courier import Courier, Session
from dispatcher.service.gate.follower import Offload, at_once
from dispatcher.service.gate.leader import Leader
from dispatcher.service.gate.replica import Replica
from dispatcher.service.link.channel import PATIENCE_S, Channel, LinkPatience
from dispatcher.service.link.finder import Fleet, Leadership, connect, read_leadership
from dispatcher.service.snapshots import Snapshots
from dispatcher.shard.settings import ShardSettings

HEIR_ALIVE_S = 0.03
"""An heir asks the leader for a receipt this often."""
_FOLLOWER_ALIVE_S = 0.5
FOLD_S = 0.25
"""An heir reads the end of the log this often."""
RETRY_S = 0.2
_ABSTAIN_S = 2.0
"""After it stepped down, a leader waits this long, so that another process can take over."""
_STOP_S = 5.0
"""A process that stops waits at most so long for the table."""
SHADOW_S = 10.0
"""A leader without followers makes snapshots from a second replica, and reads its own entries into it this often."""
_RANK_S = (0.0, 0.06)
"""Before it takes over, the first and the second heir wait this long, the others _OTHERS_S or up to twice that."""
_OTHERS_S = 0.3
_BESIDE_S, _BESIDE_MAX_S = 0.08, 0.24
"""It waits so much longer for each other shard that its OS process leads: longer than the second heir waits."""
STILL_WRITES_S = 0.05
"""The time between two reads of the log that show whether a leader which sends no receipts still writes."""
HOLD_OFF_S = 3.0
"""For this time after its takeover a leader is not replaced for missing receipts. So leadership does not flap."""


class GateStores(NamedTuple):
    """The parts of the store that a gate process needs, besides the log."""

    mailboxes: MailboxStore
    answers: InvocationStore
    projections: UsageStore
    launcher: Launcher


class GateProcess:
    """Leads or follows. Call `listen`, then `run`.

    `shard` names the log. `offload` runs the work of snapshots, `plan_offload` the planner. `garbage`: this
    process's garbage collection; None leaves it alone.
    """

    def __init__(
        self,
        fleet: Fleet,
        settings: ShardSettings,
        stores: GateStores,
        shard: str,
        *,
        offload: Offload = at_once,
        plan_offload: Offload = at_once,
        garbage: Garbage | None = None,
    ) -> None:
        self._fleet, self._clock, self._settings, self._stores = fleet, fleet.clock, settings, stores
        self.address = ""
        self.rank = -1
        """This process's number among the leader's heirs, from 0; -1 if it is no heir."""
        self.takeovers = 0
        self.leads_beside: Callable[[], int] = lambda: 0
        """Returns the number of other shards that this OS process leads. With each it waits longer for its turn."""
        self._known = Leadership("", 0, -1, 0.0, by_leader=False)
        self._succession = Succession(fleet)
        self._leader: Leader | None = None
        self._patience = LinkPatience()
        self._channel: Channel | None = None
        self._is_vacant = False
        """True if the leader that the log names has answered that it does not lead and knows no leader."""
        self._reception = Reception(fleet, lambda: self._leader, self._not_leader)
        self._listener: Listener | None = None
        self._stopping = asyncio.Event()
        self._offload, self._plan_offload, self._garbage = offload, plan_offload, garbage
        self._snapshots = Snapshots(fleet.log, stores.projections, shard, fleet.clock, fleet.ids, offload)
        self._replica: Replica | None = None
        self._shadow: Replica | None = None

    async def listen(self, address: str, public_address: str = "") -> str:
        """Accept connections at "host:port". Return the address at which other processes reach this one.

        That is `public_address`, or the address at which it listens if `public_address` is empty.
        """
        self._listener = await self._fleet.transport.listen(address, self._reception.serve)
        self.address = public_address or self._listener.address
        self._replica = self._new_replica()
        return self.address

    @property
    def is_leader(self) -> bool:
        return self._leader is not None

    @property
    def leader_address(self) -> str:
        """Return the address of the shard's leader, as far as this process knows; empty if none leads."""
        return self.address if self.is_leader else self._known.address

    @property
    def heir_address(self) -> str:
        """Return the address of the first heir; empty if this process does not lead or has no heir."""
        heirs = self._leader.heirs if self._leader is not None else []
        return heirs[0].process.partition("/")[0] if heirs else ""

    def step_down(self) -> None:
        """Let the first heir lead, after the entry that is being written."""
        if self._leader is not None:
            self._leader.stop()

    @property
    def replica(self) -> Replica:
        """Return this process's copy of the state. Raises RuntimeError before `listen`."""
        if self._replica is None:
            raise RuntimeError("listen first")
        return self._replica

    async def run(self) -> None:
        """Lead or follow until `stop`. Raises LogError if the log cannot be used; then the shard stops."""
        works = (self._live(), self._fold(), self._keep_snapshots(), self._await_stop())
        tasks = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._listener is not None:
                await self._listener.close()

    async def _await_stop(self) -> None:
        """Return _STOP_S after `stop`. Without this bound, an append to an unavailable table would delay the end."""
        await self._stopping.wait()
        await self._clock.sleep(_STOP_S)

    def stop(self) -> None:
        """Stop leading after the entry that is being written, and end `run` after _STOP_S at the latest."""
        self._stopping.set()
        self._end_if_stopping()

    def _end_if_stopping(self) -> None:
        """If `stop` was called, end the leadership or the connection to the leader, even one that has just begun."""
        if self._stopping.is_set() and self._leader is not None:
            self._leader.stop()
        if self._stopping.is_set() and self._channel is not None:
            self._channel.close()

    def _new_replica(self) -> Replica:
        """Return a new replica. Its name begins with the address: this shows whether the leader wrote an entry."""
        name = f"{self.address}/{self._fleet.ids.new()[:6]}"
        return Replica(
            self._fleet.log, self._settings, self._clock, name, answers=self._stores.answers, offload=self._offload
        )

    # Leading and following

    async def _live(self) -> None:
        while not self._stopping.is_set():
            try:
                known = await read_leadership(self._fleet.log)
                self._note(known)
                if known.address in ("", self.address):
                    await self._take_over(known)
                else:
                    await self._follow(known)
            except StoreUnavailable:
                await self._clock.sleep(RETRY_S)

    def _note(self, known: Leadership) -> None:
        if self._known.epoch not in (0, known.epoch):
            self._succession.began()
        self._known = known

    async def _take_over(self, known: Leadership) -> None:
        """Lead, unless another process took over in the meantime."""
        if not await self.replica.take_over(self.address, known.epoch):
            return
        self.takeovers += 1
        self.rank = -1
        courier = Courier(self._stores.mailboxes, self._stores.launcher, self._clock)
        self._leader = leader = Leader(self.replica, self._clock, courier, self._plan_offload, self._garbage)
        self._note(Leadership(self.address, leader.epoch, self.replica.shard.position, 0.0, by_leader=True))
        self._end_if_stopping()
        try:
            await leader.run()
        finally:
            self._leader = None
        if self._stopping.is_set():
            await self._resign(leader)
        elif self.replica.shard.epoch == leader.epoch:
            await self._clock.sleep(_ABSTAIN_S)
        else:  # it was taken for dead, so processes of this fleet stop for longer than the least patience
            self._patience.took(PATIENCE_S, self._clock.monotonic())

    async def _resign(self, leader: Leader) -> None:
        """If there is no heir, write that no process leads, so that the other processes decide alone at once."""
        if not leader.heirs:
            with suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(_ABSTAIN_S):
                    await self.replica.take_over("", leader.epoch)

    async def _follow(self, known: Leadership) -> None:
        """Hold a connection to the leader. Take over if it is gone, or if it sends no receipts and writes nothing."""
        try:
            connection = await connect(self._fleet, known.address)
        except ConnectionLost as error:
            return await self._succeed(known, is_certain=error.refused)
        self._is_vacant = is_gone = False

        async def suspect() -> None:
            nonlocal is_gone
            is_gone = await self._may_succeed(known, is_certain=False)

        channel = self._channel = Channel(connection, self._clock, self._patience, _FOLLOWER_ALIVE_S, suspect)
        channel.post(Hello(NEWEST, self.replica.name, "gate", self.address))
        self._end_if_stopping()
        try:
            await channel.run(self._on_message)
        finally:
            self._channel = None
        if not self._stopping.is_set() and (self._is_vacant or (channel.is_out_of_patience and is_gone)):
            await self._succeed(known, is_certain=self._is_vacant, is_gone=is_gone)
        return None

    def _on_message(self, message: Message) -> None:
        if isinstance(message, Heir):
            self.rank = message.rank
            if self._channel is not None:
                self._channel.alive_s = HEIR_ALIVE_S if self.rank >= 0 else _FOLLOWER_ALIVE_S
        elif isinstance(message, NotLeader):
            self._is_vacant = message.address == ""
            if self._channel is not None:
                self._channel.close()

    async def _succeed(self, known: Leadership, *, is_certain: bool, is_gone: bool = False) -> None:
        """Take over, unless another process has done so. `is_gone`: this was checked already."""
        if is_gone or await self._may_succeed(known, is_certain=is_certain):
            await self._take_over(known)

    async def _may_succeed(self, known: Leadership, *, is_certain: bool) -> bool:
        if beside := self.leads_beside():
            await self._clock.sleep(min(_BESIDE_MAX_S, beside * _BESIDE_S))
        return await self._succession.may_succeed(known, self.replica.name, self.rank, is_certain=is_certain)

    def _not_leader(self) -> NotLeader:
        """Return the answer to clients while this process does not lead."""
        other = self._known.address if self._known.address != self.address else ""
        return NotLeader(other, self._known.epoch)

    # Further tasks of an heir, or of a leader without heirs

    async def _fold(self) -> None:
        """Follow the log while this process is an heir, so that a takeover needs to read little."""
        while True:
            await self._clock.sleep(FOLD_S)
            if self.rank >= 0 and self._leader is None:
                with suppress(StoreUnavailable):
                    await self.replica.catch_up()

    async def _keep_snapshots(self) -> None:
        while True:
            await self._clock.sleep(1.0)
            with suppress(StoreUnavailable):
                replica = await self._snapshot_source()
                if replica is not None and self._snapshots.is_due(replica):
                    self._submit(await self._snapshots.write(replica))

    def _submit(self, command: Command) -> None:
        """Put the command into this leader's next entry, or send it to the leader. It may be lost."""
        if self._leader is not None:
            self._leader.submit(command)
        elif self._channel is not None:
            self._channel.post(Do(0, self._clock.now(), command))

    async def _snapshot_source(self) -> Replica | None:
        """Return the replica from which this process makes snapshots; None if another process makes them."""
        if self._leader is None or self._leader.heirs:
            self._shadow = None
            return self.replica if self.rank == 0 and self.replica.is_loaded else None
        if self._shadow is None:
            self._shadow = self._new_replica()
        elif self._shadow.is_loaded:
            await self._clock.sleep(SHADOW_S)
        await self._shadow.catch_up()
        return self._shadow


class Succession:
    """A follower's place among those that can take over from a leader that seems to be gone.

    If it is not certain that the leader is gone, the follower reads the log twice: a leader that writes is not gone,
    only this process cannot reach it.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._log, self._clock = fleet.log, fleet.clock
        self._epoch_began_at = -inf

    def began(self) -> None:
        """Note that another process took over just now."""
        self._epoch_began_at = self._clock.monotonic()

    async def may_succeed(self, known: Leadership, name: str, rank: int, *, is_certain: bool) -> bool:
        """Return whether to take over, after this process's turn. Another process may have done so. If it is not
        certain that the leader is gone, it must have begun more than HOLD_OFF_S ago and write nothing within
        STILL_WRITES_S. `name`, `rank`: of this process. Raises StoreUnavailable, LogCorrupt."""
        await self._clock.sleep(turn_s(name, rank))
        now = await read_leadership(self._log)
        if now.epoch != known.epoch:
            return False
        if not is_certain:
            await self._clock.sleep(STILL_WRITES_S)
            later = await read_leadership(self._log)
            still_writes = later.position > now.position and later.by_leader
            is_young = self._clock.monotonic() - self._epoch_began_at < HOLD_OFF_S
            if later.epoch != known.epoch or still_writes or is_young:
                await self._clock.sleep(RETRY_S)
                return False
        return True


class Reception:
    """Serves connections. `leader` returns this process's Leader, or None if it does not lead; `not_leader` makes the
    answer to clients in that case."""

    def __init__(self, fleet: Fleet, leader: Callable[[], Leader | None], not_leader: Callable[[], NotLeader]) -> None:
        self._fleet, self._leader, self._not_leader = fleet, leader, not_leader

    async def serve(self, unsigned: Connection) -> None:
        """Serve a connection until it is closed. Raises ConnectionLost."""
        connection = await sign_as_server(unsigned, self._fleet.secrets, self._fleet.ids.secret())
        messages = await _first_messages(connection)
        if not messages or not isinstance(messages[0], Hello):
            connection.close()
            return
        session = Session(connection, self._fleet.clock, messages[0])
        try:
            await self._converse(connection, session, messages[1:])
        finally:
            session.close_soon()

    async def _converse(self, connection: Connection, session: Session, messages: Sequence[Message]) -> None:
        leader = self._leader()
        if leader is None:
            session.post(self._not_leader())
            return
        leader.on_joined(session)
        try:
            leader.on_received(session, messages)
            await connection.deliver(lambda frame: leader.on_received(session, decode_frame(frame)))
        finally:
            leader.on_left(session)


def turn_s(name: str, rank: int) -> float:
    """Return the seconds until the turn of a process. `rank`: among the heirs, from 0; -1 if it is none."""
    if 0 <= rank < len(_RANK_S):
        return _RANK_S[rank]
    return _OTHERS_S * (1 + crc32(name.encode()) / 2**32)


async def _first_messages(connection: Connection) -> Sequence[Message]:
    """Return the messages of the client's first frame, which proves that the client has the secret. Return none if no
    frame arrives in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(HANDSHAKE_S):
            return decode_frame(await connection.receive())
    return ()

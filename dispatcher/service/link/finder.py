"""Finds the leader: the last entry of the log names it, or a process that does not lead redirects to it."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from dispatcher.model.errors import ConnectionLost, StoreUnavailable
from dispatcher.model.fleet_secrets import FleetSecrets
from dispatcher.ports import Clock, Connection, Ids, Log, Transport
from dispatcher.service.authentication import sign_as_client
from dispatcher.service.link.pending import READ_LATE_S
from dispatcher.shard.codec import decode_entry_at

CONNECT_S = 0.5
_WATCH_S = 0.03


class Fleet(NamedTuple):
    """Everything that a process needs to reach the others. `secrets` are shared by the fleet."""

    log: Log
    transport: Transport
    clock: Clock
    ids: Ids
    secrets: FleetSecrets


class Leadership(NamedTuple):
    """The leader in the last entry. `address` is empty if no process leads. `at`: the entry's time in Unix seconds."""

    address: str
    epoch: int
    position: int
    at: float
    by_leader: bool
    """Whether the leader itself wrote the last entry."""


_NO_LEADER = Leadership("", 0, -1, 0.0, by_leader=False)


async def read_leadership(log: Log) -> Leadership:
    """Return the leader that the last entry names. Raises StoreUnavailable, LogCorrupt."""
    last = await log.last()
    if last is None:
        return _NO_LEADER
    entry = decode_entry_at(*last)
    by_leader = bool(entry.leader) and entry.writer.startswith(f"{entry.leader}/")
    return Leadership(entry.leader, entry.epoch, entry.position, entry.at, by_leader)


async def connect(fleet: Fleet, address: str) -> Connection:
    """Return a signed connection. Raises ConnectionLost; its `refused` is true if no process listens there."""
    try:
        async with asyncio.timeout(CONNECT_S):
            connection = await fleet.transport.connect(address)
            return await sign_as_client(connection, fleet.secrets, fleet.ids.secret())
    except TimeoutError:
        raise ConnectionLost(f"{address} does not answer.") from None


class Finder:
    """Connects to the leader. `redirect`: an address to which a process that does not lead redirected; tried once."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.redirect = ""
        self.known = _NO_LEADER
        """The leader that the last search found."""
        self._reads_fail = False
        self._reading_since: float | None = None

    async def connect(self) -> Connection | None:
        """Return a connection to the leader; None if the log names none. Raises ConnectionLost, LogCorrupt.

        While the leader does not answer, read the log again and again, because another process may take over.
        """
        redirect, self.redirect = self.redirect, ""
        self.known = _NO_LEADER._replace(address=redirect) if redirect else await self._read()
        while address := self.known.address:
            attempt = asyncio.create_task(connect(self._fleet, address))
            try:
                while address == self.known.address:
                    await asyncio.wait((attempt,), timeout=_WATCH_S)
                    if attempt.done():
                        return attempt.result()
                    self.known = await self._read()
            finally:
                attempt.cancel()
        return None

    @property
    def finds_no_log(self) -> bool:
        """Return whether the last read of the log's end failed, or is without an answer for READ_LATE_S."""
        since = self._reading_since
        return self._reads_fail or (since is not None and self._fleet.clock.monotonic() - since > READ_LATE_S)

    async def _read(self) -> Leadership:
        self._reading_since = self._fleet.clock.monotonic()
        try:
            found = await read_leadership(self._fleet.log)
            self._reads_fail = False
        except StoreUnavailable as error:
            self._reads_fail = True
            raise ConnectionLost(error.message) from None
        finally:
            self._reading_since = None
        return found

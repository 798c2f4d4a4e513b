"""Accepts the connections of a gate process: hands clients to the leader, or redirects them if it does not lead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from dispatcher.ports import Connection
from dispatcher.service.authentication import HANDSHAKE_S, sign_as_server
from dispatcher.service.codec.frames import Hello, Message, NotLeader, decode_frame
from dispatcher.service.leader import Leader
from dispatcher.service.link.finder import Fleet
from dispatcher.service.sessions import Session

LAST_WORDS_S = 0.2
"""The longest time to send the last messages to a client."""


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
        writer = asyncio.create_task(session.write())
        try:
            await self._converse(connection, session, messages[1:])
        finally:
            session.close_soon()
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_S):
                    await writer
            connection.close()

    async def _converse(self, connection: Connection, session: Session, messages: Sequence[Message]) -> None:
        leader = self._leader()
        if leader is None:
            session.post(self._not_leader())
            return
        leader.joined(session)
        try:
            leader.received(session, messages)
            while not session.closed:
                leader.received(session, decode_frame(await connection.receive()))
        finally:
            leader.left(session)


async def _first_messages(connection: Connection) -> Sequence[Message]:
    """Return the messages of the client's first frame, which proves that the client has the secret. Return none if no
    frame arrives in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(HANDSHAKE_S):
            return decode_frame(await connection.receive())
    return ()

"""Asks the leader about the shard's state. (Without a leader, link.py asks the process's own replica.)"""

from __future__ import annotations

import asyncio
from itertools import count

from dispatcher.model.errors import ConnectionLost
from dispatcher.service.codec.frames import Ask
from dispatcher.service.link.channel import Channel


class Questions:
    """The questions that have no answer yet."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._open: dict[int, asyncio.Future[str]] = {}

    async def ask(self, channel: Channel, topic: str, arguments: tuple[str, ...]) -> str:
        """Return the leader's answer. Raises ConnectionLost if the connection ends before."""
        number = next(self._numbers)
        question: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._open[number] = question
        channel.post(Ask(number, topic, arguments))
        ended = asyncio.ensure_future(channel.ended.wait())
        try:
            await asyncio.wait((question, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            del self._open[number]
        if not question.done():
            raise ConnectionLost()
        return question.result()

    def answer(self, number: int, answered: str) -> None:
        question = self._open.get(number)
        if question is not None and not question.done():
            question.set_result(answered)

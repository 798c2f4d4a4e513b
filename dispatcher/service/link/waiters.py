"""The news of the calls that a process holds. News that arrive before a task waits for them are kept."""

from __future__ import annotations

import asyncio
from collections import deque

from dispatcher.model.commands import Offer, Over, call_id, parse_call_id


class _WaitingCall:
    __slots__ = ("highest", "is_over", "news", "wakeup")

    def __init__(self) -> None:
        self.news: deque[Offer | Over] = deque()
        self.highest = 0
        """The highest attempt that was offered."""
        self.is_over = False
        self.wakeup = asyncio.Event()


class Waiters:
    """The calls of one process, by id, and the sequence numbers of its own ids."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._calls: dict[str, _WaitingCall] = {}
        self._open: dict[int, None] = {}
        """The sequence numbers of this process's calls that are not forgotten yet, lowest first."""
        self._next = 1

    @property
    def unfinished(self) -> list[str]:
        """The calls that are not over, as far as this process knows."""
        return [name for name, call in self._calls.items() if not call.is_over]

    @property
    def floor(self) -> int:
        """This process's lowest sequence number that is not forgotten."""
        return next(iter(self._open), self._next)

    def new_id(self) -> str:
        number, self._next = self._next, self._next + 1
        self._open[number] = None
        return call_id(self._process, number)

    def expect(self, name: str) -> None:
        """Keep news of the call from now on."""
        if name not in self._calls:
            self._calls[name] = _WaitingCall()

    def on_seen(self, offer: Offer) -> None:
        """Record an offer that arrived as the outcome of a command, so that `wait` does not return it again."""
        call = self._calls.get(offer.id)
        if call is not None:
            call.highest = max(call.highest, offer.attempt)
            call.news = deque(news for news in call.news if isinstance(news, Over) or news.attempt > offer.attempt)

    def put(self, news: Offer | Over) -> None:
        """Keep the news. Ignore an offer whose attempt is not above the highest one seen: it is stale (rule 4)."""
        call = self._calls.get(news.id)
        if call is None or call.is_over:
            return
        if isinstance(news, Over):
            call.is_over = True
        elif news.attempt <= call.highest:
            return
        else:
            call.highest = news.attempt
        call.news.append(news)
        call.wakeup.set()

    async def wait(self, name: str, timeout_s: float) -> Offer | Over | None:
        """Return the next news of the call, or None after `timeout_s` seconds. An end is returned again each time."""
        self.expect(name)
        call = self._calls[name]
        try:
            async with asyncio.timeout(timeout_s):
                while not call.news:
                    call.wakeup.clear()
                    await call.wakeup.wait()
        except TimeoutError:
            return None
        return call.news[0] if isinstance(call.news[0], Over) else call.news.popleft()

    def forget(self, name: str) -> None:
        self._calls.pop(name, None)
        process, number = parse_call_id(name)
        if process == self._process:
            self._open.pop(number, None)

"""Mailboxes in memory: news by process and position."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.stores.limits import MAILBOX_KEEP_S


class MemoryMailboxes:
    def __init__(self) -> None:
        self._news: dict[str, dict[tuple[int, bytes], float]] = {}
        """Maps a process to its mailbox, which maps (position, news) to the time of the put. Equal news at the same
        position is kept once."""

    def put(self, process: str, position: int, news: Sequence[bytes], now: float) -> None:
        box = self._news.setdefault(process, {})
        box.update({(position, each): now for each in news})

    def read(self, process: str, after: int, now: float) -> list[tuple[int, bytes]]:
        box = self._news.get(process, {})
        kept = {named: put_at for named, put_at in box.items() if now < put_at + MAILBOX_KEEP_S}
        if box:
            self._news[process] = kept
        return sorted((named for named in kept if named[0] > after), key=lambda named: named[0])

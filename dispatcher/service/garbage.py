"""Keeps long garbage collections out of a leader's event loop.

Python's full collection visits all objects of the process. With the state of 10,000 waiting tenants this takes 0.1 s
and more, and the event loop stops for it. Almost all of the state ends by reference counts, without a collection. So
while this process leads:

- The survivors of each collection are *frozen*: later collections do not visit them. So each object is visited once.
- `sweep` collects what was made since the sweep before. Python's own thresholds do not bound this: they count new
  objects minus ended ones, old ones included, so with steady traffic its collections are rare and long.
- A cycle of frozen objects is never collected. So the shard makes none when it forgets a tenant (forgetting.py). As a
  bound on all others, `sweep` lets one collection visit everything when the process has over GROWTH times as many
  blocks of memory as after the last such collection, and BLOCKS_LEAST more, and no call is in the gate; from GROWTH_MAX
  times on also with calls. So garbage never has more blocks than that, and there is at most one long pause each time
  that the memory grows by this factor.

When it leads no more, everything is thawed, and Python collects as usual.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any, Protocol

GROWTH, GROWTH_MAX = 2.0, 6.0
BLOCKS_LEAST = 1_000_000
"""No collection visits everything while there are fewer additional blocks of memory than this (about 100 MB)."""


class GarbageCollector(Protocol):
    """The part of the module `gc` that is used here."""

    callbacks: list[Any]

    def freeze(self) -> None: ...

    def unfreeze(self) -> None: ...

    def collect(self, generation: int = 2) -> int: ...


class Garbage:
    """The garbage collection of a process. `blocks`: the number of blocks of memory that the process uses."""

    def __init__(self, collector: GarbageCollector = gc, blocks: Callable[[], int] = sys.getallocatedblocks) -> None:
        self._gc, self._blocks = collector, blocks
        self._leaders = 0
        """The shards that this process leads."""
        self._base = 0
        """The number of blocks after the last collection that visited everything."""
        self.whole = 0
        """The number of collections that visited everything while this process led."""

    def lead(self) -> None:
        """Begin to lead a shard: freeze all objects, and the survivors of all further collections. This visits no
        object."""
        self._leaders += 1
        if self._leaders > 1:
            return
        self._gc.callbacks.append(self._note_collection)
        self._gc.freeze()
        self._base = self._blocks()

    def follow(self) -> None:
        """End the lead of a shard. With the last one, collect as Python does by default, without frozen objects."""
        if not self._leaders:
            return
        self._leaders -= 1
        if self._leaders:
            return
        self._gc.callbacks.remove(self._note_collection)
        self._gc.unfreeze()

    def sweep(self, *, is_idle: bool) -> None:
        """Collect what was made since the last sweep; everything if the memory has grown so much that frozen cycles may
        be the reason. Call it several times a second. `is_idle`: no call is in the gate."""
        if not self._leaders:
            return
        growth = self._blocks() - self._base - BLOCKS_LEAST
        if growth > self._base * ((GROWTH if is_idle else GROWTH_MAX) - 1.0):
            self._gc.unfreeze()
            self._gc.collect()  # its end freezes what is left
            self._base = self._blocks()
            self.whole += 1
        else:
            self._gc.collect(0)

    def _note_collection(self, phase: str, _facts: dict[str, int]) -> None:
        if phase == "stop":
            self._gc.freeze()

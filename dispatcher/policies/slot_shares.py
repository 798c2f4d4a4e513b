"""A worker divides its slots among the shards of its pool, equally."""

from __future__ import annotations


class SlotShares:
    def __init__(self, worker: str, shards: int) -> None:
        self._shards = shards

    def note(self, shard: int, need: object, held: int, now_s: float) -> None:
        """Note a shard's answer to a heartbeat."""

    def lose(self, shard: int) -> None:
        """Take back the slots of a shard whose lease here has ended."""

    def slots(self, shard: int, open_slots: int) -> int:
        """Return the slots that the worker offers to the shard."""
        least, rest = divmod(open_slots, self._shards)
        return least + (shard < rest)

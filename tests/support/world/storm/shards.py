"""A run whose pool has several shards: each shard as a world of its own, which the oracles look at one by one.

A view has the log, the callers' answers and the disturbances of its shard. Everything else is that of the world.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.shards import process_in, shard_of_call, shard_of_tenant
from tests.support.world.storm.records import Answered, Books

if TYPE_CHECKING:
    from tests.support.world.storm.world import World


class ShardView:
    """One shard of a world."""

    def __init__(self, world: World, shard: int) -> None:
        self._world, self.shard = world, shard
        self.log = world.logs[shard]
        self.books = ShardBooks(world, shard)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    @property
    def disturbed_until(self) -> float:
        """Until then a fault slows this shard down: one of the world, or the loss of its own log."""
        own = self._world.losses[self.shard]
        return max(self._world.disturbed_until, max((ended for _, ended in own), default=0.0))

    def was_lost(self, since: float, until: float) -> bool:
        """Return whether the shard alone was slowed down at some time between."""
        return any(began < until and since < ended for began, ended in self._world.losses[self.shard])

    def living(self) -> set[str]:
        """Return the names that the fronts which are up have in this shard."""
        return {process_in(front.tag, self.shard) for front in self._world.fronts if front.is_up}

    def usage_rows(self, rows: Any) -> Iterator[Any]:
        return (row for shard, row in rows if shard == self.log.shard)


class ShardBooks:
    """The books, with the answers and refusals of one shard."""

    def __init__(self, world: World, shard: int) -> None:
        self._world, self._shard = world, shard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._books, name)

    @property
    def _books(self) -> Books:
        return self._world.books

    @property
    def answers(self) -> list[Answered]:
        shards = self._world.weather.shards
        return [each for each in self._books.answers if shard_of_tenant(each.tenant, shards) == self._shard]

    @property
    def refusals(self) -> dict[str, str]:
        return {call: code for call, code in self._books.refusals.items() if shard_of_call(call) == self._shard}


class LostLog:
    """memory_store.StoreFaults of a host's requests to the log of one shard: none is answered while it is lost."""

    def __init__(self, world: World, shard: int, faults: Any) -> None:
        self._world, self._shard, self._faults = world, shard, faults

    async def before(self, operation: str) -> None:
        if self._shard in self._world.lost_shards:
            raise StoreUnavailable("The log of this shard is lost.")
        await self._faults.before(operation)

    async def after(self, operation: str) -> None:
        await self._faults.after(operation)

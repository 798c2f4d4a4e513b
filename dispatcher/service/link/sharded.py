"""The link of a process to a pool of several shards (ports.GateLink): one link to each of them.

What concerns a call goes to the shard that the call's id names, also if the tenant's hash names another one by now:
then the number of shards has changed since the call was accepted. What concerns no call goes to all shards.

If a shard does not answer, only what goes to it fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dispatcher.model.commands import Accept, Cancel, Command, End, Offer, Outcome, Over, Refused, Return, Status
from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.facts import WorkerSet
from dispatcher.model.formats import Reader
from dispatcher.model.shards import shard_of_call, shard_of_tenant
from dispatcher.model.usage import UsageRow
from dispatcher.ports import GateLink

_OTHERS_S = 1.0
"""When a shard has answered, the others are waited for so long."""
_Workers = asyncio.Future[Sequence[WorkerSet]]


def combine(links: Sequence[GateLink]) -> GateLink:
    """Return the link to a pool of these shards, in their order."""
    return links[0] if len(links) == 1 else ShardedLink(links)


class ShardedLink:
    """`links`: one to each shard, in their order."""

    def __init__(self, links: Sequence[GateLink]) -> None:
        self._links = links
        self._launches: asyncio.Queue[tuple[str, int]] = asyncio.Queue(1)
        self._collecting: list[asyncio.Task[None]] = []

    @property
    def process(self) -> str:
        """The name of this process in shard 0. An Accept that names it gets the name in the call's shard."""
        return self._links[0].process

    def new_id(self, tenant: str, /) -> str:
        return self._links[shard_of_tenant(tenant, len(self._links))].new_id(tenant)

    async def do(self, command: Command) -> Outcome:
        if (call_id := _call_of(command)) is not None:
            link = self._link_of(call_id)
            return await link.do(self._held_by(link, command))
        ends = await asyncio.gather(*(link.do(command) for link in self._links), return_exceptions=True)
        outcomes = [each for each in ends if not isinstance(each, BaseException)]
        for error in ends:
            if isinstance(error, BaseException):
                raise error
        return next((each for each in outcomes if isinstance(each, Refused)), outcomes[0])

    def send(self, command: Command, take: Callable[[Outcome | StoreUnavailable], None]) -> None:
        """Send a command that concerns a call. `take`: as in GateLink."""
        call_id = _call_of(command)
        if call_id is None:
            raise TypeError(f"{type(command).__name__} concerns no call: use do")
        try:
            link = self._link_of(call_id)
        except StoreUnavailable as error:
            asyncio.get_running_loop().call_soon(take, error)
        else:
            link.send(self._held_by(link, command), take)

    def hold(self, call_id: str, take: Callable[[Offer | Over], None]) -> None:
        self._link_of(call_id).hold(call_id, take)

    def forget(self, call_id: str) -> None:
        self._link_of(call_id).forget(call_id)

    async def launched(self) -> tuple[str, int]:
        if not self._collecting:
            self._collecting = [asyncio.create_task(self._collect_launches(link)) for link in self._links]
        return await self._launches.get()

    async def readers(self) -> Sequence[Reader] | None:
        found = await asyncio.gather(*(link.readers() for link in self._links))
        return None if None in found else [reader for readers in found for reader in readers or ()]

    async def fleet(self) -> Sequence[WorkerSet]:
        """Return the workers of the shards that answer, each with its slots in all of them.

        Raises StoreUnavailable if no shard answers.
        """
        asks = [asyncio.ensure_future(link.fleet()) for link in self._links]
        try:
            answered = await _first_answers(asks)
        finally:
            for ask in asks:
                ask.cancel()
        workers: dict[str, WorkerSet] = {}
        for each in (worker for ask in answered for worker in ask.result()):
            known = workers.get(each.worker)
            workers[each.worker] = each if known is None else _sum_of(known, each)
        return list(workers.values())

    async def usage(self, tenant: str | None, first_hour: int, last_hour: int) -> Sequence[tuple[int, UsageRow]]:
        found = await asyncio.gather(*(link.usage(tenant, first_hour, last_hour) for link in self._links))
        return [(shard, row) for shard, rows in enumerate(found) for _, row in rows]

    async def rest(self) -> None:
        await asyncio.gather(*(link.rest() for link in self._links))

    def _link_of(self, call_id: str) -> GateLink:
        """Return the link to the call's shard. Raises StoreUnavailable if the pool has no such shard any more."""
        shard = shard_of_call(call_id)
        if shard >= len(self._links):
            raise StoreUnavailable(f"This process has no shard {shard} of the pool.")
        return self._links[shard]

    def _held_by(self, link: GateLink, command: Command) -> Command:
        """Return the command with this process's name in the shard, by which the shard sends the call's news."""
        if isinstance(command, Accept) and command.process == self.process:
            return command._replace(process=link.process)
        return command

    async def _collect_launches(self, link: GateLink) -> None:
        while True:
            await self._launches.put(await link.launched())


def _call_of(command: Command) -> str | None:
    """Return the id of the call that the command concerns; None if it concerns none."""
    return command.id if isinstance(command, Accept | Cancel | Return | End | Status) else None


async def _first_answers(asks: Sequence[_Workers]) -> list[_Workers]:
    """Return the questions with an answer, in order. Raises the error of the first one if there is none."""
    waiting, patience_s = set(asks), None
    while waiting:
        done, waiting = await asyncio.wait(waiting, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            break
        if any(ask.exception() is None for ask in done):
            patience_s = _OTHERS_S
    answered = [ask for ask in asks if ask.done() and ask.exception() is None]
    if not answered:
        asks[0].result()
    return answered


def _sum_of(one: WorkerSet, other: WorkerSet) -> WorkerSet:
    """Return a worker with its slots in two shards. It serves if it serves in one of them."""
    main = other if one.state != "serving" and other.state == "serving" else one
    return main._replace(slots=one.slots + other.slots, service_per_s=one.service_per_s + other.service_per_s)

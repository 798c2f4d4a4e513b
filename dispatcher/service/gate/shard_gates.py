"""The gate processes of one pool in one OS process: one for each shard, so that each of them can be led here (rule 14).

A shard whose log cannot be used stops alone: the others go on.

The leaders spread over the hosts. A process that leads another shard waits longer for its turn in a takeover. And if a
host leads at least two shards more than the host of an heir, it steps down from that heir's shard, one shard at a time
and at most every SPREAD_EVERY_S. That makes the two hosts more alike, so it comes to rest (rule 7).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence

from dispatcher.model.errors import LogError
from dispatcher.ports import Clock
from dispatcher.service.gate.process import GateProcess

logger = logging.getLogger("headgate.gate")

SPREAD_EVERY_S = 10.0
_SURPLUS = 2


class ShardGates:
    """`gates`: one for each shard, in their order. Call `listen`, then `run`."""

    def __init__(self, gates: Sequence[GateProcess], clock: Clock) -> None:
        self.gates, self._clock = gates, clock
        for gate in gates:
            gate.leads_beside = self._count_led

    async def listen(self, address: str, public_address: str = "") -> str:
        """Accept connections at "host:port" for shard 0, and at the port after it for each further shard.

        Port 0: a free port for each. Return the address at which other processes reach shard 0: `public_address`, or,
        if it is empty, the one at which it listens. The ports after that are those of the other shards.
        """
        for number, gate in enumerate(self.gates):
            await gate.listen(_at(address, number), _at(public_address, number))
        return self.gates[0].address

    async def run(self) -> None:
        """Lead or follow in each shard until `stop`. Raises LogError if no shard's log can be used."""
        if len(self.gates) == 1:
            return await self.gates[0].run()
        spreading = asyncio.create_task(self._spread())
        try:
            ended = await asyncio.gather(*map(self._run, range(len(self.gates))), return_exceptions=True)
        finally:
            spreading.cancel()
        errors = [each for each in ended if each is not None]
        for error in errors:
            if len(errors) == len(ended) or not isinstance(error, LogError):
                raise error
        return None

    def stop(self) -> None:
        """As GateProcess.stop, for each shard."""
        for gate in self.gates:
            gate.stop()

    async def _run(self, number: int) -> None:
        try:
            await self.gates[number].run()
        except LogError as error:
            logger.error("shard %d stops: %s", number, error)
            raise

    def _count_led(self) -> int:
        return sum(gate.is_leader for gate in self.gates)

    async def _spread(self) -> None:
        while True:
            await self._clock.sleep(SPREAD_EVERY_S)
            if (gate := self._surplus()) is not None:
                gate.step_down()

    def _surplus(self) -> GateProcess | None:
        """Return a leader of this process whose heir's host leads at least _SURPLUS shards less than this one."""
        led = Counter(_host(gate.leader_address) for gate in self.gates)
        for gate in self.gates:
            heir = _host(gate.heir_address)
            if heir and led[_host(gate.address)] - led[heir] >= _SURPLUS:
                return gate
        return None


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _at(address: str, number: int) -> str:
    """Return the address of the shard `number`, if `address` is that of shard 0. Port 0 and no address stay."""
    host, colon, port = address.rpartition(":")
    return address if not colon or port == "0" else f"{host}:{int(port) + number}"

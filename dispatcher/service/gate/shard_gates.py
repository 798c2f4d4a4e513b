"""The gate processes of one pool in one OS process: one for each shard, so that each of them can be led here (rule 14).

A shard whose log cannot be used stops alone: the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dispatcher.model.errors import LogError
from dispatcher.service.gate.process import GateProcess


class ShardGates:
    """`gates`: one for each shard, in their order. Call `listen`, then `run`."""

    def __init__(self, gates: Sequence[GateProcess]) -> None:
        self.gates = gates

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
        ended = await asyncio.gather(*(gate.run() for gate in self.gates), return_exceptions=True)
        errors = [each for each in ended if each is not None]
        for error in errors:
            if len(errors) == len(ended) or not isinstance(error, LogError):
                raise error
        return None

    def stop(self) -> None:
        """As GateProcess.stop, for each shard."""
        for gate in self.gates:
            gate.stop()


def _at(address: str, number: int) -> str:
    """Return the address of the shard `number`, if `address` is that of shard 0. Port 0 and no address stay."""
    host, colon, port = address.rpartition(":")
    return address if not colon or port == "0" else f"{host}:{int(port) + number}"

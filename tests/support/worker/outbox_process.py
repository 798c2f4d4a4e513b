"""A process with an outbox, for tests that kill it.

`python -m tests.support.worker.outbox_process FOLDER away`: two reports, one acknowledged; the gate never takes the
other. Prints "posted", then waits to be killed.
`… FOLDER back`: delivers what is found, and prints a JSON line of each delivered report.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from random import Random

from dispatcher.model.commands import Command, Done, End, Outcome
from dispatcher.model.errors import StoreUnavailable
from dispatcher.processes.bootstrap import RealClock
from gpu_worker.service.executions.outbox import Outbox
from gpu_worker.service.executions.outbox_journal import Journal

PENDING = End("p-1", 2, "done", 5, 7, "tenant", '{"text":"é","reason":"stop"}', 0.25)
TAKEN = End("p-2", 1, "done", 5, 7)


class Away:
    """Takes one report only."""

    async def do(self, command: Command) -> Outcome:
        if command == TAKEN:
            return Done()
        raise StoreUnavailable()


class Back:
    async def do(self, command: Command) -> Outcome:
        print(json.dumps(command))
        return Done()


async def away(folder: Path) -> None:
    outbox = Outbox(Away(), RealClock(), Random(1), Journal(folder, "w-1"))
    outbox.recover()
    taken = outbox.post(TAKEN)
    outbox.post(PENDING)
    await taken
    print("posted", flush=True)
    await asyncio.Event().wait()


async def back(folder: Path) -> None:
    outbox = Outbox(Back(), RealClock(), Random(1), Journal(folder, "w-2"))
    outbox.recover()
    await outbox.flushed()
    await outbox.close()


if __name__ == "__main__":
    asyncio.run({"away": away, "back": back}[sys.argv[2]](Path(sys.argv[1])))

"""The floor of benchmarks/leader_command.py: a process that answers each command and decides nothing.

It has a gate process's event loop, signatures, frames and log. All commands that wait become one entry of as many bytes
as theirs; then each gets its outcome. `python -m benchmarks.peers.leader_floor` prints one JSON line, `{"url"}`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys

import uvloop

from dispatcher.model.commands import Accept, Command, Offer, Outcome, Over
from dispatcher.ports import Connection, Log
from dispatcher.processes.bootstrap import make_store
from dispatcher.processes.secret_source import fleet_secrets
from dispatcher.service.authentication import sign_as_server
from dispatcher.service.frames import Do, Result, decode_frame, encode_frames, encode_message
from dispatcher.service.tcp import TcpTransport
from dispatcher.settings.config import load_config

FACT_BYTES = 130
"""The bytes of a command's facts in an entry, before its compression."""


async def main() -> None:
    config = load_config()
    log = make_store(config).log(config.pool)

    async def serve(unsigned: Connection) -> None:
        connection = await sign_as_server(unsigned, fleet_secrets(config), secrets.token_urlsafe(33))
        waiting: asyncio.Queue[Do] = asyncio.Queue()
        writing = asyncio.create_task(_write(log, waiting, connection))
        try:
            await connection.deliver(lambda frame: _take(frame, waiting))
        finally:
            writing.cancel()

    listener = await TcpTransport().listen("127.0.0.1:0", serve)
    sys.stdout.write(json.dumps({"url": listener.address}) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def _take(frame: bytes, waiting: asyncio.Queue[Do]) -> None:
    for message in decode_frame(frame):
        if isinstance(message, Do):
            waiting.put_nowait(message)


async def _write(log: Log, waiting: asyncio.Queue[Do], connection: Connection) -> None:
    position = 0
    while True:
        items = [await waiting.get()]
        while not waiting.empty():
            items.append(waiting.get_nowait())
        await log.append(position, b"j" + b"x" * FACT_BYTES * len(items))
        position += 1
        results = [encode_message(Result(each.number, _outcome(each.command))) for each in items]
        for frame in encode_frames(results):
            connection.send(frame)


def _outcome(command: Command) -> Outcome:
    if isinstance(command, Accept):
        return Offer(command.id, 1, "w0", "http://10.0.0.1:8471", 0)
    return Over(getattr(command, "id", ""), 1, "done", 240, 160)


if __name__ == "__main__":
    uvloop.run(main())

"""`python -m dispatcher` runs a gate process. It leads its pool's shards, or follows their leaders.

It prints one JSON line, `{"url", "role"}`, when it listens. Other processes reach it at HEADGATE_GATE_ADDRESS; if that
is empty, at `--host`, or with `--host 0.0.0.0` at the address of this host's name. The exit code is 0 after SIGTERM or
SIGINT, 2 if it cannot start, and 1 if no shard's log can be used. With 1 or 2 it prints a line with the reason on
standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys

import uvloop

from dispatcher.log_lines import LogStreams
from dispatcher.model.errors import HeadgateError, LogError, StoreUnavailable
from dispatcher.model.shards import shard_number
from dispatcher.monitor.follower import find_left_out
from dispatcher.processes.bootstrap import RealClock, make_gate_processes, make_store, own_address
from dispatcher.settings.config import Config, load_config

logger = logging.getLogger("headgate.gate")

FAILED, _NOT_STARTED = 1, 2


def main() -> None:
    options = _options()
    with LogStreams():
        try:
            uvloop.run(_serve(options))
        except LogError as error:
            _end(FAILED, error)
        except HeadgateError as error:
            _end(_NOT_STARTED, error)


async def _serve(options: argparse.Namespace) -> None:
    """Listen, then lead or follow until SIGTERM."""
    config = load_config().of_pool(options.pool)
    process = make_gate_processes(config)
    public = config.gate_address
    if not public and options.port:
        public = f"{own_address(options.host)}:{options.port}"
    address = await process.listen(f"{options.host}:{options.port}", public)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, process.stop)
    sys.stdout.write(json.dumps({"url": address, "role": "gate"}) + "\n")
    sys.stdout.flush()
    telling = asyncio.create_task(_tell_left_out(config))
    await process.run()
    telling.cancel()


async def _tell_left_out(config: Config) -> None:
    """Log an error if the pool had more shards before and calls wait in them, or run."""
    store = make_store(config)
    try:
        for shard, calls in (await find_left_out(store, config, RealClock())).items():
            needed = shard_number(shard) + 1
            logger.error(
                "%d calls are in shard %s, which no process serves: set HEADGATE_SHARDS to %d until they have ended",
                calls, shard, needed,
            )  # fmt: skip
    except (StoreUnavailable, LogError) as error:
        logger.warning("it is unknown whether calls are left in former shards: %s", error)
    finally:
        await store.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dispatcher", description="A gate process of a pool.")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at")
    parser.add_argument(
        "--port", type=int, default=0, help="the port to listen at, and those after it for further shards; 0: free ones"
    )
    parser.add_argument("--pool", default="", help="the pool that it serves; default: HEADGATE_POOL")
    return parser.parse_args()


def _end(code: int, error: HeadgateError) -> None:
    sys.stderr.write(f"dispatcher: {error}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()

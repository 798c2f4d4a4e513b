"""`python -m dispatcher.executor` executes the durable calls that no process holds, and runs the batches, of all pools.

A pool's leader sends it the ids of such calls. With `--only-batches` it gets none: on AWS, an SQS message starts
headgate-execute instead. The executor prints one JSON line, `{"role": "executor"}`, when it is ready. SIGTERM ends it.
Its executions go on at their workers, which report the ends with the answers, and another executor continues its
batches.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from dispatcher.log_lines import LogStreams
from dispatcher.model.errors import HeadgateError
from dispatcher.operations.batches.run import serve_batches
from dispatcher.operations.calls.detached import serve_launched
from dispatcher.operations.context import Context
from dispatcher.processes.bootstrap import make_context

ONLY_BATCHES = "--only-batches"


async def serve(*, only_batches: bool) -> None:
    """Execute until SIGTERM or SIGINT. Raises ConfigurationError."""
    context = make_context(role="executor")
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    serving = [asyncio.create_task(work) for work in _work(context, only_batches)]
    stop = asyncio.create_task(over.wait())
    sys.stdout.write(json.dumps({"role": "executor"}) + "\n")
    sys.stdout.flush()
    await asyncio.wait({*serving, stop}, return_when=asyncio.FIRST_COMPLETED)
    failed = [task for task in serving if task.done()]
    for task in (*serving, stop):
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)
    for task in list(context.tasks):
        task.cancel()
    await asyncio.gather(*context.tasks, return_exceptions=True)
    await context.workers.close()
    await context.tracing.flush()
    for task in failed:
        task.result()


def _work(context: Context, only_batches: bool) -> list[Coroutine[Any, Any, None]]:
    work = [] if only_batches else [serve_launched(context, pool) for pool in context.pools]
    return work if context.files is None else [*work, serve_batches(context)]


def main(argv: Sequence[str] | None = None) -> None:
    with LogStreams():
        try:
            asyncio.run(serve(only_batches=ONLY_BATCHES in (sys.argv[1:] if argv is None else argv)))
        except HeadgateError as error:
            sys.stderr.write(f"dispatcher.executor: {error}\n")
            sys.exit(2)


if __name__ == "__main__":
    main()

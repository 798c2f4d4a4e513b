"""`python -m headgate.serve.executor` executes the durable calls that no process holds. The leader sends it their ids.

(On AWS, an SQS message starts headgate-execute instead.) The executor prints one JSON line, `{"role": "executor"}`,
when it is ready. SIGTERM ends it. Its executions go on at their workers, which report the ends with the answers.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

from dispatcher.bootstrap import make_context
from dispatcher.model.errors import HeadgateError
from dispatcher.operations.detached import serve_launched


async def serve() -> None:
    """Execute until SIGTERM or SIGINT. Raises ConfigurationError."""
    context = make_context()
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    serving, stop = asyncio.create_task(serve_launched(context)), asyncio.create_task(over.wait())
    sys.stdout.write(json.dumps({"role": "executor"}) + "\n")
    sys.stdout.flush()
    await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
    serving.cancel()
    stop.cancel()
    for task in list(context.tasks):
        task.cancel()
    await asyncio.gather(serving, *context.tasks, return_exceptions=True)
    await context.workers.close()
    if not over.is_set():
        serving.result()


def main() -> None:
    try:
        asyncio.run(serve())
    except HeadgateError as error:
        sys.stderr.write(f"headgate.serve.executor: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()

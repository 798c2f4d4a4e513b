"""headgate-sweep, once a minute: a Tick for each pool, so that deadlines are decided also in a fleet without traffic.

For each pool it publishes the load and the delays, and the number of workers that the pool should have, and sets this
number (dispatcher/operations/scaling.py). Each sweep publishes all values, zeros too: a missing value never
means zero. It starts an executor for suspended calls, and once an hour it saves the log where no gate process does
(dispatcher/service/log_keeper.py). It ends the calls of deleted tenants that no process holds.

With {"use_format": N} it changes the format of the pools' logs instead, when an operator invokes it by hand
(docs/operations.md).

The pools are swept side by side. If one fails, the others are swept to the end, and then the function fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aws_lambda_powertools.utilities.data_classes import EventBridgeEvent, event_source
from aws_lambda_powertools.utilities.typing import LambdaContext

from dispatcher.model.errors import ConfigurationError
from dispatcher.processes.pool_sweep import PoolSweep
from functions.observability import count, logger, metrics, publish_delays, publish_load, publish_scaling
from functions.runtime import runtime


@logger.inject_lambda_context
@metrics.log_metrics
@event_source(data_class=EventBridgeEvent)
def handler(event: EventBridgeEvent, context: LambdaContext) -> dict[str, int]:
    if (wanted := event.raw_event.get("use_format")) is not None:
        return {"format": runtime().run(_all_written_in(runtime().sweeps(), wanted))}
    ticks: int = runtime().run(_sweep_all(runtime().sweeps(), event.get_id))
    return {"ticks": ticks}


async def _sweep_all(sweeps: Sequence[PoolSweep], event_id: str) -> int:
    """Sweep all pools and return their number. Raises the error of the first pool that failed."""
    ended = await asyncio.gather(*(_swept(each, event_id) for each in sweeps), return_exceptions=True)
    failed = [(each.name, end) for each, end in zip(sweeps, ended, strict=True) if end is not None]
    for pool, error in failed:
        logger.error("sweep failed", extra={"pool": pool, "kind": type(error).__name__, "problem": str(error)})
    for _, error in failed:
        raise error
    return len(sweeps)


async def _all_written_in(sweeps: Sequence[PoolSweep], wanted: int) -> int:
    """Change the format of all logs. Raises ConfigurationError at the first pool that refuses; those before it have
    changed, and a repetition goes on."""
    if type(wanted) is not int:
        raise ConfigurationError("use_format is a number")
    for each in sweeps:
        await each.use_format(wanted)
        logger.info("format changed", extra={"pool": each.name, "format": wanted})
    return wanted


async def _swept(pool: PoolSweep, event_id: str) -> None:
    await pool.tick()
    count("ticks")
    load = await pool.load()
    publish_load(pool.name, load)
    publish_delays(pool.name, await pool.delays())
    scaled = await pool.scale(load)
    publish_scaling(pool.name, scaled)
    started, saved = await pool.start_executor(), await pool.keep_log()
    ended = await pool.end_of_deleted()
    done = {"pool": pool.name, "started": started, "saved": saved, "ended": ended, "problem": scaled.problem}
    logger.info("swept", extra={"event_id": event_id, **done})

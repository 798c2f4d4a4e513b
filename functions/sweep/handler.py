"""headgate-sweep, once a minute: a Tick for the gate, so that deadlines are decided also in a fleet without traffic.

It publishes the load and the delays of the pool, and the number of workers that the pool should have, and sets this
number (dispatcher/operations/scaling.py). Each sweep publishes all values, zeros too: a missing value never means zero.

Once an hour it saves the log where no gate process does (dispatcher/service/log_keeper.py).
"""

from __future__ import annotations

from aws_lambda_powertools.utilities.data_classes import EventBridgeEvent, event_source
from aws_lambda_powertools.utilities.typing import LambdaContext

from dispatcher.model.commands import Tick
from functions.observability import count, logger, metrics, publish_delays, publish_load, publish_scaling
from functions.runtime import runtime


@logger.inject_lambda_context
@metrics.log_metrics
@event_source(data_class=EventBridgeEvent)
def handler(event: EventBridgeEvent, context: LambdaContext) -> dict[str, int]:
    runtime().run(runtime().context.link.do(Tick()))
    count("ticks")
    pool, load = runtime().context.settings.shard, runtime().fleet_load()
    publish_load(pool, load)
    publish_delays(pool, runtime().pool_delays())
    scaled = runtime().scale(load)
    publish_scaling(pool, scaled)
    saved = runtime().keep_log()
    logger.info("swept", extra={"event_id": event.get_id, "saved": saved, "problem": scaled.problem})
    return {"ticks": 1}

"""headgate-sweep, once a minute: a Tick for the gate, so that deadlines are decided also in a fleet without traffic.

Once an hour it saves the log where no gate process does (dispatcher/service/log_keeper.py).
"""

from __future__ import annotations

from aws_lambda_powertools.utilities.data_classes import EventBridgeEvent, event_source
from aws_lambda_powertools.utilities.typing import LambdaContext

from dispatcher.model.commands import Tick
from functions.observability import count, logger, metrics, tracer
from functions.runtime import runtime


@logger.inject_lambda_context
@tracer.capture_lambda_handler
@metrics.log_metrics
@event_source(data_class=EventBridgeEvent)
def handler(event: EventBridgeEvent, context: LambdaContext) -> dict[str, int]:
    runtime().run(runtime().context.link.do(Tick()))
    count("ticks")
    saved = runtime().keep_log()
    logger.info("swept", extra={"event_id": event.get_id, "saved": saved})
    return {"ticks": 1}

"""headgate-sweep, once a minute: reclaims expired leases, ends overdue invocations, drains. Messages are only hints."""

from __future__ import annotations

from aws_lambda_powertools.utilities.data_classes import EventBridgeEvent, event_source
from aws_lambda_powertools.utilities.typing import LambdaContext

from dispatcher.config import load_config
from dispatcher.old_operations.reap import sweep
from functions.observability import count, logger, metrics, tracer
from functions.runtime import runtime


@logger.inject_lambda_context
@tracer.capture_lambda_handler
@metrics.log_metrics
@event_source(data_class=EventBridgeEvent)
def handler(event: EventBridgeEvent, context: LambdaContext) -> dict[str, int]:
    done: dict[str, int] = runtime().run(sweep(runtime().context, load_config().pool))
    for name, value in done.items():
        count(name, value)
    logger.info("swept", extra={"event_id": event.get_id, **done})
    return done

"""headgate-execute: the SQS consumer. A message names a durable call that the gate dispatched; it is only a hint.

A duplicate, late or reordered message finds the call over or held elsewhere, and does nothing. An execution that fails
here is returned by its worker and launched again. So a message goes back to SQS only if the gate cannot be reached.
"""

from __future__ import annotations

import json
from typing import Any

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.typing import LambdaContext

from dispatcher.operations.calls.detached import execute_detached
from functions.observability import count, logger, metrics
from functions.runtime import runtime

_processor = BatchProcessor(event_type=EventType.SQS)


@logger.inject_lambda_context
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> Any:
    return process_partial_response(event=event, record_handler=_execute_record, processor=_processor, context=context)


def _execute_record(record: SQSRecord) -> None:
    message = json.loads(record.body)
    call_id, attempt = message["id"], message["attempt"]
    done = runtime().run(execute_detached(runtime().context, call_id))
    count("executed" if done else "executed_already")
    logger.info("detached execution", extra={"invocation_id": call_id, "attempt": attempt, "done": done})

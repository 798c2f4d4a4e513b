"""headgate-execute: the SQS consumer. A message names an invocation that the drain dispatched; it is only a hint.

A duplicate, late or reordered message finds the invocation ended or under another attempt, and does nothing. The sweep
reclaims an execution that fails here. So a message goes back to SQS only if the table cannot be reached.
"""

from __future__ import annotations

import json
from typing import Any

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.typing import LambdaContext

from dispatcher.model.old_invocation import Invocation
from dispatcher.model.requests import request_from_json
from dispatcher.old_operations.execute import Render, execute_detached
from functions.observability import count, logger, metrics, tracer
from functions.rendering import rendering
from functions.runtime import runtime

processor = BatchProcessor(event_type=EventType.SQS)


@logger.inject_lambda_context
@tracer.capture_lambda_handler(capture_response=False)
@metrics.log_metrics
def handler(event: dict[str, Any], context: LambdaContext) -> Any:
    return process_partial_response(event=event, record_handler=execute_record, processor=processor, context=context)


@tracer.capture_method(capture_response=False)
def execute_record(record: SQSRecord) -> None:
    message = json.loads(record.body)
    tenant, invocation_id, attempt = message["tenant"], message["id"], message["attempt"]
    done = runtime().run(execute_detached(runtime().context, tenant, invocation_id, attempt, _render))
    count("executed" if done else "executed_already")
    logger.info("detached execution", extra={"invocation_id": invocation_id, "attempt": attempt, "done": done})


def _render(invocation: Invocation) -> Render:
    return rendering(invocation, chat=request_from_json(invocation.body or "{}").chat)

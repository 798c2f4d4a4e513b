"""What invokes a Lambda function by itself: the messages of an SQS queue, and a rate schedule as in EventBridge.

An event source mapping sends the messages of a queue in batches, as Lambda's pollers do. Messages of an answered batch
are deleted, except those that the answer reports as failed (ReportBatchItemFailures). If the whole batch failed, or the
function is at its concurrency, the messages stay and are visible again after the queue's visibility timeout. The queue
itself moves messages to a dead-letter queue.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from headgate.local.aws_lambda.invocation import ACCOUNT_ID, REGION, LambdaAnswer
from headgate.local.aws_lambda.pool import TooManyRequests

logger = logging.getLogger(__name__)

_LONG_POLL_S = 20
_PAUSE_AFTER_TROUBLE_S = 1.0

_Invoke = Callable[[bytes], Awaitable[LambdaAnswer]]
_Message = Mapping[str, Any]


@dataclass(frozen=True)
class QueueMapping:
    """A queue and its function. `batch_size`: most messages an event, up to 10. `concurrency`: most batches at once."""

    queue_url: str
    function_name: str
    batch_size: int = 10
    concurrency: int = 2
    report_batch_item_failures: bool = True


def sqs_event(messages: Sequence[_Message], queue_url: str) -> bytes:
    """Make the event that a function gets for these messages of SQS's ReceiveMessage."""
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT_ID}:{queue_url.rsplit('/', 1)[-1]}"
    records = [
        {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message.get("Attributes", {}),
            "messageAttributes": message.get("MessageAttributes", {}),
            "md5OfBody": message.get("MD5OfBody", ""),
            "eventSource": "aws:sqs",
            "eventSourceARN": arn,
            "awsRegion": REGION,
        }
        for message in messages
    ]
    return json.dumps({"Records": records}).encode()


def handled(messages: Sequence[_Message], answer: LambdaAnswer, report_failures: bool) -> list[_Message]:
    """Return the messages to delete: none if the answer reports a message that is not in the batch, as in Lambda."""
    if answer.function_error is not None:
        return []
    if not report_failures:
        return list(messages)
    try:
        failed = _failed_ids(json.loads(answer.payload))
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    if not failed <= {message["MessageId"] for message in messages}:
        return []
    return [message for message in messages if message["MessageId"] not in failed]


def _failed_ids(answer: Any) -> set[str]:
    failures = (answer or {}).get("batchItemFailures") or []
    return {failure["itemIdentifier"] for failure in failures}


class SqsQueue:
    """SQS for the poller, over httpx: a long poll can be cancelled at any moment, in a boto3 thread it could not."""

    def __init__(self, queue_url: str, endpoint_url: str, http: httpx.AsyncClient) -> None:
        self._queue_url = queue_url
        self._endpoint_url = endpoint_url
        self._http = http

    async def receive(self, count_max: int, wait_s: int) -> list[_Message]:
        parameters = {"MaxNumberOfMessages": count_max, "WaitTimeSeconds": wait_s, "AttributeNames": ["All"]}
        answer = await self._call("ReceiveMessage", {**parameters, "MessageAttributeNames": ["All"]})
        return list(answer.get("Messages") or [])

    async def delete(self, messages: Sequence[_Message]) -> None:
        entries = [{"Id": str(i), "ReceiptHandle": m["ReceiptHandle"]} for i, m in enumerate(messages)]
        if entries:
            await self._call("DeleteMessageBatch", {"Entries": entries})

    async def _call(self, action: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Call SQS. Raises httpx.HTTPError."""
        body = json.dumps({"QueueUrl": self._queue_url, **parameters})
        headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
        url = self._endpoint_url + "/"
        signed = AWSRequest("POST", url, headers=headers, data=body)
        SigV4Auth(Credentials("local", "local"), "sqs", REGION).add_auth(signed)
        answer = await self._http.post(url, content=body, headers=dict(signed.headers))
        answer.raise_for_status()
        result: dict[str, Any] = answer.json() if answer.content else {}
        return result


async def poll(mapping: QueueMapping, queue: SqsQueue, invoke: _Invoke) -> None:
    """Run `concurrency` pollers until cancelled, each with one batch at a time."""
    async with asyncio.TaskGroup() as group:
        for _ in range(mapping.concurrency):
            group.create_task(_poll_one_by_one(mapping, queue, invoke))


async def _poll_one_by_one(mapping: QueueMapping, queue: SqsQueue, invoke: _Invoke) -> None:
    while True:
        try:
            await carry_batch(mapping, queue, invoke)
        except (httpx.HTTPError, ValueError, TooManyRequests) as trouble:  # ValueError: the answer is not JSON
            logger.info("%s: batch left in the queue: %s", mapping.function_name, type(trouble).__name__)
            await asyncio.sleep(_PAUSE_AFTER_TROUBLE_S)


async def carry_batch(mapping: QueueMapping, queue: SqsQueue, invoke: _Invoke, wait_s: int = _LONG_POLL_S) -> int:
    """Send one batch to the function, delete its messages and return their number.

    Raises httpx.HTTPError and TooManyRequests; the batch is still in the queue then.
    """
    messages = await queue.receive(mapping.batch_size, wait_s)
    if not messages:
        return 0
    answer = await invoke(sqs_event(messages, mapping.queue_url))
    done = handled(messages, answer, mapping.report_batch_item_failures)
    await queue.delete(done)
    return len(done)


@dataclass(frozen=True)
class Schedule:
    """A function and the seconds between two events for it; EventBridge allows whole minutes only."""

    function_name: str
    every_s: float


def scheduled_event(schedule: Schedule, event_id: str, now: float) -> bytes:
    """Make the event that EventBridge sends for a rule. `now`: Unix seconds."""
    return json.dumps(
        {
            "version": "0",
            "id": event_id,
            "detail-type": "Scheduled Event",
            "source": "aws.events",
            "account": ACCOUNT_ID,
            "time": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "region": REGION,
            "resources": [f"arn:aws:events:{REGION}:{ACCOUNT_ID}:rule/{schedule.function_name}"],
            "detail": {},
        }
    ).encode()


async def tick(
    schedule: Schedule,
    fire: Callable[[bytes], Awaitable[object]],
    *,
    sleep: Callable[[float], Awaitable[None]],
    now: Callable[[], float],
    new_id: Callable[[], str],
) -> None:
    """Send events until cancelled. Each waits for the end of the one before, so that they do not pile up."""
    while True:
        await sleep(schedule.every_s)
        await fire(scheduled_event(schedule, new_id(), now()))

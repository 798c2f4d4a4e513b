"""What invokes functions besides callers: a queue's messages and a schedule."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.local.aws import Wiring
from headgate.local.aws_lambda.invocation import LambdaAnswer
from headgate.local.aws_lambda.pool import TooManyRequests
from headgate.local.aws_lambda.triggers import QueueMapping, Schedule, SqsQueue, carry_batch, handled, sqs_event, tick
from tests.local.aws_fixtures import function, local_aws
from tests.support.hang_guard import HANG_S
from tests.support.local.aws import aws_client

BATCH = [{"MessageId": str(n), "ReceiptHandle": f"r{n}", "Body": "b", "Attributes": {}} for n in range(4)]


def answer(value: object, error: str | None = None) -> LambdaAnswer:
    return LambdaAnswer(json.dumps(value).encode(), error)


def failures(*identifiers: object) -> LambdaAnswer:
    return answer({"batchItemFailures": [{"itemIdentifier": identifier} for identifier in identifiers]})


@given(st.sets(st.sampled_from("0123")))
def test_what_is_not_reported_as_failed_is_handled(failed: set[str]) -> None:
    done = {message["MessageId"] for message in handled(BATCH, failures(*failed), report_failures=True)}
    assert done == {"0", "1", "2", "3"} - failed


@pytest.mark.parametrize("reply", [answer(None), answer({}), answer({"batchItemFailures": None}), failures()])
def test_an_answer_that_reports_nothing_handled_everything(reply: LambdaAnswer) -> None:
    assert handled(BATCH, reply, report_failures=True) == BATCH


@pytest.mark.parametrize(
    "reply",
    [
        failures("9"),
        failures("0", ""),
        failures(None),
        answer({"batchItemFailures": [{}]}),
        answer({"batchItemFailures": 3}),
        answer([1]),
        answer("text"),
        answer({}, "Unhandled"),
    ],
)
def test_an_answer_that_makes_no_sense_handled_nothing(reply: LambdaAnswer) -> None:
    assert handled(BATCH, reply, report_failures=True) == []


def test_without_reports_only_an_error_counts() -> None:
    assert handled(BATCH, failures("0"), report_failures=False) == BATCH
    assert handled(BATCH, answer({}, "Unhandled"), report_failures=False) == []


def test_the_event_has_lambda_s_shape() -> None:
    record = json.loads(sqs_event(BATCH[:1], "http://here/123456789012/work"))["Records"][0]
    assert (record["messageId"], record["body"], record["eventSource"]) == ("0", "b", "aws:sqs")
    assert record["eventSourceARN"] == "arn:aws:sqs:us-east-1:123456789012:work"


@pytest.fixture
def sqs(moto_url: str) -> Any:
    return aws_client("sqs", moto_url)


@pytest.fixture
def queue_url(sqs: Any, request: pytest.FixtureRequest) -> str:
    return str(sqs.create_queue(QueueName=f"q-{request.node.name[:40]}")["QueueUrl"])


def left(sqs: Any, queue_url: str) -> int:
    """Messages in the queue, visible or in flight."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    return sum(
        int(n) for n in sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=names)["Attributes"].values()
    )


async def test_a_batch_is_carried_and_its_failures_stay(sqs: Any, queue_url: str, moto_url: str) -> None:
    for body in ("good", "bad", "good"):
        sqs.send_message(QueueUrl=queue_url, MessageBody=body)

    async def invoke(payload: bytes) -> LambdaAnswer:
        return failures(*(r["messageId"] for r in json.loads(payload)["Records"] if r["body"] == "bad"))

    async with httpx.AsyncClient(timeout=HANG_S) as http:
        queue = SqsQueue(queue_url, moto_url, http)
        assert await carry_batch(QueueMapping(queue_url, "f"), queue, invoke) == 2
        assert await carry_batch(QueueMapping(queue_url, "f"), queue, invoke, wait_s=0) == 0
    assert left(sqs, queue_url) == 1


async def test_a_function_at_its_concurrency_leaves_the_batch(sqs: Any, queue_url: str, moto_url: str) -> None:
    sqs.send_message(QueueUrl=queue_url, MessageBody="wait")

    async def busy(payload: bytes) -> LambdaAnswer:
        raise TooManyRequests("f")

    async with httpx.AsyncClient(timeout=HANG_S) as http:
        with pytest.raises(TooManyRequests):
            await carry_batch(QueueMapping(queue_url, "f"), SqsQueue(queue_url, moto_url, http), busy)
    assert left(sqs, queue_url) == 1


@pytest.mark.stack
async def test_messages_reach_a_real_handler(tmp_path: Path, sqs: Any, queue_url: str, moto_url: str) -> None:
    arrived = tmp_path / "arrived"
    functions = [function("note", environment={"TEST_FILE": str(arrived)})]
    wiring = Wiring(functions, queues=[QueueMapping(queue_url, "note", batch_size=1)])
    os.mkfifo(arrived)
    sqs.send_message(QueueUrl=queue_url, MessageBody="over here")
    async with local_aws(tmp_path, functions, moto_url, wiring=wiring):
        assert await asyncio.to_thread(arrived.read_text) == "over here"


async def test_a_schedule_fires_each_interval_and_never_two_at_once() -> None:
    clock = {"now": 1_000.0}
    fired: list[dict[str, Any]] = []

    async def sleep(seconds: float) -> None:
        clock["now"] += seconds

    async def fire(event: bytes) -> None:
        fired.append(json.loads(event))
        if len(fired) == 3:
            raise asyncio.CancelledError

    ids = iter("abc")
    with pytest.raises(asyncio.CancelledError):
        await tick(Schedule("sweep", 60.0), fire, sleep=sleep, now=lambda: clock["now"], new_id=lambda: next(ids))
    assert [event["id"] for event in fired] == ["a", "b", "c"]
    assert [event["time"] for event in fired] == [
        "1970-01-01T00:17:40Z",
        "1970-01-01T00:18:40Z",
        "1970-01-01T00:19:40Z",
    ]
    assert {event["source"] for event in fired} == {"aws.events"}

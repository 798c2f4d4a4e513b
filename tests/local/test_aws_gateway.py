"""One endpoint for every service: the SDK needs AWS_ENDPOINT_URL and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.local.aws import service_of
from tests.local.aws_fixtures import call, function, local_aws
from tests.support.hang_guard import HANG_S
from tests.support.local.aws import aws_client

SIGNED = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/{}/aws4_request, SignedHeaders=host, Signature=0"


def test_the_signature_names_the_service() -> None:
    assert service_of(SIGNED.format("lambda"), None) == "lambda"
    assert service_of(SIGNED.format("monitoring"), None) == "monitoring"
    assert service_of(None, "key/20260101/eu-west-1/s3/aws4_request") == "s3"


@given(st.none() | st.text(), st.none() | st.text())
def test_nothing_else_names_one(authorization: str | None, credential: str | None) -> None:
    assert service_of(authorization, credential) is None


@pytest.mark.parametrize("authorization", [None, "Bearer hg-key", "AWS key:signature"])
async def test_unsigned_requests_are_refused_in_aws_s_shape(tmp_path: Path, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    async with local_aws(tmp_path, []) as (_, url), httpx.AsyncClient(timeout=HANG_S) as http:
        answer = await http.post(url + "/2015-03-31/functions/echo/invocations", json={}, headers=headers)
    assert answer.status_code == 403
    assert answer.headers["x-amzn-errortype"] == answer.json()["__type"] == "MissingAuthenticationTokenException"
    assert "Signature Version 4" in answer.json()["message"]


async def test_a_dead_backend_is_a_503(tmp_path: Path) -> None:
    async with local_aws(tmp_path, []) as (_, url):
        api = aws_client("dynamodb", url)
        with pytest.raises(api.exceptions.ClientError, match="ServiceUnavailable"):
            await call(api.list_tables)


SCRIPT = """
import boto3, json
queue = boto3.client("sqs").create_queue(QueueName="q")["QueueUrl"]
boto3.client("sqs").send_message(QueueUrl=queue, MessageBody="grüße & more = %20")
received = boto3.client("sqs").receive_message(QueueUrl=queue)["Messages"][0]["Body"]
boto3.client("cloudwatch").put_metric_data(Namespace="n", MetricData=[{"MetricName": "m", "Value": 1}])
metrics = boto3.client("cloudwatch").list_metrics(Namespace="n")["Metrics"][0]["MetricName"]
boto3.client("dynamodb").create_table(
    TableName="seen-by-both", BillingMode="PAY_PER_REQUEST",
    AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}],
    KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
)
tables = json.load(boto3.client("lambda").invoke(FunctionName="count_tables")["Payload"])
print(json.dumps([queue, received, metrics, tables]))
"""


@pytest.mark.stack
async def test_an_unmodified_sdk_needs_one_variable(tmp_path: Path, moto_url: str) -> None:
    functions = [function("count_tables", environment={"AWS_ENDPOINT_URL": moto_url})]
    async with local_aws(tmp_path, functions, moto_url) as (aws, url):
        await aws.prewarm("count_tables", 1)  # the SDK below waits for an answer no longer than it does by default
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "thing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        command = [sys.executable, "-c", SCRIPT]
        ran = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, timeout=HANG_S)
    assert ran.returncode == 0, ran.stderr.decode()
    queue, received, metric, tables = json.loads(ran.stdout)
    assert queue.startswith(url), "a queue's URL must lead back to the gateway"
    assert (received, metric) == ("grüße & more = %20", "m")
    assert tables == ["seen-by-both"]


async def test_a_dynamodb_of_its_own(tmp_path: Path, moto_url: str) -> None:
    """`dynamodb_url` takes DynamoDB alone elsewhere: here the rest goes nowhere."""
    async with local_aws(tmp_path, [], dynamodb_url=moto_url) as (_, url):
        assert "TableNames" in await call(aws_client("dynamodb", url).list_tables)
        sqs = aws_client("sqs", url)
        with pytest.raises(sqs.exceptions.ClientError, match="ServiceUnavailable"):
            await call(sqs.list_queues)

"""The files of a pool's model in S3, against moto. moto stores real bytes, so the sizes are played."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from headgate.deployment.pool import Pool
from headgate.doctor.before import check_weights
from headgate.doctor.finding import CheckResult

GB = 10**9


def pool(**fields: Any) -> Pool:
    return Pool.model_validate({"model": "s3://models/llama/", **fields})


def s3() -> Any:
    return boto3.client("s3", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y")


@pytest.mark.parametrize(
    ("sizes", "fields", "result", "seen"),
    [
        ({"a.safetensors": 16 * GB, "config.json": 1}, {}, CheckResult.OK, "16.0 GB of weights fit into 1 GPU(s)"),
        ({"a.safetensors": 30 * GB, "b.safetensors": 30 * GB}, {}, CheckResult.FAILED, "g6e.xlarge have 43"),
        ({"a.safetensors": 16 * GB, "x.onnx": 300 * GB}, {}, CheckResult.FAILED, "the disk of g6e.xlarge has 250"),
        ({"config.json": 1}, {}, CheckResult.FAILED, "no weights in its 1 files"),
        ({}, {}, CheckResult.FAILED, "no weights in its 0 files"),
        (
            {"a.bin": 140 * GB},
            {"instance_types": ["g6e.12xlarge"], "tensor_parallel": 4},
            CheckResult.OK,
            "140.0 GB of weights fit into 4 GPU(s)",
        ),
    ],
)
def test_the_files_of_a_model(sizes: dict[str, int], fields: dict[str, Any], result: CheckResult, seen: str) -> None:
    client = s3()
    contents = [{"Key": f"llama/{name}", "Size": size} for name, size in sizes.items()]
    stubber = Stubber(client)
    stubber.add_response("list_objects_v2", {"Contents": contents}, {"Bucket": "models", "Prefix": "llama/"})
    with stubber:
        found = check_weights(client, "chat", pool(**fields))
    assert (found.result, seen in found.seen) == (result, True), found


def test_a_bucket_that_cannot_be_read_is_a_warning() -> None:
    with mock_aws():
        found = check_weights(s3(), "chat", pool())
    assert (found.result, "NoSuchBucket" in found.seen) == (CheckResult.WARNING, True)


def test_real_files_are_listed() -> None:
    with mock_aws():
        client = s3()
        client.create_bucket(Bucket="models")
        client.put_object(Bucket="models", Key="llama/model.safetensors", Body=b"x" * 1000)
        client.put_object(Bucket="models", Key="llama-2/other.safetensors", Body=b"x")
        assert check_weights(client, "chat", pool()).result is CheckResult.OK

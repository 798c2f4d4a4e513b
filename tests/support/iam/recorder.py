"""moto behind a recorder, and the calls that one HTTP request to AWS makes as IAM sees them: action, resource and
condition keys.

A transaction is authorized by the actions of its parts, and an upload in parts by s3:PutObject. A request's signature
names an access key, and each process has the key of its role.
"""

from __future__ import annotations

import io
import json
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote

from moto.moto_api._internal.models import moto_api_backend

from headgate.local.aws_lambda.invocation import ACCOUNT_ID, REGION
from tests.support.iam.policies import LEADING_KEYS, Call
from tests.support.local.aws import moto_server

PARTITION = "pk"
PLACE = f"{REGION}:{ACCOUNT_ID}"
TRANSACTION_PARTS = {"Put": "PutItem", "Update": "UpdateItem", "Delete": "DeleteItem"}
TRANSACTION_PARTS |= {"ConditionCheck": "ConditionCheckItem", "Get": "GetItem"}
S3_ACTIONS = {
    ("GET", False): "s3:GetObject",
    ("HEAD", False): "s3:GetObject",
    ("PUT", False): "s3:PutObject",
    ("POST", True): "s3:PutObject",
    ("PUT", True): "s3:PutObject",
    ("DELETE", False): "s3:DeleteObject",
    ("DELETE", True): "s3:AbortMultipartUpload",
}
"""By method, and by whether the request is one of an upload in parts."""
SECRET_SUFFIX = re.compile(r"-[A-Za-z0-9]{6}$")
"""Secrets Manager adds it to the name in an ARN."""


class Unreadable(Exception):
    """A request that this module cannot read."""


def calls_of(method: str, path: str, query: str, target: str, body: bytes) -> list[Call]:
    """Return the calls. `target`: the header X-Amz-Target; empty for S3. Raises Unreadable."""
    if not target:
        return [_s3(method, unquote(path), parse_qs(query, keep_blank_values=True))]
    service, _, operation = target.rpartition(".")
    fields = json.loads(body)
    if service == "DynamoDB_20120810":
        return list(_dynamodb(operation, fields))
    if service == "AmazonSQS":
        queue = fields["QueueUrl"].rsplit("/", 1)[-1]
        return [Call(f"sqs:{operation.removesuffix('Batch')}", f"arn:aws:sqs:{PLACE}:{queue}")]
    if service == "secretsmanager":
        return [Call(f"secretsmanager:{operation}", SECRET_SUFFIX.sub("", fields["SecretId"]))]
    if service == "AmazonEC2ContainerServiceV20141113":
        kind, names = _of_cluster(fields)
        place = f"arn:aws:ecs:{PLACE}:{kind}/{fields['cluster']}"
        return [Call(f"ecs:{operation}", f"{place}/{name}") for name in names]
    raise Unreadable(target)


def _of_cluster(fields: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the kind and the names of what a call to ECS concerns."""
    if "tasks" in fields:
        return "task", fields["tasks"]
    return "service", fields["services"] if "services" in fields else [fields["service"]]


def _dynamodb(operation: str, fields: Mapping[str, Any]) -> Iterator[Call]:
    if operation in ("TransactWriteItems", "TransactGetItems"):
        for each in fields["TransactItems"]:
            ((kind, part),) = each.items()
            yield from _dynamodb(TRANSACTION_PARTS[kind], part)
    elif operation in ("BatchGetItem", "BatchWriteItem"):
        for table, wanted in fields["RequestItems"].items():
            parts = wanted["Keys"] if "Keys" in wanted else [next(iter(each.values())) for each in wanted]
            yield _table_call(
                operation, table, [_partition(each.get("Key") or each.get("Item") or each) for each in parts]
            )
    elif operation == "Query":
        yield _table_call(operation, _place(fields), [_queried(fields)])
    elif operation == "Scan":
        yield _table_call(operation, _place(fields), [])
    elif operation in ("GetItem", "PutItem", "UpdateItem", "DeleteItem", "ConditionCheckItem"):
        yield _table_call(operation, _place(fields), [_partition(fields.get("Item") or fields["Key"])])
    else:
        raise Unreadable(operation)


def _place(fields: Mapping[str, Any]) -> str:
    index = fields.get("IndexName")
    return f"{fields['TableName']}/index/{index}" if index else str(fields["TableName"])


def _table_call(operation: str, place: str, keys: list[str]) -> Call:
    context = ((LEADING_KEYS, tuple(sorted(keys))),) if keys else ()
    return Call(f"dynamodb:{operation}", f"arn:aws:dynamodb:{PLACE}:table/{place}", context)


def _partition(item: Mapping[str, Any]) -> str:
    return str(item[PARTITION]["S"])


def _queried(fields: Mapping[str, Any]) -> str:
    """Return the partition key of a query, which its condition compares by `=`."""
    names = fields.get("ExpressionAttributeNames", {})
    for name, value in re.findall(r"(#?\w+)\s*=\s*(:\w+)", fields["KeyConditionExpression"]):
        if names.get(name, name) == PARTITION:
            return str(fields["ExpressionAttributeValues"][value]["S"])
    raise Unreadable(fields["KeyConditionExpression"])


def _s3(method: str, path: str, query: Mapping[str, list[str]]) -> Call:
    bucket, _, key = path.strip("/").partition("/")
    if not key:
        if method != "GET" or "list-type" not in query:
            raise Unreadable(f"{method} {path} {sorted(query)}")
        return Call("s3:ListBucket", f"arn:aws:s3:::{bucket}", (("s3:prefix", tuple(query["prefix"])),))
    action = S3_ACTIONS[method, bool(query.keys() & {"uploadId", "uploads"})]
    return Call(action, f"arn:aws:s3:::{bucket}/{key}")


ACCESS_KEY = re.compile(r"Credential=([^/,\s]+)/")
OWN_KEY = "any"
"""The access key of the test itself. Its calls are not recorded."""


class Recorder:
    """A WSGI application around moto's. `calls`: by access key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.calls: dict[str, set[Call]] = defaultdict(set)
        self.unread: list[str] = []
        """Requests that could not be read. A complete recording has none."""

    def around(self, app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
        """Return the application that records the requests to `app`."""
        self._app = app
        return self

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"].read()
        environ["wsgi.input"] = io.BytesIO(body)
        if len(body) == int(environ.get("CONTENT_LENGTH") or 0):  # a killed process leaves a part of a request
            self._record(environ, body)
        return self._app(environ, start_response)

    def _record(self, environ: dict[str, Any], body: bytes) -> None:
        found = ACCESS_KEY.search(environ.get("HTTP_AUTHORIZATION", ""))
        role = found[1] if found else "unsigned"
        if role == OWN_KEY:
            return
        method, path, target = environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("HTTP_X_AMZ_TARGET", "")
        try:
            calls = calls_of(method, path, environ.get("QUERY_STRING", ""), target, body)
        except Exception as error:
            self.unread.append(f"{role}: {method} {path} {target}: {error!r}")
            return
        with self._lock:
            self.calls[role].update(calls)


@contextmanager
def recording_moto() -> Iterator[tuple[str, Recorder]]:
    """Serve moto in a thread until the block ends; yield its URL and the recorder. At the end forget all resources:
    every moto of this process has the same ones."""
    recorder = Recorder()
    try:
        with moto_server(recorder.around) as url:
            yield url, recorder
    finally:
        moto_api_backend.reset()

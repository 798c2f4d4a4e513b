"""moto as this project serves it: exact under threads, transactions whole or not at all, connections kept."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.dynamodb.models import DynamoDBBackend

from tests.support.local.aws import aws_client

TABLE = "things"


@pytest.fixture
def dynamodb(moto_url: str) -> Iterator[Any]:
    made = aws_client("dynamodb", moto_url, max_pool_connections=16)
    attributes = [{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk", "group")]
    made.create_table(
        TableName=TABLE,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=attributes,
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "by-group",
                "KeySchema": [
                    {"AttributeName": "group", "KeyType": "HASH"},
                    {"AttributeName": "sk", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "ALL"},
            }
        ],
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )
    yield made
    made.delete_table(TableName=TABLE)


def key(pk: str, sk: str = "s") -> dict[str, Any]:
    return {"pk": {"S": pk}, "sk": {"S": sk}}


def put(dynamodb: Any, pk: str, sk: str = "s", **attributes: str) -> None:
    dynamodb.put_item(TableName=TABLE, Item={**key(pk, sk), **{name: {"S": v} for name, v in attributes.items()}})


def everything(dynamodb: Any) -> list[dict[str, Any]]:
    items = dynamodb.scan(TableName=TABLE)["Items"]
    return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))


def add_one(dynamodb: Any) -> None:
    dynamodb.update_item(
        TableName=TABLE, Key=key("counter"), UpdateExpression="ADD n :o", ExpressionAttributeValues={":o": {"N": "1"}}
    )


def transact_one(dynamodb: Any, number: int) -> None:
    """Adds one and records it; every third is refused by its condition."""
    operations: list[Any] = [
        {
            "Update": {
                "TableName": TABLE,
                "Key": key("counter"),
                "UpdateExpression": "ADD n :o",
                "ExpressionAttributeValues": {":o": {"N": "1"}},
            }
        },
        {"Put": {"TableName": TABLE, "Item": key("done", str(number))}},
        {"ConditionCheck": {"TableName": TABLE, "Key": key("guard"), "ConditionExpression": "attribute_exists(pk)"}},
    ]
    if number % 3 == 0:
        operations[2]["ConditionCheck"]["ConditionExpression"] = "attribute_not_exists(pk)"
    dynamodb.transact_write_items(TransactItems=operations)


def test_no_update_is_lost_among_threads(dynamodb: Any) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: add_one(dynamodb), range(200)))
    assert dynamodb.get_item(TableName=TABLE, Key=key("counter"))["Item"]["n"] == {"N": "200"}


def test_requests_never_overlap(dynamodb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losing an update takes luck; overlapping does not, once each request lets the others run."""
    inside: list[int] = []
    overlaps: list[int] = []
    original = DynamoDBBackend.update_item

    def slow(self: Any, *args: Any, **kwargs: Any) -> Any:
        inside.append(1)
        overlaps.append(len(inside))
        threading.Event().wait(0.005)
        try:
            return original(self, *args, **kwargs)
        finally:
            inside.pop()

    monkeypatch.setattr(DynamoDBBackend, "update_item", slow)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: add_one(dynamodb), range(24)))
    assert overlaps == [1] * 24


def test_refused_transactions_leave_nothing_and_take_nothing_among_threads(dynamodb: Any) -> None:
    put(dynamodb, "guard")

    def one(number: int) -> bool:
        try:
            transact_one(dynamodb, number)
        except dynamodb.exceptions.TransactionCanceledException:
            add_one(dynamodb)  # a plain write, between others' transactions
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        committed = sum(threads.map(one, range(90)))
    assert committed == 60
    assert dynamodb.get_item(TableName=TABLE, Key=key("counter"))["Item"]["n"] == {"N": "90"}
    done = dynamodb.query(
        TableName=TABLE, KeyConditionExpression="pk = :p", ExpressionAttributeValues={":p": {"S": "done"}}
    )
    assert {int(item["sk"]["S"]) % 3 for item in done["Items"]} == {1, 2}
    assert done["Count"] == 60


@pytest.mark.parametrize("last", ["condition", "same item twice", "bad expression", "no such table"])
def test_a_failed_transaction_puts_back_every_kind_of_write(dynamodb: Any, last: str) -> None:
    for name in ("replaced", "updated", "deleted"):
        put(dynamodb, name, text="as it was")
    before = everything(dynamodb)
    stream = dynamodb.describe_table(TableName=TABLE)["Table"]["LatestStreamArn"]
    condition = {"Key": key("absent"), "ConditionExpression": "attribute_exists(pk)"}
    failing = {
        "condition": {"ConditionCheck": {"TableName": TABLE, **condition}},
        "same item twice": {"Delete": {"TableName": TABLE, "Key": key("new")}},
        "bad expression": {"Update": {"TableName": TABLE, "Key": key("also new"), "UpdateExpression": "SET a = :gone"}},
        "no such table": {"Put": {"TableName": "nowhere", "Item": key("x")}},
    }[last]
    with pytest.raises(ClientError):
        dynamodb.transact_write_items(
            TransactItems=[
                {"Put": {"TableName": TABLE, "Item": {**key("replaced"), "text": {"S": "changed"}}}},
                {
                    "Update": {
                        "TableName": TABLE,
                        "Key": key("updated"),
                        "UpdateExpression": "SET #t = :v, more = :v",
                        "ExpressionAttributeNames": {"#t": "text"},
                        "ExpressionAttributeValues": {":v": {"S": "changed"}},
                    }
                },
                {"Delete": {"TableName": TABLE, "Key": key("deleted")}},
                {"Put": {"TableName": TABLE, "Item": key("new")}},
                failing,
            ]
        )
    assert everything(dynamodb) == before
    assert len(stream_records(dynamodb, stream)) == 3


def stream_records(dynamodb: Any, arn: str) -> list[Any]:
    streams = aws_client("dynamodbstreams", dynamodb.meta.endpoint_url)
    shard = streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"][0]["ShardId"]
    begin = streams.get_shard_iterator(StreamArn=arn, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    return list(streams.get_records(ShardIterator=begin["ShardIterator"])["Records"])


def test_queries_see_their_partition_or_their_group_in_order(dynamodb: Any) -> None:
    for number in range(30):
        put(dynamodb, f"p{number % 3}", f"{number:02}", group=f"g{number % 2}")
    put(dynamodb, "p0", "99")  # in no group

    def sort_keys(value: str, **more: Any) -> list[str]:
        answer = dynamodb.query(TableName=TABLE, ExpressionAttributeValues={":v": {"S": value}}, **more)
        return [item["sk"]["S"] for item in answer["Items"]]

    by_key = {"KeyConditionExpression": "pk = :v"}
    assert sort_keys("p0", **by_key) == [f"{number:02}" for number in range(0, 30, 3)] + ["99"]
    assert sort_keys("p0", **by_key, ScanIndexForward=False, Limit=2) == ["99", "27"]
    assert sort_keys("none", **by_key) == []
    by_group = {
        "IndexName": "by-group",
        "KeyConditionExpression": "#g = :v",
        "ExpressionAttributeNames": {"#g": "group"},
    }
    assert sort_keys("g1", **by_group) == [f"{number:02}" for number in range(1, 30, 2)]
    assert sort_keys("g1", **by_group, Limit=1) == ["01"]
    pages = dynamodb.get_paginator("query").paginate(
        TableName=TABLE, ExpressionAttributeValues={":v": {"S": "g0"}}, PaginationConfig={"PageSize": 4}, **by_group
    )
    paged = [item["sk"]["S"] for page in pages for item in page["Items"]]
    assert paged == [f"{number:02}" for number in range(0, 30, 2)]


def test_one_connection_serves_many_requests_even_when_a_body_is_not_read(moto_url: str) -> None:
    connection = http.client.HTTPConnection(moto_url.removeprefix("http://"))
    headers = {"X-Amz-Target": "DynamoDB_20120810.ListTables", "Authorization": AUTHORIZATION}
    for path, body in (("/", b"{}"), ("/moto-api/none", b"unread" * 1000), ("/", iter([b"{", b"}"]))):
        chunked = not isinstance(body, bytes)
        connection.request("POST", path, body, headers, encode_chunked=chunked)
        used = connection.sock
        answer = connection.getresponse()
        answer.read()
        assert connection.sock is used
        assert answer.status == (200 if path == "/" else 404)
    connection.close()


AUTHORIZATION = (
    "AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0"
)

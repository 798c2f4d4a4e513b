"""The evaluator of policies, and the reader of requests, by examples of IAM's rules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.iam.policies import LEADING_KEYS, Call, Grant, Names, Unsupported, allows, unused
from tests.support.iam.recorder import Unreadable, calls_of

TABLE = "arn:aws:dynamodb:us-east-1:123456789012:table/t"
CONDITION = {"ForAllValues:StringLike": {LEADING_KEYS: ["LOG#*", "INV#?"]}, "Null": {LEADING_KEYS: "false"}}
STATEMENT: dict[str, Any] = {"Effect": "Allow", "Action": ["dynamodb:Get*"], "Resource": TABLE, "Condition": CONDITION}


def get(*keys: str, action: str = "dynamodb:GetItem", table: str = TABLE) -> Call:
    return Call(action, table, ((LEADING_KEYS, keys),) if keys else ())


@pytest.mark.parametrize("call", [get("LOG#a"), get("LOG#"), get("INV#1"), get("LOG#a", "INV#1")])
def test_a_fitting_call_is_allowed(call: Call) -> None:
    assert allows([STATEMENT], call)


@pytest.mark.parametrize(
    "call",
    [
        get("INV#12"),
        get("log#a"),
        get("LOG#a", "TENANTS"),
        get(),
        get("LOG#a", action="dynamodb:PutItem"),
        get("LOG#a", table=f"{TABLE}/index/i"),
        get("LOG#a", table=f"{TABLE}2"),
    ],
)
def test_any_other_call_is_refused(call: Call) -> None:
    assert not allows([STATEMENT], call)


def test_without_null_a_call_without_keys_is_allowed() -> None:
    condition = {"ForAllValues:StringLike": CONDITION["ForAllValues:StringLike"]}
    assert allows([{**STATEMENT, "Condition": condition}], get())


def test_an_explicit_deny_wins() -> None:
    deny = {"Effect": "Deny", "Action": "*", "Resource": "*"}
    assert not allows([STATEMENT, deny], get("LOG#a"))
    assert not allows([deny, STATEMENT], get("LOG#a"))


def test_actions_have_no_case_and_resources_have() -> None:
    assert allows([STATEMENT], get("LOG#a", action="DynamoDB:getitem"))
    assert not allows([STATEMENT], get("LOG#a", table=TABLE.upper()))


@pytest.mark.parametrize(
    "statement",
    [
        {**STATEMENT, "Condition": {"StringEquals": {"aws:SourceVpc": "v"}}},
        {"Effect": "Allow", "NotAction": "s3:*", "Resource": "*"},
        {"Effect": "Allow", "Action": "s3:GetObject", "NotResource": "*"},
        {**STATEMENT, "Resource": {"Ref": "Table"}},
    ],
)
def test_what_is_not_known_is_no_silent_pass(statement: dict[str, Any]) -> None:
    with pytest.raises((Unsupported, KeyError)):
        allows([statement], get("LOG#a"))


def test_unused_grants_are_named_by_partition() -> None:
    both = {**STATEMENT, "Action": ["dynamodb:GetItem", "dynamodb:Query"]}
    queries = {Grant("dynamodb:Query", TABLE, key) for key in ("LOG#*", "INV#?")}
    assert unused([both], [get("LOG#a")]) == {Grant("dynamodb:GetItem", TABLE, "INV#?"), *queries}


def dynamodb(operation: str, **fields: Any) -> list[Call]:
    return calls_of("POST", "/", "", f"DynamoDB_20120810.{operation}", json.dumps(fields).encode())


def test_a_transaction_is_its_parts() -> None:
    key = {"pk": {"S": "INV#1"}, "sk": {"S": "x"}}
    put, check = {"TableName": "t", "Item": key}, {"TableName": "t", "Key": key}
    found = dynamodb("TransactWriteItems", TransactItems=[{"Put": put}, {"ConditionCheck": check}, {"Delete": check}])
    assert found == [
        get("INV#1", action=f"dynamodb:{name}") for name in ("PutItem", "ConditionCheckItem", "DeleteItem")
    ]


def test_a_batch_names_all_its_partitions() -> None:
    keys = [{"pk": {"S": "LOG#a"}}, {"pk": {"S": "INV#1"}}]
    found = dynamodb("BatchGetItem", RequestItems={"t": {"Keys": keys}})
    assert found == [get("INV#1", "LOG#a", action="dynamodb:BatchGetItem")]


def test_a_query_names_its_partition_and_a_scan_none() -> None:
    names, values = {"#a": "sk", "#b": "pk"}, {":x": {"S": "1"}, ":y": {"S": "LOG#a"}}
    asked = {"ExpressionAttributeNames": names, "ExpressionAttributeValues": values}
    found = dynamodb("Query", TableName="t", KeyConditionExpression="#a = :x AND #b = :y", **asked)
    assert found == [get("LOG#a", action="dynamodb:Query")]
    assert dynamodb("Scan", TableName="t", IndexName="i") == [get(action="dynamodb:Scan", table=f"{TABLE}/index/i")]


@pytest.mark.parametrize(
    ("method", "query", "action"),
    [
        ("GET", "", "s3:GetObject"),
        ("HEAD", "", "s3:GetObject"),
        ("PUT", "partNumber=1&uploadId=u", "s3:PutObject"),
        ("POST", "uploads", "s3:PutObject"),
        ("DELETE", "", "s3:DeleteObject"),
        ("DELETE", "uploadId=u", "s3:AbortMultipartUpload"),
    ],
)
def test_requests_to_s3_have_the_actions_of_iam(method: str, query: str, action: str) -> None:
    assert calls_of(method, "/files/a%20b", query, "", b"") == [Call(action, "arn:aws:s3:::files/a b")]


def test_an_unknown_request_is_an_error() -> None:
    with pytest.raises(Unreadable):
        dynamodb("CreateTable", TableName="t")
    with pytest.raises(Unreadable):
        calls_of("POST", "/", "", "Kinesis_20131202.PutRecord", b"{}")


def test_intrinsic_functions_become_names() -> None:
    names = Names({"Resources": {"T": {"Type": "AWS::DynamoDB::Table"}, "Q": {"Type": "AWS::SQS::Queue"}}})
    assert names.resolved({"Fn::GetAtt": ["T", "Arn"]}) == TABLE
    assert names.resolved({"Fn::Join": ["/", [{"Ref": "AWS::Region"}, {"Ref": "Q"}]]}) == "us-east-1/q"
    with pytest.raises(KeyError):
        names.resolved({"Fn::GetAtt": ["T", "StreamArn"]})

"""`headgate tenants` through headgate-admin, in the local stack: real Lambda runtime, unmodified boto3, moto's STS."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headgate.cli.tenants.admin_function import FunctionAdmin
from headgate.local.seed import session
from tests.support.local.stack import Running, run_json

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]
IDENTITY = {"url": "u", "headers": {}}
UNKNOWN = {"do": "create", "tenant": "fast", "settings": {"slo_class": "fast"}}
ACTOR = "arn:aws:sts::123456789012:user/moto"
"""The identity of all credentials in moto."""


def tenants(stack: Running, *arguments: str) -> dict[str, Any]:
    """Run the command as an administrator, who can reach the function and not the table."""
    variables = {
        "AWS_ENDPOINT_URL": stack.aws_endpoint_url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "HEADGATE_ADMIN_FUNCTION": "headgate-admin",
        "HEADGATE_TABLE": "no-such-table",
    }
    return run_json("tenants", *arguments, environment={**os.environ, **variables})


def invoked(stack: Running, payload: object) -> dict[str, Any]:
    reply = stack.aws("lambda").invoke(FunctionName="headgate-admin", Payload=json.dumps(payload).encode())
    assert "FunctionError" not in reply
    found: dict[str, Any] = json.loads(reply["Payload"].read())
    return found


def test_a_tenants_life_through_the_function(stack: Running, tmp_path: Path) -> None:
    key = tenants(stack, "create", "acme", "--weight", "2", "--model", stack.model)["api_key"]
    body = {"api_key": key, "model": stack.model, "prompt": "hello", "max_tokens": 3}
    assert "choices" in stack.invoke(body)
    tenants(stack, "set", "acme", "--rate", "40", "--burst", "100", "--tier", "premium")
    shown = tenants(stack, "show", "acme")
    assert shown["terms"] == {"weight": 2.0, "rate_per_s": 40.0, "burst": 100.0}
    assert (shown["tier"], shown["models"]) == ("premium", [stack.model])
    second = tenants(stack, "rotate-key", "acme", "--expires-in", "90d")["api_key"]
    assert len(tenants(stack, "keys", "acme")["keys"]) == 2
    tenants(stack, "revoke-key", "acme", shown["keys"][0])
    (left,) = tenants(stack, "keys", "acme")["keys"]
    assert second.startswith(left["prefix"])
    file = tmp_path / "tenants.yaml"
    file.write_text("tenants:\n  acme: {weight: 3}\n  beta: {}\n")
    assert set(tenants(stack, "apply", str(file), "--yes")["api_keys"]) == {"beta"}
    tenants(stack, "delete", "acme")
    assert "acme" not in {each["name"] for each in tenants(stack, "list")["tenants"]}
    records = tenants(stack, "audit", "acme")["records"]
    assert {record["actor"] for record in records} == {ACTOR}
    assert [record["action"] for record in records if record["action"].startswith("tenant.")] == [
        "tenant.create",
        "tenant.change",
        "tenant.change",
        "tenant.delete",
    ]
    assert key not in json.dumps(records)


def test_an_unknown_slo_class_is_refused(stack: Running) -> None:
    answer = invoked(stack, {"identity": FunctionAdmin("headgate-admin", session()).identity(), "command": UNKNOWN})
    assert "no SLO class 'fast'" in answer["error"]


WRONG: list[tuple[object, str]] = [
    ({}, "identity"),
    ({"identity": IDENTITY, "command": {"do": "list"}}, "no signed GetCallerIdentity"),
    ({"identity": IDENTITY, "command": {"do": "drop"}}, "do"),
    ({"identity": IDENTITY, "command": {"do": "delete"}}, "tenant"),
    ({"identity": IDENTITY, "command": {"do": "create", "tenant": "a", "settings": {"x": 1}}}, "x"),
    ([], "payload"),
]


def test_what_is_wrong_is_said_and_nothing_is_changed(stack: Running) -> None:
    before = tenants(stack, "list")
    answers = [(said, invoked(stack, payload)["error"]) for payload, said in WRONG]
    assert [(said, answer) for said, answer in answers if said not in answer] == []
    assert tenants(stack, "list") == before

"""The table that is deployed is the table that the stores and their tests use."""

from __future__ import annotations

import json
from typing import Any

from dispatcher.stores.dynamodb.store import table_definition
from dispatcher.stores.table import EXPIRY
from tests.infra.templates import of_type


def test_layout_is_that_of_the_store(template: dict[str, Any]) -> None:
    (deployed,) = of_type(template, "AWS::DynamoDB::Table")
    created = table_definition("headgate")
    for part in ("KeySchema", "BillingMode"):
        assert deployed[part] == created[part]
    assert _by(deployed["AttributeDefinitions"], "AttributeName") == _by(
        created["AttributeDefinitions"], "AttributeName"
    )
    assert "GlobalSecondaryIndexes" not in deployed


def test_items_expire(template: dict[str, Any]) -> None:
    (table,) = of_type(template, "AWS::DynamoDB::Table")
    assert table["TimeToLiveSpecification"] == {"AttributeName": EXPIRY, "Enabled": True}


def test_state_outlives_mistakes(template: dict[str, Any]) -> None:
    (table,) = of_type(template, "AWS::DynamoDB::Table")
    assert table["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert table["SSESpecification"] == {"SSEEnabled": True}
    kinds = ("AWS::DynamoDB::Table", "AWS::S3::Bucket")
    kept = [each for each in template["Resources"].values() if each["Type"] in kinds]
    assert len(kept) == 2
    for resource in kept:
        assert (resource["DeletionPolicy"], resource["UpdateReplacePolicy"]) == ("RetainExceptOnCreate", "Retain")


def test_a_failed_creation_can_be_rolled_back(template: dict[str, Any]) -> None:
    """Protection would stop the rollback. So no role may delete the table or switch its recovery off."""
    (table,) = of_type(template, "AWS::DynamoDB::Table")
    assert not table.get("DeletionProtectionEnabled", False)
    policies = json.dumps([*of_type(template, "AWS::IAM::Policy"), *of_type(template, "AWS::IAM::Role")])
    assert "dynamodb:PutItem" in policies
    for action in ("dynamodb:*", "DeleteTable", "UpdateContinuousBackups", "DeleteBackup"):
        assert action not in policies


def _by(items: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return sorted(items, key=lambda item: str(item[name]))

"""The table that is deployed is the table that the stores and their tests use."""

from __future__ import annotations

from typing import Any

from dispatcher.stores.dynamodb.layout import EXPIRY, table_definition
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
    assert table["DeletionProtectionEnabled"] is True
    (resource,) = (each for each in template["Resources"].values() if each["Type"] == "AWS::DynamoDB::Table")
    assert resource["DeletionPolicy"] == resource["UpdateReplacePolicy"] == "Retain"


def _by(items: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return sorted(items, key=lambda item: str(item[name]))

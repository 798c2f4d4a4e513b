"""The state of the gate: one DynamoDB table, without an index.

It repeats the layout of dispatcher/stores/dynamodb/layout.py, because infra imports only aws_cdk.
tests/infra/test_state.py compares the two.
"""

from __future__ import annotations

from aws_cdk import RemovalPolicy
from aws_cdk import aws_dynamodb as dynamodb
from constructs import Construct

PARTITION, SORT, EXPIRY = "pk", "sk", "ttl"


class State(Construct):
    """The table: billed on demand, restorable to any second of the last 35 days, kept when the stack is deleted."""

    def __init__(self, scope: Construct, construct_id: str) -> None:
        super().__init__(scope, construct_id)
        self.table = dynamodb.Table(
            self,
            "Table",
            partition_key=dynamodb.Attribute(name=PARTITION, type=dynamodb.AttributeType.STRING),
            sort_key=dynamodb.Attribute(name=SORT, type=dynamodb.AttributeType.STRING),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            time_to_live_attribute=EXPIRY,
            # The table holds prompts and answers. AWS's key of this account: its use is in CloudTrail, and it needs no
            # operation.
            encryption=dynamodb.TableEncryption.AWS_MANAGED,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            deletion_protection=True,
            removal_policy=RemovalPolicy.RETAIN,
        )

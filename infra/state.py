"""The state of the gate: one DynamoDB table.

Its layout is that of dispatcher/stores/dynamodb/layout.py, named here again because infra imports aws_cdk alone;
tests/infra/test_state.py holds the two together.
"""

from __future__ import annotations

from aws_cdk import RemovalPolicy
from aws_cdk import aws_dynamodb as dynamodb
from constructs import Construct

PARTITION, SORT, EXPIRY = "pk", "sk", "ttl"
WAITING_POOL = "waiting_pool"
INDEXES = {
    "waiting-by-vft": ("vft", ["line", "tat", "waiting"]),
    "waiting-by-tat": ("tat", ["line", "vft", "waiting"]),
}
"""Index: the number that it sorts by, and what it carries besides the keys."""


class State(Construct):
    """The table: on demand, restorable to any second of the last 35 days, kept when the stack goes."""

    def __init__(self, scope: Construct, construct_id: str) -> None:
        super().__init__(scope, construct_id)
        self.table = dynamodb.Table(
            self,
            "Table",
            partition_key=dynamodb.Attribute(name=PARTITION, type=dynamodb.AttributeType.STRING),
            sort_key=dynamodb.Attribute(name=SORT, type=dynamodb.AttributeType.STRING),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            time_to_live_attribute=EXPIRY,
            # Prompts and answers rest here. AWS's key of this account: visible in CloudTrail, no key to operate.
            encryption=dynamodb.TableEncryption.AWS_MANAGED,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            deletion_protection=True,
            removal_policy=RemovalPolicy.RETAIN,
        )
        for name, (sort, carried) in INDEXES.items():
            self.table.add_global_secondary_index(
                index_name=name,
                partition_key=dynamodb.Attribute(name=WAITING_POOL, type=dynamodb.AttributeType.STRING),
                sort_key=dynamodb.Attribute(name=sort, type=dynamodb.AttributeType.NUMBER),
                projection_type=dynamodb.ProjectionType.INCLUDE,
                non_key_attributes=carried,
            )

    @property
    def index_arns(self) -> list[str]:
        return [f"{self.table.table_arn}/index/{name}" for name in INDEXES]

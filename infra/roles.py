"""What each function may do: a role of its own, named actions on named things, and no Scan for anybody.

The gate (front, invoke, execute, sweep) reads the table, writes invocations, lines and pools, and starts detached
executions. `headgate-result` only reads. Nobody here may write an API key or the tenants' listing: those are the
administrator's, by a role that this stack does not make. Drain runs in whoever frees capacity, the reaper only in the
sweep; their roles are separate, so that either can be revoked alone.
"""

from __future__ import annotations

from aws_cdk import Acknowledgment, Validations
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_secretsmanager as secretsmanager
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.state import State

READS = ["dynamodb:GetItem", "dynamodb:BatchGetItem"]
WRITES = ["dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem"]
"""A transaction is authorized by the actions of its parts."""
LEADING_KEYS = "dynamodb:LeadingKeys"
WRITTEN_BY_THE_GATE = ["TENANT#*", "LINE#*", "POOL#*"]
READ_BY_RESULT = ["TENANT#*", "KEY#*"]


def function_role(
    scope: Construct, construct_id: str, *, log_group: logs.LogGroup, worker_secret: secretsmanager.Secret
) -> iam.Role:
    """A role that may write its own log and trace, and read the secret that every dispatcher is made with."""
    role = iam.Role(scope, construct_id, assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
    _allow(role, ["logs:CreateLogStream", "logs:PutLogEvents"], [log_group.log_group_arn])
    _allow(role, ["secretsmanager:GetSecretValue"], [worker_secret.secret_arn])
    reason = "X-Ray's PutTraceSegments and PutTelemetryRecords know no resource."
    Validations.of(role).acknowledge(Acknowledgment(id="AwsSolutions-IAM5[Resource::*]", reason=reason))
    return role


def allow_gate(role: iam.Role, state: State, queue: sqs.Queue) -> None:
    """Submit, drain, execute, settle."""
    _allow(role, READS, [state.table.table_arn])
    _allow(role, ["dynamodb:Query"], [state.table.table_arn, *state.index_arns])
    _allow(role, WRITES, [state.table.table_arn], _partitions(WRITTEN_BY_THE_GATE))
    _allow(role, ["sqs:SendMessage"], [queue.queue_arn])


def allow_result(role: iam.Role, state: State) -> None:
    """Look up a key, its tenant, and that tenant's invocation."""
    _allow(role, ["dynamodb:GetItem"], [state.table.table_arn], _partitions(READ_BY_RESULT))


def _partitions(patterns: list[str]) -> dict[str, dict[str, list[str]]]:
    return {"ForAllValues:StringLike": {LEADING_KEYS: patterns}}


def _allow(
    role: iam.Role, actions: list[str], resources: list[str], conditions: dict[str, dict[str, list[str]]] | None = None
) -> None:
    role.add_to_policy(iam.PolicyStatement(actions=actions, resources=resources, conditions=conditions))

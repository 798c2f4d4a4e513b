"""What each function may do: each has a role of its own, with named actions on named resources. No role allows Scan.

partitions.py says what each may do with the table. The processes that may decide (fronts, workers' tasks, and the
functions invoke, execute and sweep) also start detached executions, and a front on Fargate has the bucket of files.
`headgate-result` only reads. `headgate-admin` alone writes tenants, API keys and audit records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from aws_cdk import Aws, CfnElement, CfnOutput, Stack
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_secretsmanager as secretsmanager
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra import partitions
from infra.checks import acknowledge
from infra.state import StateTable

_Conditions = dict[str, dict[str, list[str] | str]]

_NETWORK_INTERFACES = [
    *(
        "ec2:CreateNetworkInterface",
        "ec2:DescribeNetworkInterfaces",
        "ec2:DescribeSubnets",
        "ec2:DeleteNetworkInterface",
    ),
    *("ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses"),
]
_TRACES = ["xray:PutSpans", "xray:PutSpansForIndexing", "xray:PutTraceSegments"]
"""What X-Ray's OTLP endpoint checks. AWS knows no resource for them."""


def function_role(
    scope: Construct, construct_id: str, *, log_group: logs.LogGroup, worker_secret: secretsmanager.Secret | None
) -> iam.Role:
    """Make a role that may write its own log and trace, and read the secret that every process of the gate needs."""
    role = iam.Role(scope, construct_id, assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
    _allow(role, ["logs:CreateLogStream", "logs:PutLogEvents"], [log_group.log_group_arn])
    if worker_secret is not None:
        _allow(role, ["secretsmanager:GetSecretValue"], [worker_secret.secret_arn])
    reason = "X-Ray's PutTraceSegments and PutTelemetryRecords cannot be limited to a resource."
    acknowledge(role, {"AwsSolutions-IAM5[Resource::*]": reason})
    return role


def task_role(scope: Construct, construct_id: str, *, worker_secret: secretsmanager.Secret) -> iam.Role:
    """Make the role of a task on ECS. Its log is written by the role that starts the task."""
    role = iam.Role(scope, construct_id, assumed_by=iam.ServicePrincipal("ecs-tasks.amazonaws.com"))
    _allow(role, ["secretsmanager:GetSecretValue"], [worker_secret.secret_arn])
    return role


def allow_traces(role: iam.Role) -> None:
    """Allow to send spans to X-Ray."""
    _allow(role, _TRACES, ["*"])
    acknowledge(role, {"AwsSolutions-IAM5[Resource::*]": "X-Ray's actions cannot be limited to a resource."})


def allow_network(role: iam.Role) -> None:
    """Allow Lambda to connect the function's sandboxes to the VPC. These actions cannot be limited to a resource."""
    _allow(role, _NETWORK_INTERFACES, ["*"])


def allow_batches(role: iam.Role, state: StateTable) -> None:
    """Allow to read and write the batch API's records, and to read, write and delete its files."""
    _allow_partitions(role, state, partitions.BATCHES)
    actions = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
    _allow(role, actions, [f"{state.files.bucket_arn}/*"])
    bucket = Stack.of(role).get_logical_id(cast("CfnElement", state.files.node.default_child))
    reason = "The names of files are random; the gate finds them in its own records."
    rule = f"AwsSolutions-IAM5[Resource::<{bucket}.Arn>/*]"
    acknowledge(role, {rule: reason})


def allow_gate(role: iam.Role, state: StateTable, queue: sqs.Queue, *own: partitions.Partitions) -> None:
    """Allow what each process that may decide does: append to the logs, keep answers, start executions. `own`: what the
    process does beside this."""
    logs_of_all = partitions.of_pool(partitions.LOGS, "*")
    _allow_partitions(role, state, logs_of_all, partitions.ANSWERS, *own)
    _allow(role, ["sqs:SendMessage"], [queue.queue_arn])


def allow_worker(role: iam.Role, state: StateTable, queue: sqs.Queue, pool: str, shards: int) -> None:
    """Allow what a worker and the gate process beside it do: append to their pool's logs, keep answers, and start
    executions. They know tenants from the logs, and read no configuration and no key."""
    own = (partitions.of_pool(each, pool) for each in (partitions.LOGS, partitions.STRIPES))
    further = partitions.of_shards(partitions.LOGS if shards > 1 else partitions.FORMER, pool)
    _allow_partitions(role, state, *own, further, partitions.ANSWERS)
    _allow(role, ["sqs:SendMessage"], [queue.queue_arn])


def allow_model(role: iam.Role, model: str) -> None:
    """Allow to read the files of a model or an adapter (an s3:// address)."""
    bucket, _, prefix = model.removeprefix("s3://").partition("/")
    below = f"{prefix.rstrip('/')}/*"
    arn = f"arn:{Aws.PARTITION}:s3:::{bucket}"
    _allow(role, ["s3:GetObject"], [f"{arn}/{below}"])
    _allow(role, ["s3:ListBucket"], [arn], {"StringLike": {"s3:prefix": [below]}})
    rule = f"AwsSolutions-IAM5[Resource::arn:<AWS::Partition>:s3:::{bucket}/{below}]"
    acknowledge(role, {rule: "The files of one model."})


def allow_result(role: iam.Role, state: StateTable) -> None:
    """Allow to look up an API key, its tenant, an invocation of that tenant, and what the log says of it."""
    _allow_partitions(role, state, partitions.RESULTS)


def allow_admin(role: iam.Role, state: StateTable) -> None:
    """Allow to read, write and delete tenants and keys, and to read and add audit records."""
    _allow_partitions(role, state, partitions.ADMINISTERED)


def invoker_policy(scope: Construct, construct_id: str, invoked: Sequence[lambda_.IFunction], callers: str) -> None:
    """Make a policy for `callers` that allows to invoke these functions. The output `construct_id` is its ARN."""
    arns = [function.function_arn for function in invoked]
    statement = iam.PolicyStatement(actions=["lambda:InvokeFunction"], resources=arns)
    _managed_policy(scope, construct_id, [statement], callers)


def operator_policy(state: StateTable, construct_id: str) -> None:
    """Make a policy for operators: it allows to read what `headgate top`, `plan`, `usage` and `doctor` show, and the
    token of the operator's page. The output `construct_id` is its ARN."""
    token = [state.operator_token.secret_arn]
    statements = [
        *partitions.statements(state, partitions.OPERATED),
        iam.PolicyStatement(actions=["secretsmanager:GetSecretValue"], resources=token),
    ]
    _managed_policy(state, construct_id, statements, "operators")


def _managed_policy(
    scope: Construct, construct_id: str, statements: Sequence[iam.PolicyStatement], holders: str
) -> None:
    arn = iam.ManagedPolicy(scope, construct_id, statements=list(statements)).managed_policy_arn
    CfnOutput(Stack.of(scope), construct_id, value=arn, description=f"Attach this policy to {holders}")


def allow_operator_page(role: iam.Role, state: StateTable) -> None:
    """Allow a front to read the token that opens its page for operators."""
    _allow(role, ["secretsmanager:GetSecretValue"], [state.operator_token.secret_arn])


def allow_scaling(role: iam.Role, service_arns: Sequence[str]) -> None:
    """Allow to read and set the desired count of these ECS services."""
    if service_arns:
        _allow(role, ["ecs:DescribeServices", "ecs:UpdateService"], list(service_arns))


def allow_task_protection(role: iam.Role, clusters: Iterable[ecs.Cluster]) -> None:
    """Allow to protect the tasks of these clusters from scale-in."""
    place = f"arn:{Aws.PARTITION}:ecs:{Aws.REGION}:{Aws.ACCOUNT_ID}:task"
    for cluster in clusters:
        _allow(role, ["ecs:UpdateTaskProtection"], [f"{place}/{cluster.cluster_name}/*"])
        name = Stack.of(role).get_logical_id(cast("CfnElement", cluster.node.default_child))
        found = f"arn:<AWS::Partition>:ecs:<AWS::Region>:<AWS::AccountId>:task/<{name}>/*"
        acknowledge(role, {f"AwsSolutions-IAM5[Resource::{found}]": "ECS gives each task a random id."})


def _allow_partitions(role: iam.Role, state: StateTable, *granted: partitions.Partitions) -> None:
    for statement in partitions.statements(state, *granted):
        role.add_to_policy(statement)


def _allow(role: iam.Role, actions: list[str], resources: list[str], conditions: _Conditions | None = None) -> None:
    role.add_to_policy(iam.PolicyStatement(actions=actions, resources=resources, conditions=conditions))

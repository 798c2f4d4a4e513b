"""What alarms and dashboard watch: resources of the stack, and the metrics that headgate writes itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sqs as sqs

SERVICE = "headgate"
"""The dimension `service` of every metric (dispatcher/processes/metrics_namespace.py)."""
TIERS = ("premium", "standard", "background")
"""The tiers of tenants in the metrics."""
MINUTE, FIVE_MINUTES = Duration.minutes(1), Duration.minutes(5)


@dataclass(frozen=True)
class OwnMetrics:
    """The metrics that functions and workers write with Powertools (functions/observability.py,
    gpu_worker/service/metric_lines.py). `namespace`: the stack's name, so that two stacks do not mix theirs."""

    namespace: str

    def metric(
        self,
        name: str,
        statistic: str = "Sum",
        *,
        period: Duration = MINUTE,
        pool: str = "",
        tier: str = "",
        model: str = "",
    ) -> cloudwatch.Metric:
        """Return a metric. Its dimensions are those that are given."""
        dimensions = {"pool": pool, "tier": tier, "model": model, "service": SERVICE}
        return cloudwatch.Metric(
            namespace=self.namespace,
            metric_name=name,
            dimensions_map={name: value for name, value in dimensions.items() if value},
            statistic=statistic,
            period=period,
        )


@dataclass(frozen=True)
class WatchedPool:
    """What the alarms watch of one pool."""

    name: str
    deadline_s: int
    model: str = ""
    """The name of the model that its workers serve; empty without workers."""
    has_fleet: bool = False
    """Whether the stack runs its workers."""
    sleeps: bool = False
    """Whether it may have no worker; then the first request starts one, and those until it serves are answered 503."""
    workers: cloudwatch.IMetric | None = None
    """Measured only while a worker runs; None if there may be none."""


@dataclass(frozen=True)
class Watched:
    """The resources that the alarms and the dashboard watch."""

    own: OwnMetrics
    http_errors: cloudwatch.IMetric
    """The answers with 5xx of the HTTP interface, in five minutes."""
    healthy_fronts: cloudwatch.IMetric | None
    """The tasks that serve; None if the fronts are functions."""
    pools: Sequence[WatchedPool]
    functions: Sequence[lambda_.Function]
    sweep: lambda_.Function
    invoke: lambda_.Function
    queue: sqs.Queue
    dead_letters: sqs.Queue
    table: dynamodb.Table
    log: logs.LogGroup
    """The log of the fronts, with a line for each invocation."""


def table_metric(table: dynamodb.Table, name: str) -> cloudwatch.MathExpression:
    """Sum a metric over the operations that the gate uses, because DynamoDB counts each of them separately."""
    operations = ["GetItem", "Query", "PutItem", "UpdateItem", "TransactWriteItems"]
    return total(
        name,
        [
            table.metric(name, dimensions_map={"TableName": table.table_name, "Operation": operation}, statistic="Sum")
            for operation in operations
        ],
        prefix="m",
    )


def total(
    label: str,
    metrics: Sequence[cloudwatch.IMetric],
    *,
    prefix: str,
    combined: str = "SUM",
    period: Duration = FIVE_MINUTES,
) -> cloudwatch.MathExpression:
    """Sum metrics (or combine them by another function), of which a missing one counts as zero. `prefix`: of their ids,
    which are unique in an alarm."""
    using = {f"{prefix}{number}": metric for number, metric in enumerate(metrics)}
    expression = f"{combined}(FILL([{', '.join(using)}], 0))"
    return cloudwatch.MathExpression(expression=expression, using_metrics=using, label=label, period=period)

"""What an operator sees: logs that expire, a dashboard, and alarms on what needs a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aws_cdk import ArnFormat, CfnOutput, Duration, RemovalPolicy, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from headgate.deployment.model import Deployment

NAMESPACE = "headgate"
"""Namespace of the metrics that the functions write with Powertools (functions/observability.py)."""
MINUTE, FIVE_MINUTES = Duration.minutes(1), Duration.minutes(5)
BACKLOG_AGE_MAX = Duration.minutes(5)
TENANTS = [
    'filter message = "invocation ended"',
    "stats count(*) as requests, pct(ttft_ms, 99) as p99_first_token_ms, sum(output_tokens) as tokens by tenant",
    "sort tokens desc",
    "limit 20",
]
"""The tenants with the most output tokens (CloudWatch Logs Insights)."""


def log_group(scope: Construct, construct_id: str, deployment: Deployment) -> logs.LogGroup:
    """Make a log group. Logs contain no prompt and no key (functions/observability.py)."""
    group = logs.LogGroup(scope, construct_id, removal_policy=RemovalPolicy.DESTROY)
    resource = group.node.default_child
    assert isinstance(resource, logs.CfnLogGroup)  # noqa: S101 - what the construct is made of
    resource.retention_in_days = deployment.retention_days
    return group


@dataclass(frozen=True)
class Watched:
    """The resources that the alarms and the dashboard watch."""

    http_errors: cloudwatch.IMetric
    """The answers with 5xx of the HTTP interface, in five minutes."""
    healthy_fronts: cloudwatch.IMetric | None
    """The tasks that serve; None if the fronts are functions."""
    workers: cloudwatch.IMetric | None
    """Measured only while a worker runs; None if there may be none."""
    functions: Sequence[lambda_.Function]
    sweep: lambda_.Function
    invoke: lambda_.Function
    queue: sqs.Queue
    dead_letters: sqs.Queue
    table: dynamodb.Table
    log: logs.LogGroup
    """Of the fronts, with a line for each invocation."""


class Observability(Construct):
    """Alarms publish to the topic `alarms`; the operator of the stack subscribes to it."""

    def __init__(self, scope: Construct, construct_id: str, *, watched: Watched, deployment: Deployment) -> None:
        super().__init__(scope, construct_id)
        self.alarms = sns.Topic(self, "Alarms", enforce_ssl=True)
        _allow_alarms(self.alarms)
        if deployment.alarm_address is not None:
            self.alarms.add_subscription(subscriptions.EmailSubscription(deployment.alarm_address))
        CfnOutput(self, "AlarmTopic", value=self.alarms.topic_arn, description="Subscribe to it to receive alarms")
        self._alarms(watched)
        self._dashboard(watched)

    def _alarms(self, watched: Watched) -> None:
        swept = watched.sweep.metric_invocations(period=FIVE_MINUTES)
        # A sweep that does not run leaves no data, so missing data raises this alarm too.
        self._alarm("SweepStopped", swept, "The sweep did not run: without traffic no deadline is decided.", below=1)
        self._alarm("SweepFails", watched.sweep.metric_errors(period=FIVE_MINUTES), "The sweep failed.", above=1)
        dead = watched.dead_letters.metric_approximate_number_of_messages_visible(period=MINUTE)
        self._alarm("DeadLetters", dead, "A detached execution could not be started five times.")
        age = watched.queue.metric_approximate_age_of_oldest_message(period=MINUTE)
        self._alarm("ExecutionsLate", age, "Dispatched invocations wait to start.", above=BACKLOG_AGE_MAX.to_seconds())
        dropped = watched.invoke.metric("AsyncEventsDropped", statistic="Sum", period=FIVE_MINUTES)
        self._alarm("EventsDropped", dropped, "Lambda dropped Event invokes before they reached the gate.")
        self._alarm("HttpFails", watched.http_errors, "The HTTP interface answers 5xx.", above=5)
        if watched.healthy_fronts is not None:
            self._alarm("NoFront", watched.healthy_fronts, "No front is healthy: nobody is answered.", below=1)
        if watched.workers is not None:
            self._alarm("NoWorker", watched.workers, "No worker runs: every request is refused.", below=1)
        throttled = _table_metric(watched.table, "ThrottledRequests")
        self._alarm("TableThrottled", throttled, "DynamoDB throttles: requests are refused.", above=10)

    def _alarm(
        self,
        name: str,
        metric: cloudwatch.IMetric,
        meaning: str,
        *,
        above: float = 0,
        below: float | None = None,
    ) -> None:
        """Publish to the topic while the metric is above `above`, or, if `below` is given, below it or missing."""
        missing_is_alarm = below is not None
        alarm = cloudwatch.Alarm(
            self,
            name,
            metric=metric,
            alarm_description=meaning,
            threshold=below if below is not None else above,
            evaluation_periods=1,
            comparison_operator=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD
            if missing_is_alarm
            else cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.BREACHING
            if missing_is_alarm
            else cloudwatch.TreatMissingData.NOT_BREACHING,
        )
        alarm.add_alarm_action(actions.SnsAction(self.alarms))

    def _dashboard(self, watched: Watched) -> None:
        board = cloudwatch.Dashboard(self, "Dashboard", default_interval=Duration.hours(3))
        board.add_widgets(
            _by_tier("First token, P99 by tier (ms)", "ttft_ms", "p99"),
            _by_tier("Output tokens by tier", "output_tokens", "Sum"),
            _by_tier("Queued by tier", "queued", "Sum"),
        )
        board.add_widgets(
            cloudwatch.LogQueryWidget(
                title="Tenants", log_group_names=[watched.log.log_group_name], query_lines=TENANTS, width=24
            )
        )
        board.add_widgets(
            _graph("Sweep", [_own_metric("ticks")]),
            _graph("Detached executions", [_own_metric("executed"), _own_metric("executed_already")]),
            _graph("Queue", [watched.queue.metric_approximate_number_of_messages_visible(period=MINUTE)]),
        )
        board.add_widgets(
            _graph("Concurrent executions", [each.metric("ConcurrentExecutions") for each in watched.functions]),
            _graph("Function errors", [each.metric_errors() for each in watched.functions]),
            _graph("Table: throttled", [_table_metric(watched.table, "ThrottledRequests")]),
        )


def _allow_alarms(topic: sns.Topic) -> None:
    """Allow CloudWatch to publish to the topic, for alarms of this account and region only.

    The TLS statement (`enforce_ssl`) gives the topic a policy, and that policy replaces SNS's default one, which lets
    CloudWatch publish. Without this statement an alarm changes its state and its message is refused. The condition
    stops an alarm of another account from publishing through the same service principal (the confused deputy).
    """
    stack = Stack.of(topic)
    alarm_arns = stack.format_arn(
        service="cloudwatch", resource="alarm", resource_name="*", arn_format=ArnFormat.COLON_RESOURCE_NAME
    )
    topic.add_to_resource_policy(
        iam.PolicyStatement(
            sid="AllowAlarmsToPublish",
            principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
            actions=["sns:Publish"],
            resources=[topic.topic_arn],
            conditions={
                "StringEquals": {"aws:SourceAccount": stack.account},
                "ArnLike": {"aws:SourceArn": alarm_arns},
            },
        )
    )


def _own_metric(name: str) -> cloudwatch.Metric:
    return cloudwatch.Metric(
        namespace=NAMESPACE,
        metric_name=name,
        dimensions_map={"service": NAMESPACE},
        statistic="Sum",
        period=MINUTE,
    )


def _table_metric(table: dynamodb.Table, name: str) -> cloudwatch.MathExpression:
    """Sum a metric over the operations that the gate uses, because DynamoDB counts each of them separately."""
    operations = ["GetItem", "Query", "PutItem", "UpdateItem", "TransactWriteItems"]
    using = {
        f"m{number}": table.metric(
            name, dimensions_map={"TableName": table.table_name, "Operation": operation}, statistic="Sum"
        )
        for number, operation in enumerate(operations)
    }
    return cloudwatch.MathExpression(
        expression=f"SUM(FILL([{', '.join(using)}], 0))", using_metrics=using, label=name, period=FIVE_MINUTES
    )


def _by_tier(title: str, metric: str, statistic: str) -> cloudwatch.GraphWidget:
    """Draw a line for each pool and tier. It is a search, so that new ones appear without a change."""
    search = f"SEARCH('{{{NAMESPACE},pool,service,tier}} MetricName=\"{metric}\"', '{statistic}', 60)"
    return _graph(title, [cloudwatch.MathExpression(expression=search, using_metrics={}, label="", period=MINUTE)])


def _graph(title: str, metrics: Sequence[cloudwatch.IMetric]) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=list(metrics), width=8)

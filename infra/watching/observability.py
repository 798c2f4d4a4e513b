"""What an operator sees: logs that expire, a dashboard, and alarms on what needs a person."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import ArnFormat, CfnOutput, Duration, RemovalPolicy, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from headgate.deployment.model import Deployment
from infra.watching.alarms import add_alarms
from infra.watching.watched import MINUTE, OwnMetrics, Watched, table_metric

TENANTS = [
    'filter message = "invocation ended"',
    "stats count(*) as requests, pct(ttft_ms, 99) as p99_first_token_ms, sum(output_tokens) as tokens by tenant",
    "sort tokens desc",
    "limit 20",
]
"""The tenants with the most output tokens (CloudWatch Logs Insights)."""


DISTURBED = (
    *("preempted_swap", "preempted_recompute", "preempted_drop", "preempted_natively"),
    *("aged", "shed", "deadlines_missed", "failed_on_worker", "engine_restarts", "model_swaps", "model_swaps_failed"),
)
"""The workers' counts of what goes wrong, or moves (gpu_worker/service/metric_lines.py)."""


def log_group(scope: Construct, construct_id: str, deployment: Deployment) -> logs.LogGroup:
    """Make a log group. Logs contain no prompt and no key (functions/observability.py)."""
    group = logs.LogGroup(scope, construct_id, removal_policy=RemovalPolicy.DESTROY)
    resource = group.node.default_child
    assert isinstance(resource, logs.CfnLogGroup)  # noqa: S101 - what the construct is made of
    resource.retention_in_days = deployment.retention_days
    return group


class Observability(Construct):
    """Alarms publish to the topic `alarms`; the operator of the stack subscribes to it."""

    def __init__(self, scope: Construct, construct_id: str, *, watched: Watched, deployment: Deployment) -> None:
        super().__init__(scope, construct_id)
        self.alarms = sns.Topic(self, "Alarms", enforce_ssl=True)
        _allow_alarms(self.alarms)
        if deployment.alarm_address is not None:
            self.alarms.add_subscription(subscriptions.EmailSubscription(deployment.alarm_address))
        CfnOutput(
            Stack.of(self), "AlarmTopic", value=self.alarms.topic_arn, description="Subscribe to it to receive alarms"
        )
        add_alarms(self, watched, self.alarms)
        self._dashboard(watched)

    def _dashboard(self, watched: Watched) -> None:
        board = cloudwatch.Dashboard(self, "Dashboard", default_interval=Duration.hours(3))
        own = watched.own
        board.add_widgets(
            _by_tier(own, "First token, P99 by tier (ms)", "ttft_ms", "p99"),
            _by_tier(own, "Output tokens by tier", "output_tokens", "Sum"),
            _by_tier(own, "Queued by tier", "queued", "Sum"),
        )
        board.add_widgets(
            cloudwatch.LogQueryWidget(
                title="Tenants", log_group_names=[watched.log.log_group_name], query_lines=TENANTS, width=24
            )
        )
        board.add_widgets(
            _by_model(own, "Engines: requests of a worker, mean", ("engine_running", "engine_waiting"), "Average"),
            _by_model(own, "First token at the worker, P50 (ms)", ("worker_ttft_ms",), "p50"),
            _by_model(own, "First token at the worker, P99 (ms)", ("worker_ttft_ms",), "p99"),
        )
        board.add_widgets(
            _by_model(own, "Output tokens per second", ("output_tokens_generated",), "Sum", per_second=True),
            _by_model(own, "KV cache in use, largest (%)", ("kv_use",), "Maximum"),
            _by_model(own, "Preempted, shed, late and failed", DISTURBED, "Sum"),
        )
        board.add_widgets(
            _graph("Sweep", [own.metric("ticks")]),
            _graph("Detached executions", [own.metric("executed"), own.metric("executed_already")]),
            _graph("Queue", [watched.queue.metric_approximate_number_of_messages_visible(period=MINUTE)]),
        )
        board.add_widgets(
            _graph("Concurrent executions", [each.metric("ConcurrentExecutions") for each in watched.functions]),
            _graph("Function errors", [each.metric_errors() for each in watched.functions]),
            _graph("Table: throttled", [table_metric(watched.table, "ThrottledRequests")]),
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


def _by_tier(own: OwnMetrics, title: str, metric: str, statistic: str) -> cloudwatch.GraphWidget:
    """Draw a line for each pool and tier. It is a search, so that new ones appear without a change."""
    return _search_graph(
        title, f"SEARCH('{{{own.namespace},pool,service,tier}} MetricName=\"{metric}\"', '{statistic}', 60)"
    )


def _by_model(
    own: OwnMetrics, title: str, metrics: Sequence[str], statistic: str, *, per_second: bool = False
) -> cloudwatch.GraphWidget:
    """Draw a line for each of the workers' metrics, pool and model, by searches."""
    searches = [
        f"SEARCH('{{{own.namespace},model,pool,service}} MetricName=\"{name}\"', '{statistic}', 60)" for name in metrics
    ]
    return _search_graph(title, *(f"{search} / 60" if per_second else search for search in searches))


def _search_graph(title: str, *expressions: str) -> cloudwatch.GraphWidget:
    found = [
        cloudwatch.MathExpression(expression=each, using_metrics={}, label="", period=MINUTE) for each in expressions
    ]
    return _graph(title, found)


def _graph(title: str, metrics: Sequence[cloudwatch.IMetric]) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=list(metrics), width=8)

"""What an operator sees: logs that expire, a dashboard, and alarms on what needs a person.

Each alarm has its section in docs/operations.md: what it means, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import ArnFormat, CfnOutput, Duration, RemovalPolicy, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from headgate.deployment.model import Deployment
from infra.watched import FIVE_MINUTES, MINUTE, TIERS, OwnMetrics, Watched, WatchedPool, table_metric, total

_TENANTS = [
    'filter message = "invocation ended"',
    "stats count(*) as requests, pct(ttft_ms, 99) as p99_first_token_ms, sum(output_tokens) as tokens by tenant",
    "sort tokens desc",
    "limit 20",
]
"""The tenants with the most output tokens (CloudWatch Logs Insights)."""


_DISTURBED = (
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
        _add_alarms(self, watched, self.alarms)
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
                title="Tenants", log_group_names=[watched.log.log_group_name], query_lines=_TENANTS, width=24
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
            _by_model(own, "Preempted, shed, late and failed", _DISTURBED, "Sum"),
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


_RUNBOOKS = "docs/operations.md"
_BACKLOG_AGE_MAX_S = 300
_OVERDUE_MAX_S = 60
_FAILED_MIN, _FAILED_MAX_PERCENT = 5, 1
"""Requests fail if so many fail in five minutes, and if they are more than this part of all that ended."""
_STARTING_PERIODS = 4
"""The number of periods of five minutes in which 503 is the right answer of a pool that had no worker and starts a
worker."""
_MISSING_MINUTES = 20
"""Workers may be missing for so long: an instance starts and a model loads in less."""


def _add_alarms(scope: Construct, watched: Watched, topic: sns.Topic) -> None:
    """Add all alarms. Each publishes to the topic when it begins, and when it ends.

    A pool's alarms are in a scope of its name, so that their names contain it.
    """
    alarms = _Alarms(scope, topic)
    _watch_sweep(alarms, watched)
    _watch_functions(alarms, watched)
    _watch_http(alarms, watched)
    for pool in watched.pools:
        of_pool = _Alarms(Construct(scope, pool.name), topic, pool.name)
        _watch_requests(of_pool, pool, watched.own)
        _watch_workers(of_pool, pool, watched.own)


def _watch_sweep(alarms: _Alarms, watched: Watched) -> None:
    swept = watched.sweep.metric_invocations(period=FIVE_MINUTES)
    # A sweep that does not run leaves no data, so missing data raises this alarm too.
    alarms.below("SweepStopped", swept, 1, "The sweep did not run: without traffic no deadline is decided.")
    alarms.above("SweepFails", watched.sweep.metric_errors(period=FIVE_MINUTES), 1, "The sweep failed.")


def _watch_functions(alarms: _Alarms, watched: Watched) -> None:
    dead = watched.dead_letters.metric_approximate_number_of_messages_visible(period=MINUTE)
    alarms.above("DeadLetters", dead, 0, "A detached execution could not be started five times.")
    age = watched.queue.metric_approximate_age_of_oldest_message(period=MINUTE)
    alarms.above("ExecutionsLate", age, _BACKLOG_AGE_MAX_S, "Dispatched invocations wait to start.")
    dropped = watched.invoke.metric("AsyncEventsDropped", statistic="Sum", period=FIVE_MINUTES)
    alarms.above("EventsDropped", dropped, 0, "Lambda dropped Event invokes before they reached the gate.")
    throttles = [each.metric_throttles(period=FIVE_MINUTES) for each in watched.functions]
    throttled = total("throttled executions", throttles, prefix="f")
    alarms.above("FunctionsThrottled", throttled, 10, "The account has no executions left, and Lambda refuses some.")


def _watch_http(alarms: _Alarms, watched: Watched) -> None:
    periods = _STARTING_PERIODS if any(pool.sleeps for pool in watched.pools) else 1
    alarms.above("HttpFails", watched.http_errors, 5, "The HTTP interface answers 5xx.", periods=periods)
    if watched.healthy_fronts is not None:
        alarms.below("NoFront", watched.healthy_fronts, 1, "No front is healthy: no request is answered.")
    throttled = table_metric(watched.table, "ThrottledRequests")
    alarms.above("TableThrottled", throttled, 10, "DynamoDB throttles: requests are refused.")


def _watch_requests(alarms: _Alarms, pool: WatchedPool, own: OwnMetrics) -> None:
    overdue = own.metric("overdue_s", "Maximum", pool=pool.name)
    alarms.above("LogStands", overdue, _OVERDUE_MAX_S, "A decision is due and the log does not have it.", periods=2)
    failed = _failed_percent(own, pool.name)
    alarms.above("RequestsFail", failed, _FAILED_MAX_PERCENT, "Accepted requests fail, whole or in a stream.")
    waits = [own.metric("oldest_wait_s", "Maximum", pool=pool.name, tier=tier) for tier in TIERS]
    oldest = total("oldest wait (s)", waits, prefix="w", combined="MAX", period=MINUTE)
    alarms.above("WaitsLong", oldest, pool.deadline_s / 2, "A request has waited for half of its time.", periods=3)


def _failed_percent(own: OwnMetrics, pool: str) -> cloudwatch.MathExpression:
    """Return the failed part of the requests that ended in five minutes, in percent; 0 below _FAILED_MIN failures."""
    failures = [own.metric("failed", "Sum", period=FIVE_MINUTES, pool=pool, tier=tier) for tier in TIERS]
    ends = [own.metric("failed", "SampleCount", period=FIVE_MINUTES, pool=pool, tier=tier) for tier in TIERS]
    return cloudwatch.MathExpression(
        expression=f"IF(failed >= {_FAILED_MIN}, 100 * failed / ended, 0)",
        using_metrics={"failed": total("failed", failures, prefix="f"), "ended": total("ended", ends, prefix="e")},
        label="failed (%)",
        period=FIVE_MINUTES,
    )


def _watch_workers(alarms: _Alarms, pool: WatchedPool, own: OwnMetrics) -> None:
    if pool.workers is not None:
        alarms.below("NoWorker", pool.workers, 1, "No worker runs: every request is refused.")
    if not pool.has_fleet:
        return
    problem = own.metric("scaling_failed", "Maximum", pool=pool.name)
    alarms.above("ScalingFails", problem, 0, "The number of workers cannot be read or set.", periods=3)
    missing = cloudwatch.MathExpression(
        expression="wanted - running",
        using_metrics={
            "wanted": own.metric("workers_wanted", "Minimum", pool=pool.name),
            "running": own.metric("workers_running", "Maximum", pool=pool.name),
        },
        label="workers missing",
        period=MINUTE,
    )
    meaning = f"Fewer workers serve than the load needs, for {_MISSING_MINUTES} minutes."
    alarms.above("WorkersMissing", missing, 0, meaning, periods=_MISSING_MINUTES)
    restarts = own.metric("engine_restarts", "Sum", period=FIVE_MINUTES, pool=pool.name, model=pool.model)
    alarms.above("EnginesFail", restarts, 0, "An engine fails again and again, and is started again.", periods=3)


class _Alarms:
    """`pool`: the pool that the alarms watch; empty: the whole stack."""

    def __init__(self, scope: Construct, topic: sns.Topic, pool: str = "") -> None:
        self._scope, self._action, self._of_pool = scope, actions.SnsAction(topic), f"Pool {pool}: " * bool(pool)

    def above(self, name: str, metric: cloudwatch.IMetric, limit: float, meaning: str, *, periods: int = 1) -> None:
        """Raise an alarm while the metric is above `limit`, in so many periods one after another. Missing: no alarm."""
        self._add(
            name,
            metric,
            meaning,
            threshold=limit,
            periods=periods,
            comparison=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
            missing=cloudwatch.TreatMissingData.NOT_BREACHING,
        )

    def below(self, name: str, metric: cloudwatch.IMetric, limit: float, meaning: str) -> None:
        """Raise an alarm while the metric is below `limit` or missing."""
        self._add(
            name,
            metric,
            meaning,
            threshold=limit,
            periods=1,
            comparison=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            missing=cloudwatch.TreatMissingData.BREACHING,
        )

    def _add(
        self,
        name: str,
        metric: cloudwatch.IMetric,
        meaning: str,
        *,
        threshold: float,
        periods: int,
        comparison: cloudwatch.ComparisonOperator,
        missing: cloudwatch.TreatMissingData,
    ) -> None:
        alarm = cloudwatch.Alarm(
            self._scope,
            name,
            metric=metric,
            alarm_description=f"{self._of_pool}{meaning} What to do: {_RUNBOOKS}#{name.lower()}",
            threshold=threshold,
            evaluation_periods=periods,
            comparison_operator=comparison,
            treat_missing_data=missing,
        )
        alarm.add_alarm_action(self._action)
        alarm.add_ok_action(self._action)

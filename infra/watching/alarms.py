"""The alarms. Each one needs a person, and has its section in docs/operations.md: what it means, and what to do."""

from __future__ import annotations

from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_sns as sns
from constructs import Construct

from infra.watching.watched import FIVE_MINUTES, MINUTE, TIERS, OwnMetrics, Watched, WatchedPool, table_metric, total

RUNBOOKS = "docs/operations.md"
BACKLOG_AGE_MAX_S = 300
OVERDUE_MAX_S = 60
FAILED_MIN, FAILED_MAX_PERCENT = 5, 1
"""Requests fail if so many fail in five minutes, and if they are more than this part of all that ended."""
STARTING_PERIODS = 4
"""The number of periods of five minutes in which 503 is the right answer of a pool that had no worker and starts a
worker."""
MISSING_MINUTES = 20
"""Workers may be missing for so long: an instance starts and a model loads in less."""


def add_alarms(scope: Construct, watched: Watched, topic: sns.Topic) -> None:
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
    alarms.above("ExecutionsLate", age, BACKLOG_AGE_MAX_S, "Dispatched invocations wait to start.")
    dropped = watched.invoke.metric("AsyncEventsDropped", statistic="Sum", period=FIVE_MINUTES)
    alarms.above("EventsDropped", dropped, 0, "Lambda dropped Event invokes before they reached the gate.")
    throttles = [each.metric_throttles(period=FIVE_MINUTES) for each in watched.functions]
    throttled = total("throttled executions", throttles, prefix="f")
    alarms.above("FunctionsThrottled", throttled, 10, "The account has no executions left, and Lambda refuses some.")


def _watch_http(alarms: _Alarms, watched: Watched) -> None:
    periods = STARTING_PERIODS if any(pool.sleeps for pool in watched.pools) else 1
    alarms.above("HttpFails", watched.http_errors, 5, "The HTTP interface answers 5xx.", periods=periods)
    if watched.healthy_fronts is not None:
        alarms.below("NoFront", watched.healthy_fronts, 1, "No front is healthy: no request is answered.")
    throttled = table_metric(watched.table, "ThrottledRequests")
    alarms.above("TableThrottled", throttled, 10, "DynamoDB throttles: requests are refused.")


def _watch_requests(alarms: _Alarms, pool: WatchedPool, own: OwnMetrics) -> None:
    overdue = own.metric("overdue_s", "Maximum", pool=pool.name)
    alarms.above("LogStands", overdue, OVERDUE_MAX_S, "A decision is due and the log does not have it.", periods=2)
    failed = _failed_percent(own, pool.name)
    alarms.above("RequestsFail", failed, FAILED_MAX_PERCENT, "Accepted requests fail, whole or in a stream.")
    waits = [own.metric("oldest_wait_s", "Maximum", pool=pool.name, tier=tier) for tier in TIERS]
    oldest = total("oldest wait (s)", waits, prefix="w", combined="MAX", period=MINUTE)
    alarms.above("WaitsLong", oldest, pool.deadline_s / 2, "A request has waited for half of its time.", periods=3)


def _failed_percent(own: OwnMetrics, pool: str) -> cloudwatch.MathExpression:
    """Return the failed part of the requests that ended in five minutes, in percent; 0 below FAILED_MIN failures."""
    failures = [own.metric("failed", "Sum", period=FIVE_MINUTES, pool=pool, tier=tier) for tier in TIERS]
    ends = [own.metric("failed", "SampleCount", period=FIVE_MINUTES, pool=pool, tier=tier) for tier in TIERS]
    return cloudwatch.MathExpression(
        expression=f"IF(failed >= {FAILED_MIN}, 100 * failed / ended, 0)",
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
    meaning = f"Fewer workers serve than the load needs, for {MISSING_MINUTES} minutes."
    alarms.above("WorkersMissing", missing, 0, meaning, periods=MISSING_MINUTES)
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
            alarm_description=f"{self._of_pool}{meaning} What to do: {RUNBOOKS}#{name.lower()}",
            threshold=threshold,
            evaluation_periods=periods,
            comparison_operator=comparison,
            treat_missing_data=missing,
        )
        alarm.add_alarm_action(self._action)
        alarm.add_ok_action(self._action)

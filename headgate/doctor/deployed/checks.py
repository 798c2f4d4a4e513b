"""The checks of a deployed stack, in the order of the table in docs/operations.md. A test compares the two.

None changes anything. What needs a change, or a long request meanwhile, is left to an operator: its finding is skipped,
and says what to try.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from headgate.doctor.account import reason
from headgate.doctor.deployed.pool_checks import pools_have_workers, tasks_of
from headgate.doctor.deployed.service_checks import administrator_is_named, gate_leads, operator_page
from headgate.doctor.deployed.stack import Deployed
from headgate.doctor.finding import Finding, failed, ok, skipped, warning

OUTPUTS = {
    *("OpenAiBaseUrl", "TableName", "OperatorShell", "OperatorToken", "AlarmTopic", "WorkerGroup", "VpcId"),
    *("InvokerPolicy", "AdministratorPolicy"),
}
DAY_S, HOUR_S = 86_400, 3_600
TOO_LONG = "the log was too long to read to its end"
LOOK_YOURSELF = "search it in CloudWatch Logs Insights"
ALARMS_MAX = 100
"""DescribeAlarms takes so many names."""
PAGES_MAX = 100
"""Of one log group. CloudWatch may answer empty pages before those with lines."""
LIVE = "live"


Run = Callable[[Deployed, str], Finding]
CHECKS: dict[str, Run] = {}
"""By the row's title."""


def check(title: str, *, of_workers: bool = False) -> Callable[[Run], Run]:
    """Register a row's check. `of_workers`: without a pool with a model there is nothing to check."""

    def registered(run: Run) -> Run:
        CHECKS[title] = _if_workers(run) if of_workers else run
        return run

    return registered


def _if_workers(run: Run) -> Run:
    def checked(deployed: Deployed, title: str) -> Finding:
        return run(deployed, title) if deployed.stack.workers() else skipped(title, "no pool has a model")

    return checked


def run_checks(deployed: Deployed) -> list[Finding]:
    """Run all checks. What AWS refuses is a warning of its check."""
    return [_run(title, run, deployed) for title, run in CHECKS.items()]


def _run(title: str, run: Run, deployed: Deployed) -> Finding:
    try:
        return run(deployed, title)
    except (BotoCoreError, ClientError) as error:
        return warning(title, reason(error), "allow this principal to read it, or check it in AWS's console")


def by_hand(title: str, what: str) -> None:
    """Register a row that a person has to try."""
    CHECKS[title] = lambda _, name: skipped(name, f"try it: {what}")


@check("the stack is created")
def _created(deployed: Deployed, title: str) -> Finding:
    stack = deployed.stack
    missing = sorted(OUTPUTS - stack.outputs.keys())
    if stack.state not in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
        return failed(title, f"its state is {stack.state}", "look at the stack's events in CloudFormation")
    if missing:
        return failed(title, f"no output {', '.join(missing)}", "deploy again with this version")
    return ok(title, f"{stack.state}, {sum(map(len, stack.resources.values()))} resources")


@check("the image is built for arm64")
def _architecture(deployed: Deployed, title: str) -> Finding:
    fronts = [arn for arn in deployed.stack.of_type("AWS::ECS::Service") if arn.endswith("-front")]
    if not fronts:
        return skipped(title, "the front is a function")
    tasks = tasks_of(deployed.client("ecs"), fronts[0])
    found = {
        attribute["value"]
        for task in tasks
        for attribute in task.get("attributes", [])
        if attribute["name"] == "ecs.cpu-architecture"
    }
    if found == {"arm64"}:
        return ok(title, f"{len(tasks)} tasks run on arm64")
    return failed(
        title, f"running tasks: {len(tasks)} on {', '.join(found) or 'nothing'}", "see NoFront in docs/operations.md"
    )


@check("fronts are healthy")
def _fronts(deployed: Deployed, title: str) -> Finding:
    groups = deployed.stack.of_type("AWS::ElasticLoadBalancingV2::TargetGroup")
    if not groups:
        return skipped(title, "the front is a function behind API Gateway")
    health = deployed.client("elbv2").describe_target_health(TargetGroupArn=groups[0])["TargetHealthDescriptions"]
    states = [each["TargetHealth"]["State"] for each in health]
    wanted = deployed.deployment.front_count.min
    seen = f"{states.count('healthy')} of {len(states)} targets are healthy"
    if states.count("healthy") >= wanted:
        return ok(title, seen)
    return failed(title, f"{seen}; headgate.yaml wants {wanted}", "see NoFront in docs/operations.md")


check("a gate process leads")(gate_leads)
check("the operator's page")(operator_page)
check("an administrator is named")(administrator_is_named)
by_hand("a stream survives a deployment", "deploy a change during a request of 200 s")


@check("metrics arrive from tasks")
def _metrics(deployed: Deployed, title: str) -> Finding:
    pages = deployed.client("cloudwatch").get_paginator("list_metrics").paginate(Namespace=deployed.stack.name)
    found = {metric["MetricName"] for page in pages for metric in page["Metrics"]}
    wanted = {"ttft_ms": "of the fronts", "workers_wanted": "of the sweep"}
    if deployed.stack.workers():
        wanted["engine_running"] = "of the workers"
    missing = [f"{name} ({of})" for name, of in wanted.items() if name not in found]
    if missing:
        return failed(title, f"no {', '.join(missing)}", "send some requests, wait two minutes, and look at the logs")
    return ok(title, f"{len(found)} metrics, with {', '.join(wanted)}")


@check("spans arrive")
def _spans(deployed: Deployed, title: str) -> Finding:
    if deployed.deployment.traces == "none":
        return skipped(title, "headgate.yaml has traces: none")
    xray = deployed.client("xray")
    summaries = xray.get_trace_summaries(StartTime=deployed.now - HOUR_S, EndTime=deployed.now)["TraceSummaries"]
    if summaries:
        return ok(title, f"{len(summaries)} traces in the last hour")
    advice = "search the log group aws/spans: X-Ray's summaries have 1 % of the spans unless the account indexes more"
    return warning(title, "no trace summary in the last hour", advice)


@check("alarms arrive")
def _alarms(deployed: Deployed, title: str) -> Finding:
    topic = deployed.stack.outputs.get("AlarmTopic")
    if topic is None:
        return failed(title, "the stack has no output AlarmTopic", "deploy again with this version")
    found = deployed.client("sns").list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    confirmed = [each for each in found if each["SubscriptionArn"].startswith("arn:")]
    if not confirmed:
        seen = f"{len(found)} subscriptions, none confirmed"
        return failed(title, seen, "set `alarm_address`, and confirm AWS's mail, or subscribe to the topic")
    return ok(
        title, f"{len(confirmed)} confirmed subscriptions; `aws cloudwatch set-alarm-state` sends a first message"
    )


@check("each alarm has its metric")
def _alarm_metrics(deployed: Deployed, title: str) -> Finding:
    names = deployed.stack.of_type("AWS::CloudWatch::Alarm")
    if not names:
        return failed(title, "the stack has no alarm", "deploy again with this version")
    describe = deployed.client("cloudwatch").describe_alarms
    parts = (names[first : first + ALARMS_MAX] for first in range(0, len(names), ALARMS_MAX))
    found = [alarm for part in parts for alarm in describe(AlarmNames=part, MaxRecords=ALARMS_MAX)["MetricAlarms"]]
    states = {alarm["AlarmName"]: alarm["StateValue"] for alarm in found}
    without = sorted(name for name, state in states.items() if state == "INSUFFICIENT_DATA")
    rings = sorted(name for name, state in states.items() if state == "ALARM")
    if without:
        advice = "the alarm cannot ring: send some requests, and look for its metric in CloudWatch after ten minutes"
        return failed(title, f"no data for {', '.join(without)}", advice)
    if rings:
        return warning(title, f"in alarm: {', '.join(rings)}", "each alarm has its steps in docs/operations.md")
    return ok(title, f"{len(states)} alarms have data, and none rings")


@check("an instance joins, and has its disk", of_workers=True)
def _instances(deployed: Deployed, title: str) -> Finding:
    ecs = deployed.client("ecs")
    (cluster, *_) = deployed.stack.of_type("AWS::ECS::Cluster")
    arns = ecs.list_container_instances(cluster=cluster)["containerInstanceArns"]
    if not arns:
        return failed(title, "no instance has joined the cluster", "see NoWorker in docs/operations.md")
    found = ecs.describe_container_instances(cluster=cluster, containerInstances=arns)["containerInstances"]
    active = [each["ec2InstanceId"] for each in found if each["status"] == "ACTIVE"]
    wanted = sum(pool.count.min for pool in deployed.deployment.pools.values() if pool.model is not None)
    seen = f"{len(active)} of {len(found)} instances are active"
    if len(active) < wanted:
        return failed(title, f"{seen}; headgate.yaml wants {wanted}", "see NoWorker in docs/operations.md")
    return ok(title, f"{seen}; `df /opt/headgate` on one shows its disk")


check("each pool has its workers", of_workers=True)(pools_have_workers)


@check("the weights are copied", of_workers=True)
def _weights(deployed: Deployed, title: str) -> Finding:
    lines, is_whole = _lines(deployed, "WorkerLog", '"files copied"', DAY_S)
    if lines:
        return ok(title, lines[-1])
    if not is_whole:
        return warning(title, TOO_LONG, LOOK_YOURSELF)
    return failed(title, "no copy in the last day", "look at the log streams weights/…: a wrong URI, or no permission")


@check("a worker is ready, with a read-only image", of_workers=True)
def _read_only(deployed: Deployed, title: str) -> Finding:
    seen = "no write to the image in the last day; `headgate doctor after` shows the slots of ready workers"
    advice = "a path of the image is written: give it a volume, and report it"
    return _absent(ok(title, seen), deployed, ("WorkerLog", '"Read-only file system"', DAY_S), advice)


by_hand("a worker drains", "lower the desired count of a workers' service by one during a stream")


@check("a worker retires", of_workers=True)
def _retires(deployed: Deployed, title: str) -> Finding:
    seen = "ECS refused no protection in the last day; `headgate top` shows a worker that retires"
    advice = "see ScalingFails in docs/operations.md"
    return _absent(ok(title, seen), deployed, ("SweepLog", '"does not protect"', DAY_S), advice)


by_hand("a spot notice drains", "interrupt a spot instance with a fault injection (FIS) during requests")


@check("a version is taken back")
def _version(deployed: Deployed, title: str) -> Finding:
    functions = [name for name in deployed.stack.of_type("AWS::Lambda::Function") if name.endswith("-invoke")]
    if not functions:
        return failed(title, "the stack has no function headgate-invoke", "deploy again with this version")
    alias = deployed.client("lambda").get_alias(FunctionName=functions[0], Name=LIVE)
    seen = f"{functions[0]}:{LIVE} is version {alias['FunctionVersion']}"
    return ok(title, f"{seen}; `aws lambda update-alias` points it to another one")


@check("the policies are sufficient")
def _policies(deployed: Deployed, title: str) -> Finding:
    seen = "no AccessDenied in the last hour; `headgate doctor after --fairness` uses most permissions"
    return _absent(ok(title, seen), deployed, ("", "%AccessDenied%", HOUR_S), "deploy again; report it")


def _absent(good: Finding, deployed: Deployed, search: tuple[str, str, float], advice: str) -> Finding:
    """Return `good` if no line is found. `search`: what _lines takes."""
    lines, is_whole = _lines(deployed, *search)
    if lines:
        return failed(good.check, f"{len(lines)} lines, the last: {lines[-1][:200]}", advice)
    return good if is_whole else warning(good.check, TOO_LONG, LOOK_YOURSELF)


def _lines(deployed: Deployed, group: str, pattern: str, seconds: float) -> tuple[list[str], bool]:
    """Return the lines with the pattern in the log groups whose names contain `group`, the newest last, and whether all
    pages were read. In a pattern, % matches within a longer word."""
    since_ms, logs = int((deployed.now - seconds) * 1000), deployed.client("logs")
    events: list[dict[str, Any]] = []
    is_whole = True
    for name in deployed.stack.log_groups(group):
        pages = logs.get_paginator("filter_log_events").paginate(
            logGroupName=name, filterPattern=pattern, startTime=since_ms
        )
        read = list(islice(pages, PAGES_MAX))
        is_whole &= len(read) < PAGES_MAX
        events += [event for page in read for event in page["events"]]
    text = pattern.strip('%"')  # moto's search finds more than the pattern
    found = sorted((event["timestamp"], event["message"].strip()) for event in events if text in event["message"])
    return [line for _, line in found], is_whole

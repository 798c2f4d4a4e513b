"""Rows of docs/operations.md about what the stack reports: its logs, metrics, spans and alarms."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import ip_address
from itertools import islice
from typing import Any

from headgate.doctor.deployed.stack import WORKERS, Deployed
from headgate.doctor.finding import Finding, failed, ok, skipped, warning

_DAY_S, HOUR_S = 86_400, 3_600
_TOO_LONG = "the log was too long to read to its end"
_LOOK_YOURSELF = "search it in CloudWatch Logs Insights"
_PAGES_MAX = 100
"""The most pages that a search reads of one log group. CloudWatch may send empty pages before pages with lines."""
_LISTENING = range(8080, 8100)
"""The ports of fronts, workers and gate processes."""
_FLOWS = (
    "[version, account, interface, source, destination, from, to >= 8080 && to < 8100, protocol, packets, bytes, "
    "start, end, action = REJECT, status]"
)
"""The lines of VPC flow logs about refused connections to these ports."""


def weights_are_copied(deployed: Deployed, title: str) -> Finding:
    """Check that a task has copied its model from S3."""
    lines, is_whole = _lines(deployed, "WorkerLog", '"files copied"', _DAY_S)
    if lines:
        return ok(title, lines[-1])
    if not is_whole:
        return warning(title, _TOO_LONG, _LOOK_YOURSELF)
    return failed(title, "no copy in the last day", "look at the log streams weights/…: a wrong URI, or no permission")


def image_is_read_only(deployed: Deployed, title: str) -> Finding:
    """Check that nothing tried to write to a read-only image."""
    seen = "no write to the image in the last day; `headgate doctor after` shows the slots of ready workers"
    advice = "a path of the image is written: give it a volume, and report it"
    return _absent(ok(title, seen), deployed, ("WorkerLog", '"Read-only file system"', _DAY_S), advice)


def protections_are_taken(deployed: Deployed, title: str) -> Finding:
    """Check that ECS accepted each protection of the workers that stay."""
    seen = "ECS refused no protection in the last day; `headgate top` shows a worker that retires"
    advice = "see ScalingFails in docs/operations.md"
    return _absent(ok(title, seen), deployed, ("SweepLog", '"does not protect"', _DAY_S), advice)


def policies_are_sufficient(deployed: Deployed, title: str) -> Finding:
    """Check that the logs of the stack show no denied access."""
    seen = "no AccessDenied in the last hour; `headgate doctor after --fairness` uses most permissions"
    return _absent(ok(title, seen), deployed, ("", "%AccessDenied%", HOUR_S), "deploy again; report it")


def no_connection_is_refused(deployed: Deployed, title: str) -> Finding:
    """Check that the network refused no connection between the stack's own processes in the last hour."""
    lines, is_whole = _lines(deployed, "RejectedLog", _FLOWS, HOUR_S, text="REJECT")
    refused = sorted(set(_within(lines)))
    if refused:
        advice = "a security group is wrong: infra/network.py has the table of paths"
        return failed(title, f"{len(refused)} paths are refused: {', '.join(refused[:5])}", advice)
    seen = "no refused connection to a front, worker or gate process in the last hour"
    return ok(title, seen) if is_whole else warning(title, _TOO_LONG, _LOOK_YOURSELF)


def _within(lines: list[str]) -> Iterator[str]:
    """Yield the refused paths between private addresses to _LISTENING, of lines in the default format."""
    for line in lines:
        _, _, _, source, destination, _, port, *_ = line.split()
        is_private = source != "-" and ip_address(source).is_private and ip_address(destination).is_private
        if is_private and int(port) in _LISTENING:
            yield f"{source} to {destination}:{port}"


def secret_is_rotated(deployed: Deployed, title: str) -> Finding:
    """Check that the workers' secret has been replaced, and that each process has read it since."""
    secrets = deployed.client("secretsmanager")
    names = [name for name in deployed.stack.of_type("AWS::SecretsManager::Secret") if "WorkerSecret" in name]
    if not names:
        return failed(title, "the stack has no secret of the workers", "deploy again with this version")
    versions = secrets.list_secret_version_ids(SecretId=names[0], IncludeDeprecated=True)["Versions"]
    if len(versions) < 2:
        what = "put A,B, then B,A, then B, a day apart, while requests run (docs/workers.md)"
        return skipped(title, f"it has its first value; try it: {what}")
    advice = "allow secretsmanager:GetSecretValue, and start the process again"
    seen = f"{len(versions)} versions, and each process that read it again could"
    return _absent(ok(title, seen), deployed, ("", '"could not be read again"', _DAY_S), advice)


def _absent(good: Finding, deployed: Deployed, search: tuple[str, str, float], advice: str) -> Finding:
    """Return `good` if no line is found. `search`: what _lines takes."""
    lines, is_whole = _lines(deployed, *search)
    if lines:
        return failed(good.check, f"{len(lines)} lines, the last: {lines[-1][:200]}", advice)
    return good if is_whole else warning(good.check, _TOO_LONG, _LOOK_YOURSELF)


def _lines(
    deployed: Deployed, group: str, pattern: str, seconds: float, text: str | None = None
) -> tuple[list[str], bool]:
    """Return the lines with the pattern in the log groups with `group` in their names, the newest last, and whether all
    pages were read. In a pattern, % matches within a longer word. `text`: what each line contains, if the pattern is
    more than that text."""
    since_ms, logs = int((deployed.now - seconds) * 1000), deployed.client("logs")
    events: list[dict[str, Any]] = []
    is_whole = True
    for name in deployed.stack.log_groups(group):
        pages = logs.get_paginator("filter_log_events").paginate(
            logGroupName=name, filterPattern=pattern, startTime=since_ms
        )
        read = list(islice(pages, _PAGES_MAX))
        is_whole &= len(read) < _PAGES_MAX
        events += [event for page in read for event in page["events"]]
    text = pattern.strip('%"') if text is None else text  # moto's search finds more than the pattern
    found = sorted((event["timestamp"], event["message"].strip()) for event in events if text in event["message"])
    return [line for _, line in found], is_whole


_ALARMS_MAX = 100
"""DescribeAlarms takes so many names."""
HISTORY_S, POLL_S = 60.0, 2.0
"""For how long an alarm's action is awaited, and how often its history is read."""
_EXECUTED = "Successfully executed action"


def metrics_arrive(deployed: Deployed, title: str) -> Finding:
    """Check that fronts, sweep and workers have written metrics."""
    pages = deployed.client("cloudwatch").get_paginator("list_metrics").paginate(Namespace=deployed.stack.name)
    found = {metric["MetricName"] for page in pages for metric in page["Metrics"]}
    wanted = {"ttft_ms": "of the fronts", "workers_wanted": "of the sweep"}
    if deployed.stack.services(WORKERS):
        wanted["engine_running"] = "of the workers"
    missing = [f"{name} ({of})" for name, of in wanted.items() if name not in found]
    if missing:
        return failed(title, f"no {', '.join(missing)}", "send some requests, wait two minutes, and look at the logs")
    return ok(title, f"{len(found)} metrics, with {', '.join(wanted)}")


def spans_arrive(deployed: Deployed, title: str) -> Finding:
    """Check that X-Ray has a trace of the last hour."""
    if deployed.deployment.traces == "none":
        return skipped(title, "headgate.yaml has traces: none")
    xray = deployed.client("xray")
    summaries = xray.get_trace_summaries(StartTime=deployed.now - HOUR_S, EndTime=deployed.now)["TraceSummaries"]
    if summaries:
        return ok(title, f"{len(summaries)} traces in the last hour")
    advice = "search the log group aws/spans: X-Ray's summaries have 1 % of the spans unless the account indexes more"
    return warning(title, "no trace summary in the last hour", advice)


def alarms_arrive(deployed: Deployed, title: str) -> Finding:
    """Check that a subscription is confirmed. With traffic, raise an alarm and check that it executes its action."""
    topic = deployed.stack.outputs.get("AlarmTopic")
    if topic is None:
        return failed(title, "the stack has no output AlarmTopic", "deploy again with this version")
    found = deployed.client("sns").list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    confirmed = [each for each in found if each["SubscriptionArn"].startswith("arn:")]
    if not confirmed:
        seen = f"{len(found)} subscriptions, none confirmed"
        return failed(title, seen, "set `alarm_address`, and confirm AWS's mail, or subscribe to the topic")
    seen = f"{len(confirmed)} confirmed subscriptions"
    if deployed.traffic is None:
        return ok(title, f"{seen}; `aws cloudwatch set-alarm-state` sends a first message, and so does --disturb")
    return _raise_alarm(deployed, title, seen)


def _raise_alarm(deployed: Deployed, title: str, seen: str) -> Finding:
    """Raise an alarm, which CloudWatch ends by itself, and wait until its history has the action."""
    cloudwatch, began = deployed.client("cloudwatch"), datetime.fromtimestamp(deployed.now, UTC)
    name = min(deployed.stack.of_type("AWS::CloudWatch::Alarm"))
    cloudwatch.set_alarm_state(AlarmName=name, StateValue="ALARM", StateReason="a test by headgate doctor")
    until = time.monotonic() + HISTORY_S
    while not (actions := _actions_since(cloudwatch, name, began)) and time.monotonic() < until:
        time.sleep(POLL_S)
    done = [each for each in actions if each.startswith(_EXECUTED)]
    if done:
        return ok(title, f"{seen}; {name} was raised, and its message is sent: look into the mailbox")
    said = actions[0] if actions else f"no action in {HISTORY_S:.0f} s"
    return failed(title, f"{name} was raised: {said}", "look at the policy of the topic `AlarmTopic`")


def _actions_since(cloudwatch: Any, name: str, began: datetime) -> list[str]:
    found = cloudwatch.describe_alarm_history(AlarmName=name, HistoryItemType="Action", StartDate=began)
    return [str(each["HistorySummary"]) for each in found["AlarmHistoryItems"]]


def alarms_have_metrics(deployed: Deployed, title: str) -> Finding:
    """Check that each alarm has data, and that no alarm rings."""
    names = deployed.stack.of_type("AWS::CloudWatch::Alarm")
    if not names:
        return failed(title, "the stack has no alarm", "deploy again with this version")
    describe = deployed.client("cloudwatch").describe_alarms
    parts = (names[first : first + _ALARMS_MAX] for first in range(0, len(names), _ALARMS_MAX))
    found = [alarm for part in parts for alarm in describe(AlarmNames=part, MaxRecords=_ALARMS_MAX)["MetricAlarms"]]
    states = {alarm["AlarmName"]: alarm["StateValue"] for alarm in found}
    without = sorted(name for name, state in states.items() if state == "INSUFFICIENT_DATA")
    rings = sorted(name for name, state in states.items() if state == "ALARM")
    if without:
        advice = "the alarm cannot ring: send some requests, and look for its metric in CloudWatch after ten minutes"
        return failed(title, f"no data for {', '.join(without)}", advice)
    if rings:
        return warning(title, f"in alarm: {', '.join(rings)}", "each alarm has its steps in docs/operations.md")
    return ok(title, f"{len(states)} alarms have data, and none rings")

"""Rows of docs/operations.md about what an operator watches: metrics, spans and alarms."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from headgate.doctor.deployed.ecs_services import WORKERS
from headgate.doctor.deployed.stack import Deployed
from headgate.doctor.finding import Finding, failed, ok, skipped, warning

HOUR_S = 3_600
ALARMS_MAX = 100
"""DescribeAlarms takes so many names."""
HISTORY_S, POLL_S = 60.0, 2.0
"""For how long an alarm's action is awaited, and how often its history is read."""
EXECUTED = "Successfully executed action"


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
    done = [each for each in actions if each.startswith(EXECUTED)]
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

"""Each alarm reaches its topic: alarm, action, topic, policy, followed in the synthesised template."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.monthly_cost import ALARM_METRICS
from dispatcher.model.fleet import FleetLoad, PoolDelays, ScaleReport
from dispatcher.policies.tiers import TENANT_TIERS
from functions.observability import publish_delays, publish_load, publish_scaling
from tests.infra.conftest import Synthesise
from tests.infra.templates import Template, actions, listed, template_in
from tests.support.worker.metric_lines import write_metrics

ROOT = Path(__file__).parents[2]
CLOUDWATCH = {"Service": "cloudwatch.amazonaws.com"}
THIS_ACCOUNT = {"Ref": "AWS::AccountId"}
ITS_ALARMS = [
    "",
    ["arn:", {"Ref": "AWS::Partition"}, ":cloudwatch:", {"Ref": "AWS::Region"}, ":", THIS_ACCOUNT, ":alarm:*"],
]
CONDITION = {
    "StringEquals": {"aws:SourceAccount": THIS_ACCOUNT},
    "ArnLike": {"aws:SourceArn": {"Fn::Join": ITS_ALARMS}},
}
WITHOUT_TLS = {"Bool": {"aws:SecureTransport": "false"}}


def named(template: Template, kind: str) -> dict[str, dict[str, Any]]:
    """The properties of all resources of a type, by logical id."""
    resources = template["Resources"].items()
    return {name: each.get("Properties", {}) for name, each in resources if each["Type"] == kind}


def policy_of(template: Template, topic: str) -> list[dict[str, Any]]:
    """All statements of the topic's policies."""
    policies = named(template, "AWS::SNS::TopicPolicy").values()
    return [
        statement
        for policy in policies
        if {"Ref": topic} in policy["Topics"]
        for statement in policy["PolicyDocument"]["Statement"]
    ]


def allows_alarms(statement: dict[str, Any], topic: str) -> bool:
    """True if the statement lets CloudWatch publish to the topic, for alarms of this account and region."""
    granted = {
        "Effect": "Allow",
        "Principal": CLOUDWATCH,
        "Action": ["sns:Publish"],
        "Resource": [{"Ref": topic}],
        "Condition": CONDITION,
    }
    found = {**statement, "Action": actions(statement), "Resource": listed(statement["Resource"])}
    return {name: found.get(name) for name in granted} == granted


def denies_without_tls(statement: dict[str, Any], topic: str) -> bool:
    return (
        statement["Effect"] == "Deny"
        and statement["Principal"] == "*"
        and "sns:Publish" in actions(statement)
        and {"Ref": topic} in listed(statement["Resource"])
        and statement.get("Condition") == WITHOUT_TLS
    )


def findings(template: Template) -> list[str]:
    """What keeps an alarm from its topic, one line each."""
    topics, found = named(template, "AWS::SNS::Topic"), []
    for name, alarm in named(template, "AWS::CloudWatch::Alarm").items():
        targets = [action.get("Ref") for action in alarm.get("AlarmActions", [])]
        if not targets or alarm.get("ActionsEnabled") is False:
            found.append(f"{name}: no action")
        for topic in targets:
            if topic not in topics:
                found.append(f"{name}: the action is no topic of this stack")
                continue
            found += [f"{name}: {finding}" for finding in topic_findings(template, topic, topics[topic])]
    return found


def topic_findings(template: Template, topic: str, properties: dict[str, Any]) -> list[str]:
    statements = policy_of(template, topic)
    found = []
    if not any(allows_alarms(statement, topic) for statement in statements):
        found.append("CloudWatch may not publish to the topic")
    if not any(denies_without_tls(statement, topic) for statement in statements):
        found.append("the topic accepts messages without TLS")
    denials = [each for each in statements if each["Effect"] == "Deny" and each.get("Condition") != WITHOUT_TLS]
    if denials:
        found.append("the topic's policy denies more than messages without TLS")
    if "KmsMasterKeyId" in properties:
        found.append("the topic is encrypted: its key's policy must allow CloudWatch too")
    return found


def test_each_alarm_may_publish_to_its_topic(
    template: Template, lambda_template: Template, fleet_template: Template
) -> None:
    for found, count in ((template, 12), (lambda_template, 11), (fleet_template, 16)):
        assert len(named(found, "AWS::CloudWatch::Alarm")) == count
        assert findings(found) == []


def runbooks_of(template: Template) -> set[str]:
    """The section of docs/operations.md that each alarm names."""
    alarms = named(template, "AWS::CloudWatch::Alarm").values()
    found = {str(alarm["AlarmDescription"]).partition(" What to do: docs/operations.md#")[2] for alarm in alarms}
    assert len(found) == len(alarms)
    return found


def test_each_alarm_has_its_section_and_each_section_its_alarm(
    template: Template, lambda_template: Template, fleet_template: Template
) -> None:
    guide = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    sections = {line[4:].lower() for line in guide.splitlines() if line.startswith("### ")}
    assert sections == runbooks_of(template) | runbooks_of(lambda_template) | runbooks_of(fleet_template)


def own_metrics(template: Template) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """The name and the dimensions of headgate's own metrics, in all alarms."""
    found = set()
    for alarm in named(template, "AWS::CloudWatch::Alarm").values():
        plain = [alarm] if "MetricName" in alarm else []
        within = [each["MetricStat"]["Metric"] for each in alarm.get("Metrics", []) if "MetricStat" in each]
        for metric in plain + within:
            if metric["Namespace"] == "headgate":
                dimensions = tuple(sorted((each["Name"], each["Value"]) for each in metric["Dimensions"]))
                found.add((metric["MetricName"], dimensions))
    return found


def test_each_metric_of_an_alarm_is_published_with_its_dimensions(
    fleet_template: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    zeros = dict.fromkeys(map(str, TENANT_TIERS), 0)
    publish_load("default", FleetLoad(0, 0, 0, zeros, 0.0, 0.0, 0.0))
    publish_delays("default", PoolDelays(zeros, 0.0))
    publish_scaling("default", ScaleReport(1))
    write_metrics("default", "llama-3-8b")
    published = set()
    for record in map(json.loads, capsys.readouterr().out.splitlines()):
        (described,) = record["_aws"]["CloudWatchMetrics"]
        dimensions = tuple(sorted((name, record[name]) for name in described["Dimensions"][0]))
        published |= {(metric["Name"], dimensions) for metric in described["Metrics"]}
    requests = {("failed", dimensions) for name, dimensions in published if name == "waiting"}
    """tests/unit/functions/test_handlers.py sees that each request publishes it."""
    assert own_metrics(fleet_template) - published == requests


def test_the_bill_counts_each_metric_of_an_alarm(fleet_template: Template) -> None:
    """CloudWatch bills each metric that an alarm reads (docs/cost.md)."""
    alarms = named(fleet_template, "AWS::CloudWatch::Alarm").values()
    counts = [sum("MetricStat" in each for each in alarm.get("Metrics", [])) or 1 for alarm in alarms]
    assert sum(counts) == ALARM_METRICS


def test_the_dashboard_finds_tenants_in_the_log_and_not_in_metrics(each_template: Template) -> None:
    (board,) = named(each_template, "AWS::CloudWatch::Dashboard").values()
    body = json.dumps(board["DashboardBody"])
    assert "{headgate,pool,service,tier}" in body
    assert "service,tenant" not in body
    assert "by tenant" in body


def test_the_operator_gets_them_by_mail(template: Template, synthesise: Synthesise) -> None:
    assert not named(template, "AWS::SNS::Subscription")
    with_address = template_in(synthesise(alarm_address="operators@example.com"))
    (topic,) = named(with_address, "AWS::SNS::Topic")
    (subscription,) = named(with_address, "AWS::SNS::Subscription").values()
    assert subscription == {"Endpoint": "operators@example.com", "Protocol": "email", "TopicArn": {"Ref": topic}}


def test_only_cloudwatch_is_allowed(template: Template) -> None:
    for topic in named(template, "AWS::SNS::Topic"):
        allowed = [each["Principal"] for each in policy_of(template, topic) if each["Effect"] == "Allow"]
        assert allowed == [CLOUDWATCH]


def alarms_statement(template: Template) -> dict[str, Any]:
    (policy,) = named(template, "AWS::SNS::TopicPolicy").values()
    (statement,) = (each for each in policy["PolicyDocument"]["Statement"] if each["Effect"] == "Allow")
    found: dict[str, Any] = statement
    return found


def without_the_statement(template: Template) -> None:
    (policy,) = named(template, "AWS::SNS::TopicPolicy").values()
    policy["PolicyDocument"]["Statement"].remove(alarms_statement(template))


def without_tls(template: Template) -> None:
    (policy,) = named(template, "AWS::SNS::TopicPolicy").values()
    policy["PolicyDocument"]["Statement"] = [alarms_statement(template)]


def of_another_topic(template: Template) -> None:
    (policy,) = named(template, "AWS::SNS::TopicPolicy").values()
    policy["Topics"] = [{"Ref": "Another"}]


def without_actions(template: Template) -> None:
    for alarm in named(template, "AWS::CloudWatch::Alarm").values():
        del alarm["AlarmActions"]


def encrypted(template: Template) -> None:
    for topic in template["Resources"].values():
        if topic["Type"] == "AWS::SNS::Topic":
            topic["Properties"] = {"KmsMasterKeyId": "alias/aws/sns"}


BREAKS: list[Callable[[Template], object]] = [
    without_the_statement,
    without_tls,
    of_another_topic,
    without_actions,
    encrypted,
    lambda template: alarms_statement(template).update(Effect="Deny"),
    lambda template: alarms_statement(template).update(Principal={"Service": "events.amazonaws.com"}),
    lambda template: alarms_statement(template).update(Action="sns:Subscribe"),
    lambda template: alarms_statement(template).update(Resource={"Ref": "Another"}),
    lambda template: alarms_statement(template).pop("Condition"),
]


@pytest.mark.parametrize("spoil", BREAKS)
def test_each_alarm_that_cannot_publish_is_found(template: Template, spoil: Callable[[Template], object]) -> None:
    broken = copy.deepcopy(template)
    spoil(broken)
    assert len(findings(broken)) >= 7

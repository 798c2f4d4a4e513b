"""`headgate doctor deployed`: one check for each row of the documentation, against moto, and what each judges."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from dispatcher.model.facts import Entry, OrderSet
from dispatcher.model.tenants import AuditRecord, Tenant
from dispatcher.processes.bootstrap import RealClock, real_random
from dispatcher.settings.config import load_config
from dispatcher.shard.codec import encode_entry
from dispatcher.stores.dynamodb.store import DynamoStore, create_table
from headgate.deployment.model import Deployment
from headgate.doctor.deployed.checks import CHECKS, as_markdown, run_checks
from headgate.doctor.deployed.running import OUTPUTS
from headgate.doctor.deployed.stack import Deployed, DeployedStack, Traffic, read_stack
from headgate.doctor.finding import CheckResult, Finding, ok
from tests.unit.cli.command import headgate

ROOT = Path(__file__).parents[3]
REGION = "us-east-1"
TARGETS = "AWS::ElasticLoadBalancingV2::TargetGroup"
TEMPLATE = {
    "Resources": {
        "Alarms": {"Type": "AWS::SNS::Topic"},
        "FrontLog": {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": "headgate-FrontLog"}},
    },
    "Outputs": {name: {"Value": {"Ref": "Alarms"}} for name in OUTPUTS},
}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    with mock_aws():
        yield


def client(service: str) -> Any:
    make: Any = boto3.client
    return make(service, REGION)


def deployed(**changed: Any) -> Deployed:
    client("cloudformation").create_stack(StackName="headgate", TemplateBody=json.dumps(TEMPLATE))
    stack = read_stack(client, "headgate")
    assert stack is not None
    return Deployed(client, stack, Deployment.model_validate(changed), RealClock().now())


def run(
    title: str,
    resources: Mapping[str, Sequence[str]],
    make: Callable[[str], Any] = client,
    traffic: Traffic | None = None,
    outputs: Mapping[str, str] | None = None,
    **fields: Any,
) -> Finding:
    """Run one check on a stack with these resources. `fields`: of headgate.yaml."""
    stack = DeployedStack("headgate", "CREATE_COMPLETE", outputs or {}, resources)
    return CHECKS[title](Deployed(make, stack, Deployment.model_validate(fields), RealClock().now(), traffic), title)


def run_stubbed(
    title: str, resources: Mapping[str, Sequence[str]], service: str, *answers: tuple[Any, ...], **more: Any
) -> Finding:
    """Run one check while the service gives these answers, each with its operation first."""
    stubbed = client(service)
    with Stubber(stubbed) as stubber:
        for answer in answers:
            stubber.add_response(*answer)
        found = run(title, resources, lambda name: stubbed if name == service else client(name), **more)
        stubber.assert_no_pending_responses()
    return found


def by_title(found: list[Finding]) -> dict[str, Finding]:
    return {each.check: each for each in found}


def log(line: str, group: str = "headgate-FrontLog") -> None:
    """Write a line of a second ago into a group."""
    stream = {"logGroupName": group, "logStreamName": "front/1"}
    client("logs").create_log_stream(**stream)
    event = {"timestamp": int(RealClock().now() * 1000) - 1000, "message": line}
    client("logs").put_log_events(**stream, logEvents=[event])


def test_each_row_of_the_documentation_has_its_check() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page.partition("## Not yet run: what only AWS can show")[2]
    rows = re.findall(r"^\| ([^|`]+) \|", table, re.MULTILINE)
    assert [row for row in rows if row not in ("what", "---")] == list(CHECKS)


def test_each_command_of_the_rows_exists() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page.partition("## Not yet run: what only AWS can show")[2]
    session = boto3.Session(region_name=REGION)
    operations = set(re.findall(r"`aws ([a-z0-9-]+) ([a-z-]+)", table))
    assert len(operations) >= 8
    for service, operation in operations:
        methods = {name.replace("_", "-") for name in dir(session.client(service)) if not name.startswith("_")}
        assert operation in methods, f"aws {service} {operation}"
    for command in set(re.findall(r"`(?:HEADGATE_\w+=\S+ )?headgate ([a-z]+(?: [a-z]+)?)", table)):
        assert headgate(*command.split(), "--help") == 0, command


def test_a_new_stack(aws: None) -> None:
    found = by_title(run_checks(deployed()))
    assert found.keys() == CHECKS.keys()
    assert found["the stack is created"].result is CheckResult.OK
    assert found["the policies are sufficient"].result is CheckResult.OK
    assert found["alarms arrive"].result is CheckResult.FAILED, "nobody has subscribed"
    assert "ttft_ms (of the fronts)" in found["metrics arrive from tasks"].seen
    assert found["spans arrive"].result is CheckResult.SKIPPED
    assert found["a stream survives a deployment"].seen.startswith("`--disturb` tries it")
    assert found["a spot notice drains"].seen.startswith("try it: ")
    assert found["a worker drains"].seen == "no pool has a model"
    assert found["HTTPS answers"].seen.startswith("headgate.yaml has no domain")


def test_a_refusal_in_a_log_is_found(aws: None) -> None:
    looked = deployed()
    log("AccessDenied: not authorized to perform: dynamodb:PutItem")
    found = by_title(run_checks(looked))["the policies are sufficient"]
    assert found.result is CheckResult.FAILED
    assert "dynamodb:PutItem" in found.seen


def test_a_protection_that_ecs_refuses_is_found(aws: None) -> None:
    """Stubbed, because the stack of these tests has no workers."""
    line = '{"problem": "ECS does not protect the other workers: DEPLOYMENT_BLOCKED."}'
    parts = {
        "AWS::ECS::Service": ["arn:aws:ecs:us-east-1:1:service/c/headgate-default-workers"],
        "AWS::Logs::LogGroup": ["headgate-FunctionsSweepLog"],
    }
    answer = ("filter_log_events", {"events": [{"timestamp": 1, "message": line}]})
    found = run_stubbed("a worker retires", parts, "logs", answer)
    assert (found.result, "DEPLOYMENT_BLOCKED" in found.seen) == (CheckResult.FAILED, True)


def test_the_log_s_leader_and_the_audit_s_actors_are_read(aws: None) -> None:
    create_table(client("dynamodb"), "records")
    looked = deployed()
    outputs = {**looked.stack.outputs, "TableName": "records"}
    looked = replace(looked, stack=replace(looked.stack, outputs=outputs))
    leads, named = "a gate process leads", "an administrator is named"
    assert CHECKS[leads](looked, leads).result is CheckResult.FAILED, "the log is empty"
    assert CHECKS[named](looked, named).result is CheckResult.SKIPPED

    asyncio.run(_write(looked.now))
    assert CHECKS[leads](looked, leads).seen == "default: 10.0.0.1:8090"
    found = CHECKS[named](looked, named)
    assert (found.result, "alice" in found.seen) == (CheckResult.FAILED, True), "a name that is no ARN"


async def _write(now: float) -> None:
    """Write an entry with a leader, and a tenant whose creator is no identity of AWS."""
    store = DynamoStore(client("dynamodb"), "records", clock=RealClock(), random=real_random())
    log = store.log(load_config({}).pool)
    await log.append(0, encode_entry(Entry(0, now, "p:1", "10.0.0.1:8090", 1, (OrderSet("bwfq"),))))
    record = AuditRecord("1", now, "alice", "tenant.create", "acme", None, {})
    await store.put_tenant(Tenant("acme"), expected_version=None, audit=record)
    await store.close()


def test_a_table_that_cannot_be_read_is_a_warning(aws: None) -> None:
    found = by_title(run_checks(deployed()))
    for title in ("a gate process leads", "an administrator is named"):
        assert found[title].result is CheckResult.WARNING


@pytest.mark.parametrize(
    ("status", "result"), [(200, CheckResult.OK), (401, CheckResult.FAILED), (None, CheckResult.SKIPPED)]
)
def test_the_page_is_opened_with_the_secret_s_token(
    aws: None, monkeypatch: pytest.MonkeyPatch, status: int | None, result: CheckResult
) -> None:
    """Stubbed: the front's answer. None: it cannot be reached."""
    secret = client("secretsmanager").create_secret(Name="token", SecretString="t" * 40)["ARN"]
    asked: list[tuple[str, str]] = []

    def get(url: str, headers: dict[str, str], timeout: float) -> httpx.Response:
        asked.append((url, headers["authorization"]))
        if status is None:
            raise httpx.ConnectError("no route")
        return httpx.Response(status)

    monkeypatch.setattr(httpx, "get", get)
    looked = deployed()
    outputs = {"OperatorToken": secret, "OpenAiBaseUrl": "https://llm.example.com/v1"}
    looked = replace(looked, stack=replace(looked.stack, outputs=outputs))
    assert CHECKS["the operator's page"](looked, "page").result is result
    assert asked == [("https://llm.example.com/operator", f"Bearer {'t' * 40}")]


@pytest.mark.parametrize(
    ("states", "result", "seen"),
    [
        (["OK", "OK"], CheckResult.OK, "2 alarms have data"),
        (["OK", "ALARM"], CheckResult.WARNING, "in alarm: a1"),
        (["INSUFFICIENT_DATA", "ALARM"], CheckResult.FAILED, "no data for a0"),
    ],
)
def test_alarms_without_a_metric_are_named(aws: None, states: list[str], result: CheckResult, seen: str) -> None:
    """Stubbed: moto never evaluates an alarm."""
    names = [f"a{number}" for number in range(len(states))]
    alarms = [{"AlarmName": name, "StateValue": state} for name, state in zip(names, states, strict=True)]
    answer = ("describe_alarms", {"MetricAlarms": alarms})
    found = run_stubbed("each alarm has its metric", {"AWS::CloudWatch::Alarm": names}, "cloudwatch", answer)
    assert (found.result, seen in found.seen) == (result, True)


def test_more_alarms_than_one_request_takes_are_all_read(aws: None) -> None:
    names = [f"a{number:03}" for number in range(150)]
    answers = [
        (
            "describe_alarms",
            {"MetricAlarms": [{"AlarmName": name, "StateValue": state} for name in part]},
            {"AlarmNames": part, "MaxRecords": 100},
        )
        for part, state in ((names[:100], "OK"), (names[100:], "INSUFFICIENT_DATA"))
    ]
    found = run_stubbed("each alarm has its metric", {"AWS::CloudWatch::Alarm": names}, "cloudwatch", *answers)
    assert (found.result, "a149" in found.seen) == (CheckResult.FAILED, True)


@pytest.mark.parametrize(
    ("running", "rollout", "digests", "problem"),
    [
        (2, "COMPLETED", ["sha256:a", "sha256:a"], ""),
        (1, "COMPLETED", ["sha256:a"], "headgate-chat-workers: 1 of 2 tasks run"),
        (2, "IN_PROGRESS", ["sha256:a", "sha256:a"], "a deployment is IN_PROGRESS"),
        (2, "COMPLETED", ["sha256:a", "sha256:b"], "different images: sha256:a, sha256:b"),
    ],
)
def test_the_workers_of_each_pool(aws: None, running: int, rollout: str, digests: list[str], problem: str) -> None:
    """Stubbed: moto starts no task."""
    arn = "arn:aws:ecs:us-east-1:1:service/c/headgate-chat-workers"
    service = {"serviceName": "headgate-chat-workers", "serviceArn": arn, "runningCount": running, "desiredCount": 2}
    tasks = [{"containers": [{"name": "worker", "imageDigest": digest}]} for digest in digests]
    answers: list[tuple[Any, ...]] = [
        ("describe_services", {"services": [{**service, "deployments": [{"rolloutState": rollout}]}]}),
        ("list_tasks", {"taskArns": [f"t{number}" for number in range(len(tasks))]}),
        ("describe_tasks", {"tasks": tasks}),
    ]
    pools = {"chat": {"model": "s3://models/chat/", "count": {"min": 2, "max": 3}}}
    found = run_stubbed("each pool has its workers", {"AWS::ECS::Service": [arn]}, "ecs", *answers, pools=pools)
    assert (found.result is CheckResult.OK) is (problem == "")
    assert problem in found.seen


def test_a_line_after_an_empty_page_is_found(aws: None) -> None:
    """Stubbed: moto has no empty pages before those with lines, as CloudWatch may have."""
    line = "AccessDeniedException: no"
    pages = [{"events": [], "nextToken": "more"}, {"events": [{"timestamp": 1, "message": line}]}]
    answers = [("filter_log_events", page) for page in pages]
    group = {"AWS::Logs::LogGroup": ["headgate-FrontLog"]}
    found = run_stubbed("the policies are sufficient", group, "logs", *answers)
    assert (found.result, line in found.seen) == (CheckResult.FAILED, True)


def test_metrics_and_a_confirmed_subscription(aws: None) -> None:
    looked = deployed()
    for name in ("ttft_ms", "workers_wanted"):
        client("cloudwatch").put_metric_data(Namespace="headgate", MetricData=[{"MetricName": name, "Value": 1.0}])
    topic = looked.stack.outputs["AlarmTopic"]
    client("sns").subscribe(TopicArn=topic, Protocol="email", Endpoint="operators@example.com")
    found = by_title(run_checks(looked))
    assert found["metrics arrive from tasks"].result is CheckResult.OK
    assert found["alarms arrive"].result is CheckResult.OK


def test_an_output_that_is_missing_is_named(aws: None) -> None:
    looked = deployed()
    outputs = {name: value for name, value in looked.stack.outputs.items() if name != "AlarmTopic"}
    stack = DeployedStack("headgate", looked.stack.state, outputs, looked.stack.resources)
    found = run_checks(Deployed(client, stack, looked.deployment, looked.now))[0]
    assert (found.result, "AlarmTopic" in found.seen) == (CheckResult.FAILED, True)


@pytest.mark.parametrize(("healthy", "result"), [(2, CheckResult.OK), (1, CheckResult.FAILED), (0, CheckResult.FAILED)])
def test_fronts_that_are_healthy(aws: None, healthy: int, result: CheckResult) -> None:
    """Stubbed: moto reports no state of a target group's health checks."""
    states = ["healthy"] * healthy + ["unhealthy"] * (2 - healthy)
    targets = [{"TargetHealth": {"State": state}} for state in states]
    answer = ("describe_target_health", {"TargetHealthDescriptions": targets}, {"TargetGroupArn": "arn:t"})
    assert run_stubbed("fronts are healthy", {TARGETS: ["arn:t"]}, "elbv2", answer).result is result


def test_what_aws_refuses_is_a_warning(aws: None) -> None:
    stack = DeployedStack("headgate", "CREATE_COMPLETE", {}, {TARGETS: ["arn:aws:elasticloadbalancing:none"]})
    found = by_title(run_checks(Deployed(client, stack, Deployment(), RealClock().now())))
    assert found["fronts are healthy"].result in (CheckResult.WARNING, CheckResult.FAILED)
    assert found["a version is taken back"].result is CheckResult.FAILED


def test_the_command_writes_a_record(aws: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, record = tmp_path / "headgate.yaml", tmp_path / "seen.md"
    file.write_text("region: us-east-1\n")
    assert headgate("doctor", "deployed", "--file", str(file)) == 2
    assert "there is no stack headgate in this region" in capsys.readouterr().err
    deployed()
    code = headgate("doctor", "deployed", "--file", str(file), "--record", str(record), "--json")
    assert code == 1, "a new stack has no metrics"
    assert len(json.loads(capsys.readouterr().out)["findings"]) == len(CHECKS)
    assert "| the stack is created | ok |" in record.read_text()


def test_a_record_is_a_table_whatever_was_seen() -> None:
    page = as_markdown("headgate", [ok("a", "one | two\nthree")], 1_700_000_000.0)
    assert "| a | ok | one \\| two three |" in page
    assert "on 2023-11-14 22:13 UTC" in page

"""Rows of `headgate doctor deployed` that one answer of AWS decides: what each judges. The answers are moto's, or are
stubbed where moto has none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from io import BytesIO
from typing import Any

import httpx
import pytest

from headgate.doctor.deployed import changes, observed
from headgate.doctor.deployed.stack import Traffic
from headgate.doctor.finding import CheckResult
from tests.unit.doctor.test_deployed import aws as aws
from tests.unit.doctor.test_deployed import client, log, run, run_stubbed

CERTIFICATE = "arn:aws:acm:us-east-1:123456789012:certificate/a-b"
HTTPS: dict[str, Any] = {"domain": "llm.example.com", "certificate": CERTIFICATE}
TRAFFIC = Traffic("http://127.0.0.1:1/v1", "key", "chat", "run")


def play(monkeypatch: pytest.MonkeyPatch, address: str, answer: int | None) -> None:
    """Let the address answer with this status. None: it cannot be reached."""

    def get(url: str, timeout: float) -> httpx.Response:
        assert url == address
        if answer is None:
            raise httpx.ConnectError("no such host")
        return httpx.Response(answer)

    monkeypatch.setattr(httpx, "get", get)


@pytest.mark.parametrize(
    ("status", "answer", "result", "seen"),
    [
        ("ISSUED", 200, CheckResult.OK, "valid until 2027-01-31"),
        ("ISSUED", 503, CheckResult.FAILED, "answers 503"),
        ("ISSUED", None, CheckResult.FAILED, "no such host"),
        ("PENDING_VALIDATION", 200, CheckResult.FAILED, "the certificate is PENDING_VALIDATION"),
    ],
)
def test_https(
    aws: None, monkeypatch: pytest.MonkeyPatch, status: str, answer: int | None, result: CheckResult, seen: str
) -> None:
    """Stubbed: the certificate's state and the domain's answer."""
    play(monkeypatch, "https://llm.example.com/health", answer)
    certificate = {"Status": status, "NotAfter": datetime(2027, 1, 31, tzinfo=UTC)}
    described = ("describe_certificate", {"Certificate": certificate}, {"CertificateArn": CERTIFICATE})
    found = run_stubbed("HTTPS answers", {}, "acm", described, **HTTPS)
    assert (found.result, seen in found.seen) == (result, True), found


@pytest.mark.parametrize(
    ("front", "answer", "result"),
    [
        ("lambda", 200, CheckResult.OK),
        ("lambda", 403, CheckResult.FAILED),
        ("lambda", None, CheckResult.FAILED),
        ("fargate", 200, None),
    ],
)
def test_a_front_in_lambda(
    aws: None, monkeypatch: pytest.MonkeyPatch, front: str, answer: int | None, result: CheckResult | None
) -> None:
    """Stubbed: the answer of API Gateway."""
    play(monkeypatch, "https://x.execute-api.example/live/health", answer)
    outputs = {"OpenAiBaseUrl": "https://x.execute-api.example/live/v1"}
    found = run("a front in Lambda answers", {}, outputs=outputs, front=front)
    assert found.result is (result or CheckResult.SKIPPED)


def test_workers_before_servers_are_looked_at(aws: None) -> None:
    """Stubbed: moto starts no task."""
    arn = "arn:aws:ecs:us-east-1:123456789012:service/c/headgate-chat-server-0"
    described = {"serviceName": "headgate-chat-server-0", "serviceArn": arn, "runningCount": 0, "desiredCount": 1}
    services = ("describe_services", {"services": [{**described, "deployments": []}]})
    tasks: tuple[Any, ...] = ("list_tasks", {"taskArns": []})
    found = run_stubbed("each pool has its workers", {"AWS::ECS::Service": [arn]}, "ecs", services, tasks)
    assert (found.result, "headgate-chat-server-0: 0 of 1 tasks run" in found.seen) == (CheckResult.FAILED, True)


@pytest.mark.parametrize(
    ("flow", "refused"),
    [
        ("10.0.16.9 10.0.32.7 41022 8090", "10.0.16.9 to 10.0.32.7:8090"),
        ("10.0.16.9 10.0.32.7 8090 41022", ""),  # the late answer of a connection that has ended
        ("8.8.4.4 10.0.32.7 41022 8090", ""),  # from the internet: refused as it should be
        ("10.0.16.9 10.0.32.7 41022 22", ""),
        ("- - - -", ""),  # an interval without data
    ],
)
def test_refused_connections_between_processes_are_found(aws: None, flow: str, refused: str) -> None:
    name = "headgate-RejectedLog"
    client("logs").create_log_group(logGroupName=name)
    log(f"2 123456789012 eni-1 {flow} 6 1 40 1700000000 1700000060 REJECT OK", name)
    found = run("no connection is refused", {"AWS::Logs::LogGroup": [name]})
    assert found.result is (CheckResult.FAILED if refused else CheckResult.OK)
    assert refused in found.seen


def test_a_secret_is_rotated_when_it_has_a_second_version_and_processes_read_it(aws: None) -> None:
    secrets, title = client("secretsmanager"), "the workers' secret is rotated"
    name = secrets.create_secret(Name="StateWorkerSecret", SecretString="a")["ARN"]
    group = "headgate-FrontLog"
    resources = {"AWS::SecretsManager::Secret": [name], "AWS::Logs::LogGroup": [group]}
    client("logs").create_log_group(logGroupName=group)
    assert run(title, resources).result is CheckResult.SKIPPED
    secrets.put_secret_value(SecretId=name, SecretString="a,b")
    assert run(title, resources).result is CheckResult.OK
    log("The fleet's secrets could not be read again: ClientError.", group)
    found = run(title, resources)
    assert (found.result, "ClientError" in found.seen) == (CheckResult.FAILED, True)


class Functions:
    """A stand-in for Lambda: Event invocations have results, unless `lost` says that a version loses them."""

    def __init__(self, versions: Sequence[str], lost: str = "") -> None:
        self.versions, self.lost, self.live = versions, lost, versions[-1]
        self.aliases: list[str] = []
        self.results: set[str] = set()

    def get_alias(self, **asked: str) -> dict[str, str]:
        assert asked == {"FunctionName": "headgate-invoke", "Name": "live"}
        return {"FunctionVersion": self.live}

    def update_alias(self, **asked: str) -> None:
        self.live = asked["FunctionVersion"]
        self.aliases.append(self.live)

    def get_paginator(self, name: str) -> Functions:
        return self

    def paginate(self, **asked: str) -> list[dict[str, Any]]:
        return [{"Versions": [{"Version": each} for each in ("$LATEST", *self.versions)]}]

    def invoke(self, **asked: Any) -> dict[str, Any]:
        payload = json.loads(asked["Payload"])
        if asked.get("InvocationType") == "Event" and self.live != self.lost:
            self.results.add(payload["idempotency_key"])
        result = {"status": "done"} if payload.get("id") in self.results else {}
        return {"Payload": BytesIO(json.dumps(result).encode())}


@pytest.mark.parametrize(
    ("versions", "lost", "result", "seen", "aliases"),
    [
        (("9", "10"), "", CheckResult.OK, "from version 10 to 9 and back; 10 of 10 calls", ["9", "10"]),
        (("9", "10"), "9", CheckResult.FAILED, "5 of 10 calls have a result", ["9", "10"]),
        (("10",), "", CheckResult.SKIPPED, "has one version", []),
    ],
)
def test_a_version_is_taken_back_and_the_alias_returns(
    monkeypatch: pytest.MonkeyPatch,
    versions: Sequence[str],
    lost: str,
    result: CheckResult,
    seen: str,
    aliases: Sequence[str],
) -> None:
    monkeypatch.setattr(changes, "RESULT_S", 0.0)
    monkeypatch.setattr(changes, "POLL_S", 0.0)
    functions, title = Functions(versions, lost), "a version is taken back"
    resources = {"AWS::Lambda::Function": ["headgate-invoke", "headgate-result"]}
    assert run(title, resources, lambda _: functions).result is CheckResult.OK
    assert functions.aliases == [], "without --disturb nothing is changed"
    found = run(title, resources, lambda _: functions, TRAFFIC)
    assert (found.result, seen in found.seen) == (result, True), found
    assert functions.aliases == aliases


@pytest.mark.parametrize(
    ("history", "result", "seen"),
    [
        (["Successfully executed action arn:aws:sns:us-east-1:1:alarms"], CheckResult.OK, "its message is sent"),
        (
            ["Failed to execute action arn:aws:sns:us-east-1:1:alarms. Received error: …"],
            CheckResult.FAILED,
            "Failed to",
        ),
        ([], CheckResult.FAILED, "no action in"),
    ],
)
def test_an_alarm_that_is_raised_executes_its_action(
    aws: None, monkeypatch: pytest.MonkeyPatch, history: Sequence[str], result: CheckResult, seen: str
) -> None:
    """Stubbed: the history, because moto executes no action."""
    monkeypatch.setattr(observed, "HISTORY_S", 0.0)
    topic = client("sns").create_topic(Name="alarms")["TopicArn"]
    client("sns").subscribe(TopicArn=topic, Protocol="email", Endpoint="operators@example.com")
    raised = {"AlarmName": "a", "StateValue": "ALARM", "StateReason": "a test by headgate doctor"}
    items = [{"AlarmName": "a", "HistoryItemType": "Action", "HistorySummary": each} for each in history]
    answers = [("set_alarm_state", {}, raised), ("describe_alarm_history", {"AlarmHistoryItems": items})]
    alarms, outputs = {"AWS::CloudWatch::Alarm": ["b", "a"]}, {"AlarmTopic": topic}
    found = run_stubbed("alarms arrive", alarms, "cloudwatch", *answers, traffic=TRAFFIC, outputs=outputs)
    assert (found.result, seen in found.seen) == (result, True), found

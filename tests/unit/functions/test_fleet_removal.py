"""What CloudFormation calls before it deletes a pool's Auto Scaling group."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from botocore.exceptions import ClientError

from functions.fleet_removal import handler as removal

GROUP = "headgate-ChatFleetInstances"
EVENT = {
    "RequestType": "Delete",
    "ResponseURL": "https://bucket.example/answer",
    "StackId": "arn:stack",
    "RequestId": "request",
    "LogicalResourceId": "ChatFleetCapacityRemoval",
    "PhysicalResourceId": GROUP,
    "ResourceProperties": {"GroupName": GROUP},
}


def failed(code: str, message: str = "no") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "DeleteAutoScalingGroup")


class Groups:
    """EC2 Auto Scaling with one group of protected instances. A deletion with force takes `looks` looks at it; without
    force it never ends."""

    def __init__(self, looks: int = 3, errors: list[ClientError] | None = None) -> None:
        self.looks, self.errors, self.deletions, self.exists = looks, errors or [], 0, True

    def describe_auto_scaling_groups(self, **parameters: Any) -> dict[str, Any]:
        assert parameters == {"AutoScalingGroupNames": [GROUP]}
        if self.deletions:
            self.looks -= 1
            self.exists = self.looks > 0
        status = {"Status": "Delete in progress"} if self.deletions else {}
        found = {"AutoScalingGroupName": GROUP, "Instances": [{"ProtectedFromScaleIn": True}], **status}
        return {"AutoScalingGroups": [found] if self.exists else []}

    def delete_auto_scaling_group(self, **parameters: Any) -> None:
        assert parameters == {"AutoScalingGroupName": GROUP, "ForceDelete": True}
        if self.errors:
            raise self.errors.pop(0)
        self.deletions += 1


def answered(event: dict[str, Any], groups: Groups, seconds: float = 900.0) -> dict[str, Any]:
    """Return the answer to CloudFormation. The function has so many seconds."""
    left, sent = [seconds], list[tuple[str, bytes]]()

    def sleep(pause_s: float) -> None:
        left[0] -= pause_s

    removal.answer(event, lambda: groups, lambda: left[0], sleep, lambda url, body: sent.append((url, body)))
    ((url, body),) = sent
    assert url == EVENT["ResponseURL"]
    found: dict[str, Any] = json.loads(body)
    assert [found[name] for name in ("StackId", "RequestId", "LogicalResourceId")] == [
        EVENT[name] for name in ("StackId", "RequestId", "LogicalResourceId")
    ]
    return found


def test_a_deletion_deletes_the_group_with_force_and_waits_until_it_is_gone() -> None:
    groups = Groups()
    found = answered(EVENT, groups)
    assert (found["Status"], found["PhysicalResourceId"]) == ("SUCCESS", GROUP)
    assert (groups.exists, groups.deletions) == (False, 1)


@pytest.mark.parametrize("kind", ["Create", "Update"])
def test_nothing_else_deletes(kind: str) -> None:
    groups = Groups()
    former = {"PhysicalResourceId": "former"} if kind == "Update" else {}
    found = answered({**EVENT, **former, "RequestType": kind}, groups)
    assert (found["Status"], groups.deletions) == ("SUCCESS", 0)
    assert found["PhysicalResourceId"] == GROUP, "CloudFormation then deletes what had another id"


def test_a_group_that_is_gone_is_deleted() -> None:
    groups = Groups()
    groups.exists = False
    assert answered(EVENT, groups)["Status"] == "SUCCESS"
    assert groups.deletions == 0


@pytest.mark.parametrize(
    "error",
    [
        failed("ResourceContention"),
        failed("ScalingActivityInProgress"),
        failed("Throttling"),
        failed("ValidationError", f"AutoScalingGroup name not found - {GROUP}"),
    ],
)
def test_a_busy_group_is_deleted_at_the_next_try(error: ClientError) -> None:
    groups = Groups(errors=[error])
    assert answered(EVENT, groups)["Status"] == "SUCCESS"
    assert not groups.exists


def test_any_other_error_is_the_reason() -> None:
    found = answered(EVENT, Groups(errors=[failed("AccessDenied", "no right")]))
    assert found["Status"] == "FAILED"
    assert "AccessDenied" in found["Reason"]


def test_a_group_that_remains_is_told_before_the_function_ends() -> None:
    found = answered(EVENT, Groups(looks=10_000))
    assert found["Status"] == "FAILED"
    assert f"{GROUP} still has 1 instances, which are ending: delete the stack again" in found["Reason"]


@pytest.fixture
def bucket() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A server for answers, which fails once."""
    received: list[tuple[str, bytes]] = []

    class Bucket(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.headers["Content-Type"], body))
            self.send_response(503 if len(received) == 1 else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Write no line."""

    with HTTPServer(("127.0.0.1", 0), Bucket) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/answer", received
        server.shutdown()


def test_the_answer_is_put_with_the_type_that_was_signed(bucket: tuple[str, list[tuple[str, bytes]]]) -> None:
    url, received = bucket
    removal.send(url, b"{}")
    assert received == [("", b"{}")] * 2


def test_an_answer_that_cannot_be_put_is_an_error() -> None:
    with pytest.raises(OSError, match="refused"):
        removal.send("http://127.0.0.1:9/answer", b"{}")

"""The calls that each role's processes make on this machine, against the policies of the synthesised templates."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from dispatcher.stores import layout
from dispatcher.stores.table import PARTITION
from tests.infra.conftest import Synthesise
from tests.infra.templates import IMAGE, Template, functions, listed, managed_policy, of_type, role_of, template_in
from tests.support.iam.policies import LEADING_KEYS, Call, Grant, Names, allows, policies, unused
from tests.support.iam.recorder import Recorder
from tests.support.iam.scenario import play
from tests.support.iam.stack import (
    ADMIN,
    EXECUTE,
    FRONT,
    FUNCTIONS,
    LAMBDA_FRONT,
    MODEL,
    OPERATOR,
    POLLER,
    RESULT,
    SWEEP,
    WORKER,
    recorded_stack,
)

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]

Statements = Sequence[Mapping[str, Any]]

MADE_BY_AWS = {
    **dict.fromkeys(("logs:CreateLogStream", "logs:PutLogEvents"), "Lambda writes the function's log"),
    **dict.fromkeys(("xray:PutTraceSegments", "xray:PutTelemetryRecords"), "Lambda writes the function's trace"),
    "sqs:GetQueueUrl": "the CDK allows it to each consumer",
    "sqs:GetQueueAttributes": "Lambda reads it when the event source mapping is made",
    "sqs:ChangeMessageVisibility": "Lambda returns messages that its pollers cannot deliver",
}
"""Actions that no process of ours calls, with what needs them. All `ec2:` actions connect a function to its VPC."""
OF_WHICHEVER_WRITES = {
    *(("dynamodb:PutItem", kind) for kind in ("LOG", "SNAP", "STATE", "USAGE", "MAIL")),
    *(("dynamodb:Query", "MAIL"), ("dynamodb:GetItem", "INV"), ("dynamodb:UpdateItem", "INV"), ("sqs:SendMessage", "")),
}
"""Actions of the process that writes the log's next entry, on which partition: it may be any of those that can decide,
and in this recording another one did. It keeps an answer, sends news to a mailbox or starts a detached execution with
the entry, and projections after 2,000 entries or an hour, which is later than a test ends."""
NOT_RECORDED = {
    (RESULT, "dynamodb:Query", "SNAP"): "a log begins with a snapshot only after 2,000 entries or an hour",
    (EXECUTE, "dynamodb:Query", "SNAP"): "the same",
    (WORKER, "dynamodb:Query", "LOG"): "the stripes of a log; the recording's is not striped (test_policies.py)",
    (WORKER, "dynamodb:Query", "SNAP"): "the same",
    (FRONT, "dynamodb:GetItem", "CALL"): "a repeated key, after an end that may be tried again (results.py)",
    (LAMBDA_FRONT, "dynamodb:GetItem", "CALL"): "the same",
    (
        SWEEP,
        "ecs:UpdateTaskProtection",
        "",
    ): "a scale-in, after a hold of ten minutes; tests/infra/test_scaling_role.py",
    (FRONT, "s3:AbortMultipartUpload", ""): "an upload of more than 8 MiB that breaks off (dispatcher/files/s3.py)",
}
"""What a role needs in cases that the recording does not reach, by role, action and partition."""
REFUSED = {
    (OPERATOR, "dynamodb:Query", "TENANTS"): "doctor skips its row `shares`: tenants' settings are for administrators",
}
"""Calls that a role may not make, by role, action and partition. What calls goes on without the answer."""
CLASSES = {"chat": {"first_token_s": 20}, "night": {"first_token_s": 3600, "deferred": True}}


@pytest.fixture(scope="module")
def front_template(synthesise: Synthesise) -> Template:
    return _synthesised(synthesise, "fargate")


@pytest.fixture(scope="module")
def function_template(synthesise: Synthesise) -> Template:
    return _synthesised(synthesise, "lambda")


def _synthesised(synthesise: Synthesise, front: str) -> Template:
    pools = {"default": {"model": MODEL, "image": IMAGE, "count": {"min": 0, "max": 2}}}
    return template_in(synthesise(front=front, pools=pools, slo_classes=CLASSES))


@pytest.fixture(scope="module")
def recorder(
    front_template: Template, function_template: Template, tmp_path_factory: pytest.TempPathFactory
) -> Recorder:
    return asyncio.run(_recorded(front_template, function_template, tmp_path_factory.mktemp("recorded")))


async def _recorded(front_template: Template, function_template: Template, home: Path) -> Recorder:
    async with recorded_stack(front_template, function_template, home) as stack:
        await play(stack)
    return stack.recorder


@pytest.fixture(scope="module", params=[*FUNCTIONS, FRONT, LAMBDA_FRONT, WORKER, OPERATOR])
def role(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def calls(recorder: Recorder, role: str) -> set[Call]:
    """What the role's processes called. Lambda's pollers use the role of the function."""
    return recorder.calls[role] | (recorder.calls[POLLER] if role == EXECUTE else set())


@pytest.fixture(scope="module")
def each_policy(role: str, front_template: Template, function_template: Template) -> list[Statements]:
    """The statements of the role, in each template that has it."""
    templates = {FRONT: [front_template], LAMBDA_FRONT: [function_template]}
    found = templates.get(role, [front_template, function_template])
    if role == OPERATOR:
        return [Names(each).resolved(managed_policy(each, "StateOperatorPolicy")) for each in found]
    return [policies(each, _role_id(each, role)) for each in found]


def _role_id(template: Template, role: str) -> str:
    """The logical id of the role."""
    if role in FUNCTIONS or role == LAMBDA_FRONT:
        return role_of(functions(template)[f"headgate-{role.removeprefix('lambda-')}"])
    for task in of_type(template, "AWS::ECS::TaskDefinition"):
        if role in {container["Name"] for container in task["ContainerDefinitions"]}:
            return str(task["TaskRoleArn"]["Fn::GetAtt"][0])
    raise KeyError(role)


def refused(statements: Statements, calls: set[Call]) -> set[Call]:
    return {call for call in calls if not allows(statements, call)}


def never_called(statements: Statements, calls: set[Call]) -> set[tuple[str, str]]:
    """The actions that no call used, with the kind of the partition, without those that AWS itself needs."""
    found = {(each.action, each.leading_key.partition("#")[0]) for each in unused(statements, calls)}
    return {(action, kind) for action, kind in found if action not in MADE_BY_AWS and not action.startswith("ec2:")}


def _all_grants(statements: Statements) -> set[Grant]:
    return unused(statements, ())


def test_every_request_was_read(recorder: Recorder) -> None:
    assert recorder.unread == []
    assert recorder.calls.keys() == {*FUNCTIONS, FRONT, LAMBDA_FRONT, WORKER, OPERATOR, POLLER}


def test_each_recorded_call_is_allowed(role: str, each_policy: list[Statements], calls: set[Call]) -> None:
    assert len(calls) > 3
    known = {(action, kind) for owner, action, kind in REFUSED if owner == role}
    for statements in each_policy:
        found = {(call.action, *kinds_of(call)) for call in refused(statements, calls)}
        assert found == known


def kinds_of(call: Call) -> list[str]:
    return [key.partition("#")[0] for key in call.values(LEADING_KEYS)]


def test_no_action_on_a_partition_is_unused(role: str, each_policy: list[Statements], calls: set[Call]) -> None:
    known = {(action, kind) for owner, action, kind in NOT_RECORDED if owner == role}
    decides = set() if role in (RESULT, ADMIN, OPERATOR) else OF_WHICHEVER_WRITES
    for statements in each_policy:
        assert never_called(statements, calls) - decides - known == set()


def test_each_exception_is_one(recorder: Recorder, front_template: Template, function_template: Template) -> None:
    """An action that was recorded after all needs no reason."""
    together = set().union(*recorder.calls.values())
    for role, action, kind in NOT_RECORDED:
        template = function_template if role == LAMBDA_FRONT else front_template
        idle = never_called(policies(template, _role_id(template, role)), recorder.calls[role])
        assert (action, kind) in idle, f"{role} does {action} {kind}: it needs no exception"
    statements = policies(front_template, _role_id(front_template, FRONT))
    of_all = never_called(statements, together) & OF_WHICHEVER_WRITES
    assert {kind for _, kind in of_all} <= {"SNAP", "STATE", "USAGE"}, "one of the processes did each of the others"


# ── Seeded violations ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def front_policy(front_template: Template) -> list[dict[str, Any]]:
    return [deepcopy(dict(each)) for each in policies(front_template, _role_id(front_template, FRONT))]


@pytest.mark.parametrize(
    ("action", "left"),
    [
        ("dynamodb:Query", ["dynamodb:GetItem"]),
        ("dynamodb:PutItem", ["dynamodb:UpdateItem"]),
        ("s3:DeleteObject", ["s3:GetObject", "s3:PutObject"]),
        ("sqs:SendMessage", ["sqs:ReceiveMessage"]),
    ],
)
def test_a_missing_action_is_found(
    front_policy: list[dict[str, Any]], recorder: Recorder, action: str, left: list[str]
) -> None:
    for statement in front_policy:
        if action in statement["Action"]:
            statement["Action"] = left
    found = refused(front_policy, recorder.calls[FRONT])
    assert action in {call.action for call in found}


@pytest.mark.parametrize("key", ["LOG#*", "FILE#*", "RESP#*", "KEY#*"])
def test_a_narrowed_partition_is_found(front_policy: list[dict[str, Any]], recorder: Recorder, key: str) -> None:
    for statement in front_policy:
        keys = statement.get("Condition", {}).get("ForAllValues:StringLike", {}).get(LEADING_KEYS, [])
        keys[:] = [each for each in keys if each != key]
    found = refused(front_policy, recorder.calls[FRONT])
    assert found
    assert all(value.startswith(key[:-1]) for call in found for value in call.values(LEADING_KEYS))


def test_another_table_and_another_bucket_are_found(front_policy: list[dict[str, Any]], recorder: Recorder) -> None:
    for statement in front_policy:
        statement["Resource"] = f"{statement['Resource']}-other"
    assert refused(front_policy, recorder.calls[FRONT]) == recorder.calls[FRONT]


@pytest.mark.parametrize("key", [layout.tenant_key("a"), layout.key_key("a"), layout.listing_key("a")])
@pytest.mark.parametrize("action", ["dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem"])
def test_only_the_admin_function_writes_tenants_and_keys(
    role: str, each_policy: list[Statements], front_template: Template, key: dict[str, str], action: str
) -> None:
    call = Call(action, _table(front_template), ((LEADING_KEYS, (key[PARTITION],)),))
    may = role == ADMIN and action != "dynamodb:UpdateItem"
    assert all((call in refused(statements, {call})) != may for statements in each_policy)


def test_no_role_changes_an_audit_record(each_policy: list[Statements], front_template: Template) -> None:
    for action in ("dynamodb:UpdateItem", "dynamodb:DeleteItem"):
        call = Call(action, _table(front_template), ((LEADING_KEYS, ("AUDIT#2026-11",)),))
        assert all(refused(statements, {call}) for statements in each_policy)


@pytest.mark.parametrize("action", ["dynamodb:Scan", "dynamodb:Query", "dynamodb:GetItem"])
def test_a_request_without_a_partition_is_refused(
    each_policy: list[Statements], front_template: Template, action: str
) -> None:
    assert all(refused(statements, {Call(action, _table(front_template))}) for statements in each_policy)


def _table(template: Template) -> str:
    names = Names(template)
    return names.arn(names.logical_id("AWS::DynamoDB::Table"))


@pytest.mark.parametrize(
    "added",
    [
        {"Effect": "Allow", "Action": "dynamodb:DeleteItem", "Resource": "*"},
        {"Effect": "Allow", "Action": ["sqs:PurgeQueue"], "Resource": "*"},
        {"Effect": "Allow", "Action": "dynamodb:Scan", "Resource": "arn:aws:dynamodb:us-east-1:123456789012:table/b"},
    ],
)
def test_an_added_action_is_found(
    front_policy: list[dict[str, Any]], recorder: Recorder, added: dict[str, Any]
) -> None:
    made = recorder.calls[FRONT]
    found = never_called([*front_policy, added], made) - never_called(front_policy, made)
    assert found
    assert {action for action, _ in found} <= set(listed(added["Action"]))

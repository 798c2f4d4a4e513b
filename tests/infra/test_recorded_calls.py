"""The calls that each role's processes make on this machine, against the policies of the synthesised templates."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from dispatcher.stores.dynamodb import layout
from tests.infra.conftest import IMAGE, Synthesise
from tests.infra.templates import Template, functions, managed_policy, of_type, role_of, template_in
from tests.support.iam.names import Names, policies
from tests.support.iam.policies import LEADING_KEYS, Call, Grant, allows, unused
from tests.support.iam.recorder import Recorder
from tests.support.iam.scenario import play
from tests.support.iam.stack import (
    ADMIN,
    EXECUTE,
    FRONT,
    FUNCTIONS,
    INVOKE,
    LAMBDA_FRONT,
    MODEL,
    OPERATOR,
    POLLER,
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
APPENDS = "whichever process writes the log's next entry makes it; in this recording another one did"
NOT_RECORDED = {
    (INVOKE, "dynamodb:UpdateItem"): APPENDS,
    (INVOKE, "sqs:SendMessage"): APPENDS,
    (EXECUTE, "dynamodb:PutItem"): APPENDS,
    (EXECUTE, "dynamodb:UpdateItem"): APPENDS,
    (EXECUTE, "sqs:SendMessage"): APPENDS,
    (SWEEP, "dynamodb:GetItem"): APPENDS,
    (SWEEP, "dynamodb:UpdateItem"): APPENDS,
    (SWEEP, "dynamodb:PutItem"): APPENDS,
    (SWEEP, "sqs:SendMessage"): APPENDS,
    (SWEEP, "ecs:UpdateTaskProtection"): "a scale-in, after a hold of ten minutes; tests/infra/test_scaling_role.py",
    (LAMBDA_FRONT, "sqs:SendMessage"): APPENDS,
    (FRONT, "s3:AbortMultipartUpload"): "an upload of more than 8 MiB that breaks off (dispatcher/files/s3.py)",
    (
        WORKER,
        "dynamodb:GetItem",
    ): "the gate reads a stored answer when an attempt ends without a report (kept_answers.py)",
}
"""What a role needs in cases that the recording does not reach. UpdateItem keeps an answer, SendMessage starts a
detached execution: both go with an entry of the log."""
OF_SNAPSHOTS = {"SNAP#*", "STATE#*", "USAGE#*"}
"""Written with a snapshot, after 2,000 entries or an hour (dispatcher/service/snapshots.py): later than a test ends.
A tenant's state (STATE) is read by an operator's commands only."""
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


def never_called(statements: Statements, calls: set[Call]) -> set[str]:
    """The actions of grants of which no pattern of partition keys is used, without those that AWS itself needs."""
    found = unused(statements, calls)
    used = {(each.action, each.resource) for each in _all_grants(statements) - found}
    idle = {each.action for each in found if (each.action, each.resource) not in used}
    return {action for action in idle if action not in MADE_BY_AWS and not action.startswith("ec2:")}


def _all_grants(statements: Statements) -> set[Grant]:
    return unused(statements, ())


def test_every_request_was_read(recorder: Recorder) -> None:
    assert recorder.unread == []
    assert recorder.calls.keys() == {*FUNCTIONS, FRONT, LAMBDA_FRONT, WORKER, OPERATOR, POLLER}


def test_each_recorded_call_is_allowed(each_policy: list[Statements], calls: set[Call]) -> None:
    assert len(calls) > 3
    for statements in each_policy:
        assert refused(statements, calls) == set()


def test_no_action_is_unused(role: str, each_policy: list[Statements], calls: set[Call]) -> None:
    known = {action for owner, action in NOT_RECORDED if owner == role}
    for statements in each_policy:
        assert never_called(statements, calls) - known == set()


def test_each_kind_of_partition_is_used(recorder: Recorder, front_template: Template) -> None:
    """The gate's roles share one list of partitions: at least one of them must need each."""
    statements = policies(front_template, _role_id(front_template, FRONT))
    together = set().union(*recorder.calls.values())
    all_grants, idle = _all_grants(statements), unused(statements, together)
    for actions in ({"dynamodb:PutItem", "dynamodb:UpdateItem"}, {"dynamodb:GetItem", "dynamodb:Query"}):
        granted = {grant.leading_key for grant in all_grants if grant.action in actions}
        used = {grant.leading_key for grant in all_grants - idle if grant.action in actions}
        assert len(granted) > 10
        assert granted - used <= OF_SNAPSHOTS


# ── Seeded violations ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def front_policy(front_template: Template) -> list[dict[str, Any]]:
    return [deepcopy(dict(each)) for each in policies(front_template, _role_id(front_template, FRONT))]


@pytest.mark.parametrize(
    ("action", "left"),
    [
        ("dynamodb:Query", ["dynamodb:GetItem"]),
        ("dynamodb:UpdateItem", ["dynamodb:PutItem"]),
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
    call = Call(action, _table(front_template), ((LEADING_KEYS, (key[layout.PARTITION],)),))
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
        {"Effect": "Allow", "Action": "dynamodb:Query", "Resource": "arn:aws:dynamodb:us-east-1:123456789012:table/b"},
    ],
)
def test_an_added_action_is_found(
    front_policy: list[dict[str, Any]], recorder: Recorder, added: dict[str, Any]
) -> None:
    made = recorder.calls[FRONT]
    (action,) = never_called([*front_policy, added], made) - never_called(front_policy, made)
    assert action in added["Action"]

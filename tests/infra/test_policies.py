"""What roles may do. cdk-nag does not notice a Scan in a grant: this does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatcher.stores import layout
from tests.infra.templates import (
    Template,
    actions,
    functions,
    listed,
    managed_policy,
    of_type,
    open_ended,
    role_of,
    statements,
)
from tests.support.iam.policies import matches

WITHOUT_RESOURCE = {
    *("xray:PutTraceSegments", "xray:PutTelemetryRecords", "xray:PutSpans", "xray:PutSpansForIndexing"),
    *("ecr:GetAuthorizationToken", "autoscaling:DescribeAutoScalingGroups"),
    *("ec2:CreateNetworkInterface", "ec2:DescribeNetworkInterfaces", "ec2:DeleteNetworkInterface"),
    *("ec2:DescribeSubnets", "ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses"),
}
"""Actions for which AWS knows no resource but `*`."""
WRITES = {"dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem"}

GATE_PARTITIONS = {
    *("LOG#*", "SNAP#*", "MAIL#*", "INV#*", "CALL#*", "RESP#*", "USAGE#*", "STATE#*"),
    *("FILE#*", "BATCH#*", "OPEN#*"),
}


def findings(template: Template) -> list[str]:
    found = []
    for role, statement in statements(template):
        for action in actions(statement):
            if (
                ("*" in action and not _is_ecs_agent(statement))
                or action.endswith(":Scan")
                or action.startswith("dynamodb:PartiQL")
            ):
                found.append(f"{role}: {action}")
        if set(actions(statement)) <= WITHOUT_RESOURCE or _is_ecs_agent(statement):
            continue
        if _are_files(statement) or _are_tasks(statement) or _is_one_group(statement):
            continue
        if open_ended(statement):
            found.append(f"{role}: {actions(statement)} on {open_ended(statement)}")
    return found


AGENT = {
    *("ecs:DeregisterContainerInstance", "ecs:RegisterContainerInstance", "ecs:Submit*", "ecs:Poll"),
    *("ecs:StartTelemetrySession", "ecs:DiscoverPollEndpoint", "ecr:GetAuthorizationToken"),
    *("logs:CreateLogStream", "logs:PutLogEvents"),
}
"""What the CDK allows an instance for ECS's agent. Containers have no access to the instance's credentials."""


def _is_ecs_agent(statement: dict[str, Any]) -> bool:
    found = set(actions(statement))
    return found <= AGENT and any(action.startswith("ecs:") for action in found)


def _are_files(statement: dict[str, Any]) -> bool:
    """Return whether the statement allows the objects of one bucket or of one model."""
    return _are_all_in_one(statement, "s3:")


def _are_tasks(statement: dict[str, Any]) -> bool:
    """Return whether the statement allows to protect the tasks of one cluster."""
    return actions(statement) == ["ecs:UpdateTaskProtection"] and _are_all_in_one(statement, "ecs:")


def _is_one_group(statement: dict[str, Any]) -> bool:
    """Return whether the statement allows to delete one Auto Scaling group, whose random id no template knows."""
    (resource,) = listed(statement["Resource"])
    parts = resource["Fn::Join"][1] if isinstance(resource, dict) and "Fn::Join" in resource else [""]
    is_named = isinstance(parts[-1], dict) and parts[-2:-1] == [":autoScalingGroup:*:autoScalingGroupName/"]
    return actions(statement) == ["autoscaling:DeleteAutoScalingGroup"] and is_named


def _are_all_in_one(statement: dict[str, Any], service: str) -> bool:
    """Return whether the statement allows actions of one service on all that is in one thing."""
    (resource,) = listed(statement["Resource"]) if len(listed(statement["Resource"])) == 1 else (None,)
    last = str(resource.get("Fn::Join", ["", [""]])[1][-1]) if isinstance(resource, dict) else ""
    is_all = last.endswith("/*") and last.count("*") == 1
    return is_all and all(action.startswith(service) for action in actions(statement))


def test_roles_name_actions_and_things(each_template: Template) -> None:
    assert len(list(statements(each_template))) > 20
    assert findings(each_template) == []


@pytest.mark.parametrize(
    ("action", "resource"),
    [
        ("dynamodb:Scan", "arn:x"),
        ("dynamodb:*", "arn:x"),
        ("sqs:SendMessage", "*"),
        (["dynamodb:GetItem"], {"Fn::Join": ["", ["arn", "/index/*"]]}),
        (["xray:PutTraceSegments", "s3:GetObject"], "*"),
    ],
)
def test_what_is_too_much_is_found(action: Any, resource: Any) -> None:
    policy = {"Roles": [{"Ref": "R"}], "PolicyDocument": {"Statement": [{"Action": action, "Resource": resource}]}}
    assert findings({"Resources": {"P": {"Type": "AWS::IAM::Policy", "Properties": policy}}})


def test_every_function_has_a_role_of_its_own(each_template: Template) -> None:
    roles = [role_of(function) for function in functions(each_template).values()]
    assert len(set(roles)) == len(roles)


def test_result_only_reads(each_template: Template) -> None:
    role = role_of(functions(each_template)["headgate-result"])
    allowed = {action for owner, each in statements(each_template) if owner == role for action in actions(each)}
    reads = {"dynamodb:GetItem", "dynamodb:Query"}
    assert {action for action in allowed if action.startswith(("dynamodb:", "sqs:"))} == reads


def test_only_the_consumer_receives(each_template: Template) -> None:
    receiving = {role for role, each in statements(each_template) if "sqs:ReceiveMessage" in actions(each)}
    assert receiving == {role_of(functions(each_template)["headgate-execute"])}


def leading_keys(statement: dict[str, Any]) -> set[str]:
    """The partitions of a statement. Without the Null condition a request that names no key would be allowed."""
    assert statement["Condition"]["Null"] == {"dynamodb:LeadingKeys": "false"}
    return set(statement["Condition"]["ForAllValues:StringLike"]["dynamodb:LeadingKeys"])


def of_the_gate(template: Template) -> list[dict[str, Any]]:
    """The statements of all roles but that of headgate-admin."""
    admin = role_of(functions(template)["headgate-admin"])
    return [each for role, each in statements(template) if role != admin]


def kinds(statement: dict[str, Any]) -> set[str]:
    """The kinds of partitions that a statement names. A worker's names its own pool's ones."""
    return {f"{key.partition('#')[0]}#*" if "#" in key else key for key in leading_keys(statement)}


def test_only_the_admin_function_writes_tenants_keys_and_the_listing(each_template: Template) -> None:
    writing = [each for each in of_the_gate(each_template) if WRITES & set(actions(each))]
    assert len(writing) >= 4
    for statement in writing:
        assert kinds(statement) <= GATE_PARTITIONS


def test_the_admin_function_deletes_no_audit_record_and_touches_nothing_else(each_template: Template) -> None:
    admin = role_of(functions(each_template)["headgate-admin"])
    by_action: dict[str, set[str]] = {}
    for role, each in statements(each_template):
        for action in actions(each) if role == admin else ():
            if action.startswith(("dynamodb:", "secretsmanager:", "s3:", "sqs:")):
                by_action.setdefault(action, set()).update(leading_keys(each))
    configuration = {"TENANT#*", "KEY#*", "TENANTS"}
    assert by_action == {
        "dynamodb:GetItem": {"TENANT#*", "KEY#*"},
        "dynamodb:Query": {"TENANT#*", "TENANTS", "AUDIT#*"},
        "dynamodb:PutItem": configuration | {"AUDIT#*"},
        "dynamodb:DeleteItem": configuration,
    }


def test_two_policies_for_callers_allow_to_invoke_and_nothing_else(each_template: Template) -> None:
    resources = each_template["Resources"]

    def invoked_by(arn: dict[str, Any]) -> str:
        if "Fn::GetAtt" in arn:
            return str(resources[arn["Fn::GetAtt"][0]]["Properties"]["FunctionName"])
        alias = resources[arn["Ref"]]["Properties"]
        return f"{resources[alias['FunctionName']['Ref']]['Properties']['FunctionName']}:{alias['Name']}"

    invoked = []
    for name in ("FunctionsInvokerPolicy", "FunctionsAdministratorPolicy"):
        (statement,) = managed_policy(each_template, name)
        assert actions(statement) == ["lambda:InvokeFunction"]
        invoked.append({invoked_by(each) for each in listed(statement["Resource"])})
    assert len(of_type(each_template, "AWS::IAM::ManagedPolicy")) == 3, "and that of operators"
    assert sorted(invoked, key=len) == [{"headgate-admin"}, {"headgate-invoke:live", "headgate-result:live"}]


def test_operators_read_no_prompt_and_no_key(each_template: Template) -> None:
    table, token = managed_policy(each_template, "StateOperatorPolicy")
    assert actions(table) == ["dynamodb:Query"]
    assert leading_keys(table) == {"LOG#*", "SNAP#*", "USAGE#*", "AUDIT#*"}
    assert actions(token) == ["secretsmanager:GetSecretValue"]
    assert "StateOperatorToken" in json.dumps(token["Resource"])


def test_no_other_function_reads_the_listing(each_template: Template) -> None:
    reading = [each for each in of_the_gate(each_template) if "dynamodb:GetItem" in actions(each)]
    assert len(reading) >= 5
    for statement in reading:
        assert kinds(statement) <= GATE_PARTITIONS | {"TENANT#*", "KEY#*"}


def test_the_partitions_are_those_of_the_store() -> None:
    """Only administrators write the last kinds of the layout; the gate writes all others."""
    kinds = {line.split("#")[0].strip() for line in (layout.__doc__ or "").splitlines() if "#<" in line[:24]}
    assert {f"{kind}#*" for kind in kinds} == GATE_PARTITIONS | {"TENANT#*", "KEY#*", "AUDIT#*"}


def test_who_writes_a_log_writes_its_stripes(each_template: Template) -> None:
    """Otherwise a process that makes the mark of a striped log could not write the entry after it."""
    usual = [layout.log_partition("default"), layout.snapshot_partition("default")]
    striped = [*(layout.stripe_partition("default", stripe) for stripe in (0, 15)),
               layout.snapshot_partition("default", is_striped=True)]  # fmt: skip
    writers = 0
    for _, each in statements(each_template):
        if "dynamodb:PutItem" in actions(each) and (patterns := leading_keys(each)):
            may_write = [any(matches(pattern, key) for pattern in patterns) for key in (*usual, *striped)]
            assert len(set(may_write)) == 1, patterns
            writers += may_write[0]
    assert writers >= 3


def test_managed_policies_only_where_aws_asks_for_one(template: Template, lambda_template: Template) -> None:
    assert not any(role.get("ManagedPolicyArns") for role in of_type(template, "AWS::IAM::Role"))
    managed = [json.dumps(each["ManagedPolicyArns"]) for each in of_type(lambda_template, "AWS::IAM::Role") if
               each.get("ManagedPolicyArns")]  # fmt: skip
    assert len(managed) == 1
    assert "AmazonAPIGatewayPushToCloudWatchLogs" in managed[0]


def test_a_careless_stack_fails_the_synthesis(tmp_path: Path, synthesised: Path) -> None:
    """The fixture's synthesis passed AWS's checks: this shows that they would have stopped it."""
    from aws_cdk import App, Stack, Validations
    from aws_cdk import aws_sqs as sqs
    from cdk_nag import AwsSolutionsChecks

    app = App(outdir=str(tmp_path))
    sqs.Queue(Stack(app, "Careless"), "Queue")
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    with pytest.raises(RuntimeError, match="AwsSolutions-SQS4"):
        app.synth()

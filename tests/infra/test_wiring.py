"""Each process has the rights, the open port, the log and the order of creation that it needs; and each fault that is
planted in a copy of a template is found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.infra.conftest import Synthesise
from tests.infra.templates import IMAGE, MODEL, Template, actions, ids_of_type, statements, template_in
from tests.infra.wiring import problems, processes

SERVERS = [{"url": "http://a.internal:8000/v1", "model": "qwen"}]
Fault = Callable[[Template], Any]


@pytest.fixture(scope="module")
def all_kinds(synthesise: Synthesise) -> Template:
    """Fronts on Fargate, and a pool of each capacity and of servers."""
    fleet = {"image": IMAGE}
    pools = {
        "chat": {"model": MODEL, **fleet},
        "code": {"model": "s3://models/code/", "capacity": "managed_instances", "spot_percent": 50, **fleet},
        "far": {"servers": SERVERS},
    }
    return template_in(synthesise(pools=pools))


def test_every_process_has_what_it_needs(all_kinds: Template, each_template: Template) -> None:
    for template in (all_kinds, each_template):
        assert list(problems(template)) == []
    names = {process.name for process in processes(all_kinds)}
    assert {"front", "gate-chat", "batches", "gate", "worker", "weights", "invoke", "sweep", "remove-fleet"} <= names


def _container(template: Template, service: str, name: str) -> dict[str, Any]:
    resources = template["Resources"]
    (found,) = (each for each in ids_of_type(template, "AWS::ECS::Service") if each.startswith(service))
    task = resources[resources[found]["Properties"]["TaskDefinition"]["Ref"]]["Properties"]
    (container,) = (each for each in task["ContainerDefinitions"] if each["Name"] == name)
    assert isinstance(container, dict)
    return container


def _without_right(role: str, action: str) -> Fault:
    def plant(template: Template) -> None:
        found = [each for owner, each in statements(template) if owner.startswith(role) and action in actions(each)]
        assert found
        for statement in found:
            statement["Action"] = [each for each in actions(statement) if each != action] or ["none:None"]

    return plant


def _other_port(service: str, name: str) -> Fault:
    """Let the process listen on another port than the one that is open."""

    def plant(template: Template) -> None:
        command = _container(template, service, name)["Command"]
        command[command.index("--port") + 1] = "9090"

    return plant


def _closed(template: Template) -> None:
    """Open another port than the one of the gate processes beside workers."""
    for name in ids_of_type(template, "AWS::EC2::SecurityGroupIngress"):
        if name.startswith("NetworkWorkerfrom") and template["Resources"][name]["Properties"]["FromPort"] == 8090:
            template["Resources"][name]["Properties"].update(FromPort=8091, ToPort=8091)


def _log_of(service: str, name: str, other: str) -> Fault:
    def plant(template: Template) -> None:
        (log,) = (each for each in ids_of_type(template, "AWS::Logs::LogGroup") if each.startswith(other))
        _container(template, service, name)["LogConfiguration"]["Options"]["awslogs-group"] = {"Ref": log}

    return plant


def _shared_log(template: Template) -> None:
    """Write a function's log into another one's, with the right to do so."""
    functions = [template["Resources"][each] for each in sorted(ids_of_type(template, "AWS::Lambda::Function"))]
    by_name = {each["Properties"]["FunctionName"]: each["Properties"] for each in functions}
    log = by_name["headgate-result"]["LoggingConfig"]["LogGroup"]
    by_name["headgate-sweep"]["LoggingConfig"]["LogGroup"] = log
    role = by_name["headgate-sweep"]["Role"]["Fn::GetAtt"][0]
    for owner, statement in statements(template):
        if owner == role and "logs:PutLogEvents" in actions(statement):
            statement["Resource"] = {"Fn::GetAtt": [log["Ref"], "Arn"]}


def _dashboard_elsewhere(template: Template) -> None:
    logs = {each[:8]: each for each in ids_of_type(template, "AWS::Logs::LogGroup")}
    (name,) = ids_of_type(template, "AWS::CloudWatch::Dashboard")
    parts = template["Resources"][name]["Properties"]["DashboardBody"]["Fn::Join"][1]
    for part in parts:
        if isinstance(part, dict) and part.get("Ref", "").startswith("FrontLog"):
            part["Ref"] = logs["Rejected"]


def _independent(service: str, kind: str, beginning: str = "") -> Fault:
    """Take the resources of a type from what the service depends on."""

    def plant(template: Template) -> None:
        (found,) = (each for each in ids_of_type(template, "AWS::ECS::Service") if each.startswith(service))
        gone = {each for each in ids_of_type(template, kind) if each.startswith(beginning)}
        assert gone & set(template["Resources"][found]["DependsOn"])
        own = template["Resources"][found]
        own["DependsOn"] = [each for each in own["DependsOn"] if each not in gone]

    return plant


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (_without_right("ChatWorkerRole", "sqs:SendMessage"), "ChatWorkerRole"),
        (_without_right("FarWorkerRole", "sqs:SendMessage"), "lacks sqs:SendMessage"),
        (_without_right("FunctionsSweepRole", "sqs:SendMessage"), "sweep: FunctionsSweepRole"),
        (_without_right("FrontRole", "secretsmanager:GetSecretValue"), "lacks secretsmanager:GetSecretValue"),
        (_without_right("CodeWorkerRole", "dynamodb:PutItem"), "lacks dynamodb:PutItem"),
        (_without_right("FrontRole", "s3:PutObject"), "lacks s3:PutObject"),
        (_other_port("ChatFleet", "gate"), "gate: port 9090 is closed to front, function, worker"),
        (_other_port("Front", "gate-code"), "gate-code: port 9090 is closed"),
        (_other_port("FarServers", "worker"), "worker: port 9090 is closed to front, function"),
        (_closed, "gate: port 8090 is closed to front, function, worker"),
        (_log_of("ChatFleet", "worker", "FrontLog"), "may not write FrontLog"),
        (_log_of("Front", "gate-chat", "ChatWorkerLog"), "is the log of"),
        (_log_of("FarServers", "gate", "RejectedLog"), "may not write RejectedLog"),
        (_log_of("ChatFleet", "worker", "RejectedLog"), "is the log of AWS::EC2::FlowLog, ChatWorkerRole"),
        (_shared_log, "is the log of result, sweep"),
        (_without_right("FunctionsInvokeRole", "logs:PutLogEvents"), "invoke: FunctionsInvokeRole"),
        (_dashboard_elsewhere, "the dashboard reads ['Rejected"),
        (_independent("ChatFleet", "AWS::ECS::ClusterCapacityProviderAssociations"), "does not depend on ChatCluster"),
        (_independent("ChatFleet", "AWS::IAM::Policy", "ChatFleetTaskExecution"), "TaskExecutionRoleDefaultPolicy"),
        (_independent("Front", "AWS::EC2::Route"), "does not depend on NetworkVpcprivateSubnet1DefaultRoute"),
        (_independent("FarServers", "AWS::EC2::VPCEndpoint"), "does not depend on NetworkVpc"),
    ],
)
def test_a_fault_is_found(all_kinds: Template, plant: Fault, words: str) -> None:
    broken = copy.deepcopy(all_kinds)
    plant(broken)
    assert any(words in each for each in problems(broken)), list(problems(broken))

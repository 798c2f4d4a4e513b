"""Two pools in one stack: each has its workers, its log and its alarms; fronts, functions and tenants are shared."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.infra.conftest import Synthesise
from tests.infra.templates import (
    IMAGE,
    MODEL,
    Template,
    actions,
    functions,
    listed,
    of_type,
    statements,
    tasks,
    template_in,
    variables_of,
)
from tests.support.iam.policies import Names

CODE = "s3://models/coder/"
FIELDS: dict[str, Any] = {
    "pools": {
        "chat": {"model": MODEL, "image": IMAGE, "deadline_s": 120},
        "code": {"model": CODE, "image": IMAGE, "count": {"min": 0, "max": 2}, "deadline_s": 600},
    }
}


@pytest.fixture(scope="module")
def made(synthesise: Synthesise) -> Template:
    return template_in(synthesise(**FIELDS))


def worker_tasks(template: Template) -> dict[str, dict[str, Any]]:
    """The task definitions of the workers, by the pool in their variables."""
    definitions = of_type(template, "AWS::ECS::TaskDefinition")
    workers = [each.get("worker") for each in tasks(template)]
    found = zip(workers, definitions, strict=True)
    return {str(variables_of(worker)["HEADGATE_POOL"]): task for worker, task in found if worker is not None}


def front_containers(template: Template) -> dict[str, dict[str, Any]]:
    (found,) = (each for each in tasks(template) if "front" in each)
    return found


def test_each_pool_has_a_service_of_its_own(made: Template) -> None:
    names = {each["ServiceName"] for each in of_type(made, "AWS::ECS::Service")}
    assert names == {"headgate-front", "headgate-chat-workers", "headgate-code-workers"}
    assert len(of_type(made, "AWS::AutoScaling::AutoScalingGroup")) == 2
    assert worker_tasks(made).keys() == {"chat", "code"}


def test_a_front_has_a_gate_process_for_each_pool(made: Template) -> None:
    ports = {
        name: container["PortMappings"][0]["ContainerPort"]
        for name, container in front_containers(made).items()
        if name.startswith("gate-")
    }
    assert ports == {"gate-chat": 8090, "gate-code": 8091}
    opened = {(each["FromPort"], each["ToPort"]) for each in of_type(made, "AWS::EC2::SecurityGroupIngress")}
    assert (8090, 8091) in opened


def test_every_process_knows_all_pools(made: Template) -> None:
    variables = functions(made)["headgate-invoke"]["Environment"]["Variables"]
    pools = json.loads(Names(made).resolved(variables["HEADGATE_POOLS"]))
    assert {name: each["models"] for name, each in pools.items()} == {"chat": ["llama-3-8b"], "code": ["coder"]}
    assert pools["chat"]["deadline_s"] == 120
    assert (pools["code"]["workers_min"], pools["code"]["scale_to_zero"]) == (0, True)
    services = [each["ecs_service"].rpartition("/")[2] for each in pools.values()]
    assert services == ["headgate-chat-workers", "headgate-code-workers"]
    for container in (*front_containers(made).values(), *worker_tasks(made)["code"]["ContainerDefinitions"]):
        assert variables_of(container)["HEADGATE_POOLS"] == variables["HEADGATE_POOLS"]


def test_a_worker_may_write_the_log_of_its_own_pool_only(made: Template) -> None:
    for pool, other in (("chat", "code"), ("code", "chat")):
        role = worker_tasks(made)[pool]["TaskRoleArn"]["Fn::GetAtt"][0]
        own = [each for owner, each in statements(made) if owner == role]
        text = json.dumps([each for each in own if actions(each)[0].startswith("dynamodb:")])
        assert f"LOG#{pool}" in text
        assert f"#{other}" not in text
        (reads,) = (each for each in own if "s3:GetObject" in actions(each))
        assert json.dumps(reads["Resource"]).endswith(f'{"llama-3-8b" if pool == "chat" else "coder"}/*"]]}}')


def test_the_sweep_sets_both_numbers(made: Template) -> None:
    for _, statement in statements(made):
        if "ecs:UpdateService" in actions(statement):
            resources = [Names(made).resolved(each) for each in listed(statement["Resource"])]
            assert [each.rpartition("/")[2] for each in resources] == [
                "headgate-chat-workers",
                "headgate-code-workers",
            ]


def test_each_pool_has_its_alarms(made: Template) -> None:
    texts = [each["AlarmDescription"] for each in of_type(made, "AWS::CloudWatch::Alarm")]
    for section in ("logstands", "requestsfail", "waitslong", "scalingfails", "workersmissing"):
        about = [text for text in texts if text.endswith(f"#{section}")]
        assert sorted(text.split(":")[0] for text in about) == ["Pool chat", "Pool code"]
    assert [text.split(":")[0] for text in texts if text.endswith("#noworker")] == ["Pool chat"]
    alarms = of_type(made, "AWS::CloudWatch::Alarm")
    assert {each["Threshold"] for each in alarms if each["AlarmDescription"].endswith("#waitslong")} == {60, 300}


def test_a_second_pool_changes_no_resource_of_the_first(made: Template, synthesise: Synthesise) -> None:
    """Logical ids contain the pool's name. So a pool can be added or removed beside one that serves."""
    alone = template_in(synthesise(pools={"chat": FIELDS["pools"]["chat"]}))
    kinds = ("AWS::ECS::Service", "AWS::AutoScaling::AutoScalingGroup", "AWS::CloudWatch::Alarm", "AWS::IAM::Role")
    for name, resource in alone["Resources"].items():
        if resource["Type"] in kinds:
            assert made["Resources"][name]["Type"] == resource["Type"]

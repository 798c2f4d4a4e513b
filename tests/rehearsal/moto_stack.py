"""Creates the synthesised stack in a served moto, and reads what was created, as AWS's consoles show it."""

from __future__ import annotations

import importlib
import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import boto3

from headgate.local.aws import Wiring
from headgate.local.aws_lambda.invocation import FunctionSpec
from headgate.local.aws_lambda.triggers import QueueMapping, Schedule
from tests.rehearsal.template import SECRET, Template, prepared

SWEEP_EVERY_S = 5.0
"""A minute on AWS; a rehearsal does not wait that long."""
INIT_TIMEOUT_S = 120.0
AMI_PARAMETER = "SsmParameterValue"
MOTO_SERVICES = (
    *("apigateway", "applicationautoscaling", "autoscaling", "awslambda", "cloudwatch", "dynamodb", "ec2", "ecs"),
    *("elbv2", "events", "iam", "kms", "logs", "s3", "secretsmanager", "sns", "sqs"),
)


class Container(NamedTuple):
    """One container of a task definition."""

    name: str
    command: list[str]
    environment: dict[str, str]


class WorkersOf(NamedTuple):
    """A pool's ECS service, and the containers of its task."""

    cluster: str
    service: str
    containers: list[Container]


class Created(NamedTuple):
    """What the stack consists of. `left_out`: logical ids that moto could not create, by type."""

    resources: int
    left_out: dict[str, list[str]]
    outputs: dict[str, str]
    wiring: Wiring
    front: list[Container]
    workers: dict[str, WorkersOf]
    """By pool."""


def create(session: boto3.Session, endpoint_url: str, template: Template) -> Created:
    """Create the stack. Raises RuntimeError if moto does not."""

    def client(service: str) -> Any:
        make: Any = session.client
        return make(service, endpoint_url=endpoint_url)

    secret_ids = {name: _secret(client("secretsmanager"), name) for name in _of_type(template, SECRET)}
    made, left_out = prepared(template, _creatable().__contains__, secret_ids)
    cloudformation = client("cloudformation")
    cloudformation.create_stack(StackName="headgate", TemplateBody=_with_image(template, made))
    (stack,) = cloudformation.describe_stacks(StackName="headgate")["Stacks"]
    if stack["StackStatus"] != "CREATE_COMPLETE":
        raise RuntimeError(f"moto: {stack['StackStatus']}: {stack.get('StackStatusReason')}")
    outputs = {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}
    tasks = list(_tasks(client("ecs")))
    (front,) = (task for task in tasks if task[0].name == "front")
    pools = front[0].environment["HEADGATE_POOLS"]
    return Created(
        len(template["Resources"]),
        left_out,
        outputs,
        _wiring(client("lambda"), client("events"), client("sqs")),
        front,
        {pool: _workers(pool, settings, tasks) for pool, settings in json.loads(pools).items()},
    )


def _workers(pool: str, settings: Mapping[str, Any], tasks: list[list[Container]]) -> WorkersOf:
    of_pool = [task for task in tasks if task[0].name == "weights" and task[1].environment["HEADGATE_POOL"] == pool]
    cluster, _, service = settings["ecs_service"].partition("/")
    return WorkersOf(cluster, service, of_pool[0])


def _creatable() -> set[str]:
    """Return the types of resources that moto's CloudFormation can create."""
    from moto.core.common_models import CloudFormationModel

    for service in MOTO_SERVICES:
        importlib.import_module(f"moto.{service}.models")
    found, left = set(), [CloudFormationModel]
    while left:
        below = left.pop().__subclasses__()
        left += below
        found |= {kind.cloudformation_type() for kind in below if "cloudformation_type" in vars(kind)}
    return found


def _of_type(template: Template, kind: str) -> list[str]:
    return [name for name, each in template["Resources"].items() if each["Type"] == kind]


def _secret(client: Any, name: str) -> str:
    """Make a secret with a random value and a name as AWS makes it from the template, and return its ARN."""
    return str(client.create_secret(Name=f"{name}-Rehearsal", SecretString=secrets.token_urlsafe(36))["ARN"])


def _with_image(template: Template, made: Template) -> str:
    """Return the template as JSON, with a machine image in place of the parameter that AWS reads it from."""
    text = json.dumps(made)
    for name in template.get("Parameters", {}):
        if name.startswith(AMI_PARAMETER):
            text = text.replace(json.dumps({"Ref": name}), '"ami-12345678"')
    return text


def _wiring(functions: Any, events: Any, queues: Any) -> Wiring:
    """Return the functions, with the queue and the schedule that invoke them."""
    specs = [_spec(each) for each in functions.list_functions()["Functions"]]
    mappings = functions.list_event_source_mappings()["EventSourceMappings"]
    return Wiring(
        specs,
        queues=[
            QueueMapping(
                queues.get_queue_url(QueueName=_last(each["EventSourceArn"]))["QueueUrl"],
                _last(each["FunctionArn"]),
                batch_size=each["BatchSize"],
            )
            for each in mappings
        ],
        schedules=[
            Schedule(_last(target["Arn"]), SWEEP_EVERY_S)
            for rule in events.list_rules()["Rules"]
            for target in events.list_targets_by_rule(Rule=rule["Name"])["Targets"]
        ],
    )


def _spec(function: Mapping[str, Any]) -> FunctionSpec:
    return FunctionSpec(
        function["FunctionName"],
        function["Handler"],
        timeout_s=float(function["Timeout"]),
        concurrency=2,
        environment=function["Environment"]["Variables"],
        memory_mb=function["MemorySize"],
        init_timeout_s=INIT_TIMEOUT_S,
    )


def _last(arn: str) -> str:
    return arn.rsplit(":", 1)[-1]


def _tasks(ecs: Any) -> Iterator[list[Container]]:
    for arn in ecs.list_task_definitions()["taskDefinitionArns"]:
        found = ecs.describe_task_definition(taskDefinition=arn)["taskDefinition"]["containerDefinitions"]
        yield [
            Container(
                each["name"],
                [*each.get("entryPoint", []), *each["command"]],
                {pair["name"]: pair["value"] for pair in each["environment"]},
            )
            for each in found
        ]

"""The processes of a synthesised stack on this machine: each with its variables from the template, and the access key
of its role, so that the recorder knows which role makes a call."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dispatcher.policies.clocks import Share
from dispatcher.processes.bootstrap import RealClock, real_random
from dispatcher.stores.dynamodb.store import DynamoStore, create_table
from headgate.local.aws import LocalAws, Wiring, function_specs
from headgate.local.aws_lambda.invocation import REGION
from headgate.local.aws_lambda.triggers import QueueMapping, Schedule, scheduled_event
from headgate.local.seed import make_tenants
from headgate.machine.fleet import LocalFleet
from headgate.machine.options import FleetOptions
from headgate.machine.places import front_ports
from headgate.machine.processes import Children
from tests.infra.templates import Template, functions, tasks, variables_of
from tests.support.hang_guard import HANG_S
from tests.support.iam.policies import Names
from tests.support.iam.recorder import Recorder, recording_moto
from tests.support.local.aws import aws_client
from tests.support.local.stack import run_json

FRONT, LAMBDA_FRONT, WORKER = "front", "lambda-front", "worker"
INVOKE, RESULT, EXECUTE, SWEEP, ADMIN = "invoke", "result", "execute", "sweep", "admin"
FUNCTIONS = (INVOKE, RESULT, EXECUTE, SWEEP, ADMIN)
OPERATOR = "operator"
"""The access key of an operator's commands."""
POLLER = "local"
"""The access key of the local stack's event source mapping, which on AWS uses the role of its function."""
MODEL, MODEL_NAME, MODEL_BUCKET = "s3://models/llama-3-8b/", "llama-3-8b", "models"
TENANTS = {"acme": Share(), "other": Share()}
TOKEN = "an operator's token of more than 32 characters"
SERVICE = "headgate-default-workers"


@dataclass
class RecordedStack:
    """A running stack. `keys`: an API key of each tenant. `fleets`: the processes of FRONT, LAMBDA_FRONT and WORKER."""

    url: str
    names: Names
    recorder: Recorder
    aws: LocalAws
    keys: dict[str, str]
    fleets: dict[str, LocalFleet]
    environments: dict[str, dict[str, str]]
    home: Path
    children: Children
    ports: list[int] = field(default_factory=lambda: front_ports("127.0.0.1", 0, 2))

    def front_url(self, role: str) -> str:
        return self.fleets[role].urls("front")[0]

    async def invoke(self, function: str, payload: object) -> dict[str, Any]:
        answer = await self.aws.invoke(f"headgate-{function}", json.dumps(payload).encode())
        assert answer.function_error is None, answer
        found: dict[str, Any] = json.loads(answer.payload)
        return found

    async def sweep(self) -> None:
        event = scheduled_event(Schedule("headgate-sweep", 60.0), "event", RealClock().now())
        answer = await self.aws.invoke("headgate-sweep", event)
        assert answer.function_error is None, answer

    async def desired(self) -> int:
        """Return the number of workers that ECS's service should have."""
        found = await asyncio.to_thread(self._ecs.describe_services, cluster=self.cluster, services=[SERVICE])
        return int(found["services"][0]["desiredCount"])

    async def set_desired(self, workers: int) -> None:
        update = self._ecs.update_service
        await asyncio.to_thread(update, cluster=self.cluster, service=SERVICE, desiredCount=workers)

    async def operate(self, *arguments: str) -> dict[str, Any]:
        """Run a command of an operator, with the table and the pools of the stack."""
        of_processes = self.environments[INVOKE]
        shell = {name: of_processes[name] for name in ("HEADGATE_TABLE", "HEADGATE_POOLS")}
        own = {"AWS_ENDPOINT_URL": self.url, "AWS_DEFAULT_REGION": REGION, "AWS_REGION": REGION}
        return await asyncio.to_thread(
            run_json, *arguments, environment={**_bare(), **shell, **own, **_access(OPERATOR)}
        )

    async def kill_gate(self, role: str) -> None:
        (gate,) = [member for member in self.fleets[role].members if member.role == "gate"]
        await gate.child.stop(0.0)

    @property
    def cluster(self) -> str:
        return self.names.logical_id("AWS::ECS::Cluster", "DefaultCluster").lower()

    @property
    def _ecs(self) -> Any:
        return aws_client("ecs", self.url)


@asynccontextmanager
async def recorded_stack(template: Template, lambda_template: Template, home: Path) -> AsyncIterator[RecordedStack]:
    """Serve AWS and the functions; the other processes are started by the caller. `template`: with a front on Fargate.
    `lambda_template`: with the front as a function. Both have workers with the model MODEL."""
    children = Children("recorded-" + home.name, home / "logs", grace_s=2.0)
    with recording_moto() as (url, recorder):
        names = await asyncio.to_thread(_make_resources, template, url)
        own = {"AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": REGION, "AWS_REGION": REGION}
        variables = _variables(template, names) | {LAMBDA_FRONT: _of_function(lambda_template, names, "front")}
        environments = {role: {**_bare(), **each, **own, **_access(role)} for role, each in variables.items()}
        environments[INVOKE]["HEADGATE_LIMITS"] = json.dumps({"waiting_executions_max": 0})
        specs = [
            spec
            for role in FUNCTIONS
            for spec in function_specs(environments[role], HANG_S)
            if spec.name.endswith(role)
        ]
        queue_url = environments[INVOKE]["HEADGATE_QUEUE_URL"]
        wiring = Wiring(specs, [QueueMapping(queue_url, "headgate-execute", batch_size=1)])
        aws = LocalAws(children, {}, moto_url=url, wiring=wiring)
        keys = await _make_tenants(url, environments[INVOKE]["HEADGATE_TABLE"])
        options = FleetOptions(engine="modelled", model=MODEL_NAME, home=home, slots=1, start_timeout_s=HANG_S)
        fleets = {
            role: LocalFleet(options, children, environments[role], "default", ["--only-batches"])
            for role in (FRONT, LAMBDA_FRONT, WORKER)
        }
        try:
            await aws.start()
            yield RecordedStack(url, names, recorder, aws, keys, fleets, environments, home, children)
        finally:
            await aws.stop()
            for fleet in fleets.values():
                await fleet.stop(2.0)
            await children.stop()


def _make_resources(template: Template, url: str) -> Names:
    """Make what the template describes, under the names that its variables resolve to."""
    plain = Names(template)
    table, queue = plain.logical_id("AWS::DynamoDB::Table"), plain.logical_id("AWS::SQS::Queue", "ExecutionQueue")
    create_table(aws_client("dynamodb", url), table.lower())
    sqs = aws_client("sqs", url)
    given = {queue: sqs.create_queue(QueueName=queue.lower(), Attributes={"VisibilityTimeout": "360"})["QueueUrl"]}
    secrets = aws_client("secretsmanager", url)
    for beginning, text in (("StateWorkerSecret", "s" * 48), ("StateOperatorToken", TOKEN)):
        secret = plain.logical_id("AWS::SecretsManager::Secret", beginning)
        given[secret] = secrets.create_secret(Name=secret.lower(), SecretString=text)["ARN"]
    s3 = aws_client("s3", url)
    for bucket in (plain.logical_id("AWS::S3::Bucket", "StateFiles").lower(), MODEL_BUCKET):
        s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket=MODEL_BUCKET, Key=f"{MODEL_NAME}/config.json", Body=b"{}")
    _make_service(aws_client("ecs", url), plain.logical_id("AWS::ECS::Cluster", "DefaultCluster").lower())
    return Names(template, given)


def _make_service(ecs: Any, cluster: str) -> None:
    ecs.create_cluster(clusterName=cluster)
    container = {"name": "worker", "image": "worker", "memory": 128}
    ecs.register_task_definition(family="worker", containerDefinitions=[container])
    ecs.create_service(cluster=cluster, serviceName=SERVICE, taskDefinition="worker", desiredCount=0)


async def _make_tenants(url: str, table: str) -> dict[str, str]:
    store = DynamoStore(aws_client("dynamodb", url), table, clock=RealClock(), random=real_random())
    try:
        return await make_tenants(store, TENANTS, 1000)
    finally:
        await store.close()


def _variables(template: Template, names: Names) -> dict[str, dict[str, str]]:
    """Return the variables of each role's processes."""
    by_container = {
        name: names.resolved(variables_of(container)) for task in tasks(template) for name, container in task.items()
    }
    of_functions = {role: _of_function(template, names, role) for role in FUNCTIONS}
    return {**of_functions, FRONT: by_container["front"], WORKER: by_container["worker"]}


def _of_function(template: Template, names: Names, role: str) -> dict[str, str]:
    found: dict[str, str] = names.resolved(functions(template)[f"headgate-{role}"]["Environment"]["Variables"])
    return found


def _bare() -> Mapping[str, str]:
    """Return this machine's variables that a process needs, without an account's."""
    return {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR", "PYTHONPATH") if name in os.environ}


def _access(role: str) -> dict[str, str]:
    fixed = {"AWS_ACCESS_KEY_ID": role, "AWS_SECRET_ACCESS_KEY": "local", "AWS_EC2_METADATA_DISABLED": "true"}
    return {**fixed, "POWERTOOLS_TRACE_DISABLED": "true", "OMP_NUM_THREADS": "1"}

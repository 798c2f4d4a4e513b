"""The stack: one construct for each unit that is deployed."""

from __future__ import annotations

import json
from pathlib import Path

from aws_cdk import CfnOutput, Environment, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from headgate.deployment.model import Deployment
from infra.api import Api
from infra.bundle import Bundle
from infra.front import Front
from infra.functions import EXECUTE, Functions
from infra.gpu_fleet import WORKERS, GpuFleet
from infra.network import Network
from infra.observability import Observability, log_group
from infra.queue import ExecutionQueue
from infra.roles import allow_files, allow_gate, allow_operator_page, allow_scaling, allow_worker, task_role
from infra.state import State
from infra.watched import FIVE_MINUTES, POOL, Watched


class HeadgateStack(Stack):
    """headgate in one account and region. `bundle`: what functions and fronts run (infra/bundle.py). `root`: the
    checkout, from which the workers' image is built.

    All physical names begin with the deployment's name, so that one account and region can have several stacks.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, deployment: Deployment, bundle: Bundle, root: Path
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            stack_name=deployment.name,
            env=Environment(region=deployment.region),
            description="headgate: fair shares of a GPU fleet for every tenant",
        )
        self._deployment = deployment
        self._state = State(self, "State")
        self._execution = ExecutionQueue(self, "Execution", consumer_timeout=EXECUTE.timeout)
        self._network = Network(
            self,
            "Network",
            zones=deployment.zones,
            nat_gateways=deployment.nat_gateways,
            flow_log=log_group(self, "RejectedLog", deployment),
        )
        self._functions = Functions(
            self,
            "Functions",
            state=self._state,
            execution=self._execution,
            worker_secret=self._state.worker_secret,
            code=lambda_.Code.from_asset(str(bundle.path), asset_hash=bundle.digest),
            network=self._network,
            deployment=deployment,
            environment=self._environment(),
        )
        front_log = self._functions.front_log or log_group(self, "FrontLog", deployment)
        http_errors, healthy_fronts = self._front(bundle.path, front_log)
        watched = Watched(
            http_errors=http_errors,
            healthy_fronts=healthy_fronts,
            workers=self._workers(root),
            has_fleet=deployment.workers.model is not None,
            functions=self._functions.all,
            sweep=self._functions.sweep,
            invoke=self._functions.invoke,
            queue=self._execution.queue,
            dead_letters=self._execution.dead_letters,
            table=self._state.table,
            log=front_log,
        )
        Observability(self, "Observability", watched=watched, deployment=deployment)
        table = self._state.table.table_name
        token = self._state.operator_token.secret_name
        CfnOutput(self, "OperatorToken", value=token, description="The secret with the token of the page /operator")
        CfnOutput(self, "TableName", value=table, description="HEADGATE_TABLE for the command line")

    def _environment(self) -> dict[str, str]:
        """Return the variables of every process of the gate (dispatcher/config.py)."""
        return {
            "HEADGATE_TABLE": self._state.table.table_name,
            "HEADGATE_QUEUE_URL": self._execution.queue.queue_url,
            "HEADGATE_WORKER_SECRET_ARN": self._state.worker_secret.secret_arn,
            "HEADGATE_POOL": POOL,
            "POWERTOOLS_SERVICE_NAME": "headgate",
            "POWERTOOLS_METRICS_NAMESPACE": "headgate",
            "POWERTOOLS_LOG_LEVEL": "INFO",
            **self._deployment.environment(),
            **self._scaling(),
        }

    def _scaling(self) -> dict[str, str]:
        """Return the variables by which the sweep sets the number of workers, and a request starts the first one."""
        workers = self._deployment.workers
        if workers.model is None:
            return {}
        return {
            "HEADGATE_MODELS": json.dumps([workers.model_name]),
            "HEADGATE_ECS_SERVICE": f"{self._network.cluster.cluster_name}/{self._deployment.name}{WORKERS}",
            "HEADGATE_WORKERS_MIN": str(workers.count.min),
            "HEADGATE_WORKERS_MAX": str(workers.count.max),
            "HEADGATE_SCALE_TO_ZERO": str(workers.count.min == 0).lower(),
        }

    def _workers_arn(self) -> str:
        """Return the ARN of the workers' service, which is made after what may scale it."""
        name = f"{self._network.cluster.cluster_name}/{self._deployment.name}{WORKERS}"
        arn: str = self.format_arn(service="ecs", resource="service", resource_name=name)
        return arn

    def _front(self, bundle: Path, log: logs.LogGroup) -> tuple[cloudwatch.IMetric, cloudwatch.IMetric | None]:
        """Make the HTTP interface. Return its count of 5xx in five minutes, and the number of healthy tasks."""
        if self._functions.front is not None:
            api = Api(self, "Api", front=self._functions.front, deployment=self._deployment)
            return api.rest_api.metric_server_error(statistic="Sum", period=FIVE_MINUTES), None
        role = task_role(self, "FrontRole", worker_secret=self._state.worker_secret)
        allow_gate(role, self._state, self._execution.queue)
        allow_files(role, self._state)
        allow_operator_page(role, self._state)
        if self._deployment.workers.model is not None:
            allow_scaling(role, self._workers_arn())
        front = Front(
            self,
            "Front",
            deployment=self._deployment,
            network=self._network,
            cluster=self._network.cluster,
            image=ecs.ContainerImage.from_asset(str(bundle), platform=ecr_assets.Platform.LINUX_ARM64),
            role=role,
            environment={
                **self._environment(),
                "HEADGATE_FILES": f"s3:{self._state.files.bucket_name}",
                "HEADGATE_OPERATOR_TOKEN_ARN": self._state.operator_token.secret_arn,
                "AWS_DEFAULT_REGION": self.region,
            },
            log=log,
        )
        return front.errors(), front.targets.metrics.healthy_host_count(statistic="Minimum", period=FIVE_MINUTES)

    def _workers(self, root: Path) -> cloudwatch.IMetric | None:
        """Make the fleet if the deployment names a model. Return what is measured only while a worker runs."""
        workers = self._deployment.workers
        if workers.model is None:
            CfnOutput(self, "Workers", value="none: headgate.yaml has no workers.model", description="The GPU fleet")
            return None
        role = task_role(self, "WorkerRole", worker_secret=self._state.worker_secret)
        allow_worker(role, self._state, self._execution.queue, workers.model)
        fleet = GpuFleet(
            self,
            "GpuFleet",
            workers=workers,
            network=self._network,
            cluster=self._network.cluster,
            root=root,
            role=role,
            environment={**self._environment(), "AWS_DEFAULT_REGION": self.region},
            log=log_group(self, "WorkerLog", self._deployment),
        )
        self._functions.allow_scaling(self._workers_arn())
        return fleet.missing() if workers.count.min else None

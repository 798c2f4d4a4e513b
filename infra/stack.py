"""The stack: one construct for each unit that is deployed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aws_cdk import CfnOutput, CustomResource, Environment, Stack
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from headgate.deployment.model import Deployment
from headgate.deployment.pool import Pool
from infra import partitions
from infra.api import Api
from infra.bundle import Bundle
from infra.fleet.capacity import FleetRemoval
from infra.fleet.gpu_fleet import GpuFleet, service_name
from infra.fleet.server_workers import ServerWorkers
from infra.front import Front
from infra.functions import EXECUTE, Functions
from infra.network import Network, make_cluster
from infra.observability import Observability, log_group
from infra.roles import (
    allow_batches,
    allow_gate,
    allow_model,
    allow_operator_page,
    allow_scaling,
    allow_traces,
    allow_worker,
    operator_policy,
    task_role,
)
from infra.state import ExecutionQueue, StateTable
from infra.watched import FIVE_MINUTES, SERVICE, OwnMetrics, Watched, WatchedPool


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
        self._state = StateTable(self, "State")
        self._execution = ExecutionQueue(self, "Execution", consumer_timeout=EXECUTE.timeout)
        self._network = Network(
            self,
            "Network",
            zones=deployment.zones,
            nat_gateways=deployment.nat_gateways,
            pools={name: pool.shards for name, pool in deployment.pools.items()},
            flow_log=log_group(self, "RejectedLog", deployment),
        )
        self._clusters = {
            name: make_cluster(self, f"{_fleet_title(name, pool)}Cluster", self._network.vpc)
            for name, pool in deployment.pools.items()
            if pool.model is not None
        }
        self._code = lambda_.Code.from_asset(str(bundle.path), asset_hash=bundle.digest)
        self._removal: FleetRemoval | None = None
        self._functions = Functions(
            self,
            "Functions",
            state=self._state,
            execution=self._execution,
            worker_secret=self._state.worker_secret,
            code=self._code,
            network=self._network,
            deployment=deployment,
            environment=self._environment(),
            traces=self._traces(),
        )
        self._functions.allow_scaling(self._service_arns(), self._clusters.values())
        front_log = self._functions.front_log or log_group(self, "FrontLog", deployment)
        http_errors, healthy_fronts = self._front(bundle.path, front_log)
        watched = Watched(
            own=OwnMetrics(deployment.name),
            http_errors=http_errors,
            healthy_fronts=healthy_fronts,
            pools=[self._pool(name, pool, root) for name, pool in deployment.pools.items()],
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
        operator_policy(self._state, "OperatorPolicy")
        CfnOutput(self, "TableName", value=table, description="The table of tenants, calls and logs")
        CfnOutput(self, "OperatorShell", value=self._shell(), description="Paste into a shell for headgate's commands")

    def _remove_group(self, scope: Construct, group: autoscaling.AutoScalingGroup) -> CustomResource:
        """Return the removal of a group. All have one function, which is made with the first of them."""
        if self._removal is None:
            self._removal = FleetRemoval(self, "FleetRemoval", code=self._code, deployment=self._deployment)
        return self._removal.of(scope, group)

    def _environment(self) -> dict[str, str]:
        """Return the variables of every process of the gate (dispatcher/settings/config.py)."""
        return {
            "HEADGATE_TABLE": self._state.table.table_name,
            "HEADGATE_QUEUE_URL": self._execution.queue.queue_url,
            "HEADGATE_WORKER_SECRET_ARN": self._state.worker_secret.secret_arn,
            "HEADGATE_POOLS": json.dumps({name: self._pool_settings(name) for name in self._deployment.pools}),
            "POWERTOOLS_SERVICE_NAME": SERVICE,
            "POWERTOOLS_METRICS_NAMESPACE": self._deployment.name,
            "POWERTOOLS_LOG_LEVEL": "INFO",
            **self._deployment.environment(),
        }

    def _shell(self) -> str:
        """Return the variables of an operator's shell: the table, the pools with their models, and the function
        of administrators."""
        settings = {name: self._deployment.pool_settings(name) for name in self._deployment.pools}
        pools = {name: {key: each[key] for key in ("models",) if key in each} for name, each in settings.items()}
        administer = f"HEADGATE_ADMIN_FUNCTION={self.stack_name}-admin"
        return f"export HEADGATE_TABLE={self._state.table.table_name} HEADGATE_POOLS='{json.dumps(pools)}' {administer}"

    def _traces(self) -> dict[str, str]:
        """Return the variables by which a process sends its spans to X-Ray itself (dispatcher/otlp); none without
        traces."""
        if self._deployment.traces == "none":
            return {}
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"https://xray.{self.region}.{self.url_suffix}",
            "OTEL_TRACES_SAMPLER_ARG": f"{self._deployment.traces_ratio:g}",
        }

    def _task_role(self, construct_id: str) -> iam.Role:
        role = task_role(self, construct_id, worker_secret=self._state.worker_secret)
        if self._deployment.traces == "xray":
            allow_traces(role)
        return role

    def _pool_settings(self, name: str) -> dict[str, Any]:
        """Return a pool's settings, with the service that the sweep scales, and whose first worker a request starts."""
        settings = self._deployment.pool_settings(name)
        if self._deployment.pools[name].model is None:
            return settings
        return {**settings, "ecs_service": f"{self._clusters[name].cluster_name}/{self._service_name(name)}"}

    def _service_name(self, pool: str) -> str:
        return service_name(self._deployment.name, pool)

    def _service_arns(self) -> list[str]:
        """Return the ARNs of the pools' services, which are made after what may scale them."""
        return [
            self.format_arn(
                service="ecs",
                resource="service",
                resource_name=f"{cluster.cluster_name}/{self._service_name(name)}",
            )
            for name, cluster in self._clusters.items()
        ]

    def _front(self, bundle: Path, log: logs.LogGroup) -> tuple[cloudwatch.IMetric, cloudwatch.IMetric | None]:
        """Make the HTTP interface. Return its count of 5xx in five minutes, and the number of healthy tasks."""
        if self._functions.front is not None:
            api = Api(self, "Api", front=self._functions.front, deployment=self._deployment)
            return api.rest_api.metric_server_error(statistic="Sum", period=FIVE_MINUTES), None
        role = self._task_role("FrontRole")
        allow_gate(role, self._state, self._execution.queue, partitions.ACCEPTED, partitions.HTTP)
        allow_batches(role, self._state)
        allow_operator_page(role, self._state)
        allow_scaling(role, self._service_arns())
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
                **self._traces(),
                "HEADGATE_FILES": f"s3:{self._state.files.bucket_name}",
                "HEADGATE_OPERATOR_TOKEN_ARN": self._state.operator_token.secret_arn,
                "AWS_DEFAULT_REGION": self.region,
            },
            log=log,
        )
        return front.errors(), front.targets.metrics.healthy_host_count(statistic="Minimum", period=FIVE_MINUTES)

    def _pool(self, name: str, pool: Pool, root: Path) -> WatchedPool:
        """Make a pool's workers if it has a model or servers, and return what to watch of the pool."""
        deadline_s = pool.deadline_s or self._deployment.deadline_s
        if not pool.model_name:
            none = f"none: pools.{name} of headgate.yaml has no model"
            CfnOutput(self, f"Workers{_construct_name(name)}", value=none, description=f"The workers of pool {name}")
            return WatchedPool(name, deadline_s)
        return self._fleet(name, pool, deadline_s, root)

    def _fleet(self, name: str, pool: Pool, deadline_s: int, root: Path) -> WatchedPool:
        title = _construct_name(name)
        role = self._task_role(f"{title}WorkerRole")
        allow_worker(role, self._state, self._execution.queue, name, pool.shards)
        common: dict[str, Any] = {
            "name": name,
            "pool": pool,
            "network": self._network,
            "root": root,
            "role": role,
            "environment": {
                **self._environment(),
                **self._traces(),
                "HEADGATE_POOL": name,
                "AWS_DEFAULT_REGION": self.region,
            },
            "log": log_group(self, f"{title}WorkerLog", self._deployment),
        }
        if pool.model is None:
            servers = ServerWorkers(self, f"{title}Servers", cluster=self._network.cluster, **common)
            return WatchedPool(name, deadline_s, pool.model_name, workers=servers.missing())
        for address in (pool.model, *pool.adapters.values()):
            allow_model(role, address)
        cluster = self._clusters[name]
        fleet = GpuFleet(
            self, f"{_fleet_title(name, pool)}Fleet", cluster=cluster, remove_group=self._remove_group, **common
        )
        description = f"ECS service of the workers of pool {name}"
        CfnOutput(self, f"Workers{title}", value=fleet.service.service_name, description=description)
        workers = fleet.missing() if pool.count.min else None
        return WatchedPool(
            name, deadline_s, pool.model_name, has_fleet=True, sleeps=not pool.count.min, workers=workers
        )


def _construct_name(pool: str) -> str:
    """Return the pool's name as a part of a construct's id."""
    return "".join(part.capitalize() for part in pool.split("-"))


def _fleet_title(name: str, pool: Pool) -> str:
    """Return the beginning of the ids of a pool's cluster and fleet.

    Managed Instances have other ids than an Auto Scaling group: if a pool changes between them, the new fleet is made
    first, and then the old one is deleted whole.
    """
    return _construct_name(name) + ("Managed" if pool.capacity == "managed_instances" else "")

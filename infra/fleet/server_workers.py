"""The workers of a pool of servers that run already: on Fargate one small task for each server, without a GPU. In each
task: a worker with the engine `openai`, which forwards requests to the server, and a gate process, which may lead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from aws_cdk import CfnOutput, Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

from headgate.deployment.pool import ForeignServer, Pool
from infra.checks import acknowledge
from infra.network import GATE_PORT, PRIVATE, WORKER_PORT, Network, put_after
from infra.watched import FIVE_MINUTES, total

CPU, _MEMORY_MB = 512, 1024
_DOCKERFILE = "gpu_worker/proxy.Dockerfile"
"""Everything but an engine of its own."""
_HOME = "/var/lib/headgate"
_STOP_S, _DRAIN_S = 120, 110
"""Fargate waits for at most 120 s until it ends a task."""
_METRICS_S = 60


class ServerWorkers(Construct):
    """The workers of the pool `name`. `environment`: the variables of the processes. `role`: what they may do."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        pool: Pool,
        network: Network,
        cluster: ecs.Cluster,
        root: Path,
        role: iam.Role,
        environment: Mapping[str, str],
        log: logs.LogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        self._name, self._network, self._cluster, self._role = name, network, cluster, role
        self._environment, self._log = dict(environment), log
        platform = ecr_assets.Platform.LINUX_ARM64
        self._image = ecs.ContainerImage.from_asset(str(root), file=_DOCKERFILE, platform=platform)
        self._drain_s = min(pool.drain_s, _DRAIN_S)
        self._gate_ports = range(GATE_PORT, GATE_PORT + pool.shards)
        self.services = [self._service(number, server) for number, server in enumerate(pool.servers)]
        names = ", ".join(service.service_name for service in self.services)
        description = f"ECS services of the workers of pool {name}"
        CfnOutput(
            Stack.of(self), f"Workers{construct_id.removesuffix('Servers')}", value=names, description=description
        )

    def missing(self) -> cloudwatch.IMetric:
        """Return how often running workers were measured in five minutes: zero without a worker."""
        samples: list[cloudwatch.IMetric] = [
            service.metric_cpu_utilization(statistic="SampleCount", period=FIVE_MINUTES) for service in self.services
        ]
        return total("workers measured", samples, prefix="w")

    def _service(self, number: int, server: ForeignServer) -> ecs.FargateService:
        task = self._task(number, server)
        service = ecs.FargateService(
            self,
            f"Server{number}",
            cluster=self._cluster,
            task_definition=task,
            service_name=f"{Stack.of(self).stack_name}-{self._name}-server-{number}",
            desired_count=1,
            min_healthy_percent=0,
            max_healthy_percent=100,
            circuit_breaker=ecs.DeploymentCircuitBreaker(enable=True, rollback=True),
            security_groups=[self._network.worker],
            vpc_subnets=PRIVATE,
            assign_public_ip=False,
        )
        put_after(service, task, self._network)
        return service

    def _task(self, number: int, server: ForeignServer) -> ecs.FargateTaskDefinition:
        task = ecs.FargateTaskDefinition(
            self,
            f"Task{number}",
            cpu=CPU,
            memory_limit_mib=_MEMORY_MB,
            task_role=self._role,
            runtime_platform=ecs.RuntimePlatform(
                cpu_architecture=ecs.CpuArchitecture.ARM64, operating_system_family=ecs.OperatingSystemFamily.LINUX
            ),
            volumes=[ecs.Volume(name="tmp"), ecs.Volume(name="home")],
        )
        gate = ["dispatcher", "--host", "0.0.0.0", "--port", str(GATE_PORT)]  # noqa: S104
        self._container(task, "gate", gate, self._gate_ports)
        self._container(task, "worker", self._arguments(server), [WORKER_PORT], self._key_of(number, server))
        acknowledge(task, {"AwsSolutions-ECS2": "The variables name resources; secrets are in Secrets Manager."})
        reason = "ECR's GetAuthorizationToken cannot be limited to a resource."
        acknowledge(task.obtain_execution_role(), {"AwsSolutions-IAM5[Resource::*]": reason})
        return task

    def _arguments(self, server: ForeignServer) -> list[str]:
        own = ["gpu_worker", "--engine", "openai", "--url", server.url, "--model", server.model, "--home", _HOME]
        own += ["--host", "0.0.0.0", "--port", str(WORKER_PORT), "--drain-s", str(self._drain_s)]  # noqa: S104
        own += ["--slots", str(server.slots), "--batch", str(server.batch), "--emf-s", str(_METRICS_S)]
        return own if server.context_tokens is None else [*own, "--context-tokens", str(server.context_tokens)]

    def _key_of(self, number: int, server: ForeignServer) -> dict[str, ecs.Secret]:
        """Return the variable with the server's own API key, which ECS reads when it starts the task."""
        if server.api_key_secret is None:
            return {}
        secret = secretsmanager.Secret.from_secret_complete_arn(self, f"Key{number}", server.api_key_secret)
        return {"ENGINE_API_KEY": ecs.Secret.from_secrets_manager(secret)}

    def _container(
        self,
        task: ecs.FargateTaskDefinition,
        name: str,
        module: list[str],
        ports: Sequence[int],
        secrets: Mapping[str, ecs.Secret] | None = None,
    ) -> None:
        container = task.add_container(
            name,
            image=self._image,
            command=["python", "-m", *module],
            environment={**self._environment, "HOME": _HOME},
            secrets=dict(secrets or {}),
            logging=ecs.LogDrivers.aws_logs(stream_prefix=name, log_group=self._log),
            readonly_root_filesystem=True,
            port_mappings=[ecs.PortMapping(container_port=port) for port in ports],
            stop_timeout=Duration.seconds(_STOP_S),
        )
        container.add_mount_points(
            ecs.MountPoint(container_path="/tmp", source_volume="tmp", read_only=False),  # noqa: S108
            ecs.MountPoint(container_path=_HOME, source_volume="home", read_only=False),
        )

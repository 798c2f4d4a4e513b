"""The GPU fleet of a pool: workers on ECS, on GPU instances (capacity.py).

A task has three containers. `weights` copies the model from S3 to the instance's own disk and ends; then `worker` loads
it; `gate` is the gate process beside it, which may lead. ECS starts and stops instances as tasks need them. Instances,
image and weights were never started on AWS (docs/deployment.md, "not yet run").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from aws_cdk import Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from headgate.deployment.images import ecr_image
from headgate.deployment.pool import Pool
from infra.checks import acknowledge
from infra.fleet.capacity import DISK, SPOT_NOTICE, WORKER_UID, GpuCapacity, ManagedCapacity, RemoveGroup
from infra.network import GATE_PORT, WORKER_PORT, Network, put_after
from infra.watched import FIVE_MINUTES

MODEL, HOME = "/model", "/var/lib/headgate"
_WEIGHTS_MB, _GATE_MB = 2048, 1024
_SYSTEM_MB = 2048
"""The part of an instance's memory for the system and ECS's agent."""
_SERVES = (
    "import json, sys, urllib.request as web; "
    f"sys.exit(json.load(web.urlopen('http://127.0.0.1:{WORKER_PORT}/health', timeout=2))['status'] != 'ok')"
)
"""ECS's check of a worker. It fails while the model loads, so that a deployment counts the worker only when it serves.
ECS ends a container after `start_period` and `retries` failures: 15 minutes for the load. One that ends by itself is
replaced at once."""
_SPOT_DRAIN_S = 110
"""A spot instance ends two minutes after its notice."""
_STOP_MARGIN_S = 60
"""Beyond the drain, until ECS kills the container."""
_METRICS_S = 60
"""A worker writes its metrics so often; dashboard and alarms expect one value a minute."""
_CACHES = ("VLLM_CACHE_ROOT", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
"""Compiled kernels are kept on the instance's disk, beside the model; the container's own files are read-only."""


def service_name(stack: str, pool: str) -> str:
    """Return the name of a pool's ECS service."""
    return f"{stack}-{pool}-workers"


class GpuFleet(Construct):
    """The fleet of the pool `name`, which has a model. `environment`: the variables of the gate's processes. `role`:
    what worker and gate process may do."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        pool: Pool,
        network: Network,
        cluster: ecs.Cluster,
        remove_group: RemoveGroup,
        root: Path,
        role: iam.Role,
        environment: Mapping[str, str],
        log: logs.LogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        self._name, self._pool, self._network, self._log = name, pool, network, log
        self._environment = dict(environment)
        self._is_managed = pool.capacity == "managed_instances"
        strategies = self._strategies(cluster, remove_group)
        task = self._task(root, role)
        self.service = self._service(cluster, strategies, task)
        put_after(self.service, task, network, cluster)

    def _strategies(self, cluster: ecs.Cluster, remove_group: RemoveGroup) -> list[ecs.CapacityProviderStrategy]:
        """Return from where ECS takes the instances."""
        pool, network = self._pool, self._network
        if self._is_managed:
            return ManagedCapacity(self, "Capacity", pool=pool, network=network, cluster=cluster).strategies
        return GpuCapacity(
            self, "Capacity", pool=pool, network=network, cluster=cluster, remove_group=remove_group
        ).strategies

    def missing(self) -> cloudwatch.Metric:
        """Return how often running workers were measured in five minutes: none is measured without a worker."""
        return self.service.metric_cpu_utilization(statistic="SampleCount", period=FIVE_MINUTES)

    def _image(self, root: Path, task: ecs.TaskDefinition) -> ecs.ContainerImage:
        """Return the configured image, or the one that is built here from gpu_worker/Dockerfile when it is deployed."""
        if self._pool.image is not None:
            return self._existing_image(self._pool.image, task)
        platform = ecr_assets.Platform.LINUX_AMD64
        return ecs.ContainerImage.from_asset(str(root), file="gpu_worker/Dockerfile", platform=platform)

    def _existing_image(self, name: str, task: ecs.TaskDefinition) -> ecs.ContainerImage:
        """Return an image that exists. From ECR the execution role may pull it, also of another account or region; the
        other account must allow it too. From another registry ECS pulls it without credentials."""
        found = ecr_image(name)
        if found is None:
            return ecs.ContainerImage.from_registry(name)
        repository = ecr.Repository.from_repository_attributes(
            self, "Image", repository_arn=found.repository_arn, repository_name=found.repository
        )
        if found.is_common:
            return ecs.ContainerImage.from_ecr_repository(repository, found.digest)
        repository.grant_pull(task.obtain_execution_role())
        return ecs.ContainerImage.from_registry(name)

    def _task(self, root: Path, role: iam.Role) -> ecs.TaskDefinition:
        pool = self._pool
        task = ecs.TaskDefinition(
            self,
            "Task",
            compatibility=ecs.Compatibility.MANAGED_INSTANCES if self._is_managed else ecs.Compatibility.EC2,
            network_mode=ecs.NetworkMode.AWS_VPC,
            task_role=role,
            volumes=[self._volume("model"), self._volume("home"), ecs.Volume(name="tmp")],
        )
        image = self._image(root, task)
        copy = ["-m", "gpu_worker.weights", str(pool.model), _model_path(pool)]
        copy += [each for name, address in pool.adapters.items() for each in (address, _adapter_path(pool, name))]
        gate = ["-m", "dispatcher", "--host", "0.0.0.0", "--port", str(GATE_PORT)]  # noqa: S104
        weights = self._container(task, "weights", copy, image=image, memory_limit_mib=_WEIGHTS_MB, essential=False)
        weights.add_mount_points(ecs.MountPoint(container_path=MODEL, source_volume="model", read_only=False))
        self._container(task, "gate", gate, image=image, memory_limit_mib=_GATE_MB)
        self._worker(task, image).add_container_dependencies(
            ecs.ContainerDependency(container=weights, condition=ecs.ContainerDependencyCondition.SUCCESS)
        )
        acknowledge(task, {"AwsSolutions-ECS2": "The variables name resources; the secret is in Secrets Manager."})
        reason = "ECR's GetAuthorizationToken cannot be limited to a resource."
        acknowledge(task.obtain_execution_role(), {"AwsSolutions-IAM5[Resource::*]": reason})
        return task

    def _volume(self, name: str) -> ecs.Volume:
        """Return a folder of the instance, which outlives the task; on Managed Instances one of the task alone."""
        return ecs.Volume(name=name, host=None if self._is_managed else ecs.Host(source_path=f"{DISK}/{name}"))

    def _worker(self, task: ecs.TaskDefinition, image: ecs.ContainerImage) -> ecs.ContainerDefinition:
        pool, memory_mb = self._pool, _memory_mb(self._pool)
        container = self._container(
            task,
            "worker",
            _worker_arguments(pool),
            image=image,
            gpu_count=pool.tensor_parallel,
            memory_limit_mib=memory_mb,
            linux_parameters=ecs.LinuxParameters(
                self,
                "Linux",
                init_process_enabled=True,
                shared_memory_size=None if self._is_managed else memory_mb // 4,
            ),
            stop_timeout=Duration.seconds(_drain_s(pool) + _STOP_MARGIN_S),
            health_check=ecs.HealthCheck(
                command=["CMD", "python3", "-c", _SERVES],
                interval=Duration.seconds(60),
                retries=10,
                start_period=Duration.seconds(300),
            ),
        )
        for name in _CACHES:
            container.add_environment(name, f"{HOME}/cache")
        container.add_mount_points(
            ecs.MountPoint(container_path=MODEL, source_volume="model", read_only=True),
            ecs.MountPoint(container_path=HOME, source_volume="home", read_only=False),
        )
        return container

    def _container(
        self, task: ecs.TaskDefinition, name: str, arguments: Sequence[str], **options: Any
    ) -> ecs.ContainerDefinition:
        """Add a container that runs Python with these arguments, not as root, and with /tmp as its only own files."""
        container = task.add_container(
            name,
            entry_point=["python3"],
            command=list(arguments),
            environment={**self._environment, "HOME": HOME},
            logging=ecs.LogDrivers.aws_logs(stream_prefix=name, log_group=self._log),
            readonly_root_filesystem=True,
            user=str(WORKER_UID),
            **options,
        )
        container.add_mount_points(
            ecs.MountPoint(container_path="/tmp", source_volume="tmp", read_only=False)  # noqa: S108
        )
        return container

    def _service(
        self, cluster: ecs.Cluster, strategies: list[ecs.CapacityProviderStrategy], task: ecs.TaskDefinition
    ) -> ecs.BaseService:
        """Return the service.

        A deployment keeps half of the workers, and ends an old one when a new one serves (_SERVES). At the most
        instances there is no room for new ones, and ECS ends half first. A pool of at most one is replaced with a gap.

        The template has no desired count: the sweep sets it, and each deployment would set it back. For Managed
        Instances CDK has no class of its own: a service with their strategies is made by that for Fargate.
        """
        options: dict[str, Any] = {
            "cluster": cluster,
            "task_definition": task,
            "service_name": service_name(Stack.of(self).stack_name, self._name),
            "min_healthy_percent": 50 if self._pool.count.max > 1 else 0,
            "max_healthy_percent": 200 if self._pool.count.max > 1 else 100,
            "availability_zone_rebalancing": ecs.AvailabilityZoneRebalancing.DISABLED,  # it stops workers with requests
            "circuit_breaker": ecs.DeploymentCircuitBreaker(enable=True, rollback=True),
            "capacity_provider_strategies": strategies,
            "security_groups": [self._network.worker],
            "vpc_subnets": ec2.SubnetSelection(subnets=self._network.private_subnets(self._pool.own_zones)),
        }
        spread = ecs.PlacementStrategy.spread_across(ecs.BuiltInAttributes.AVAILABILITY_ZONE)
        service: ecs.BaseService = (
            ecs.FargateService(self, "Workers", **options)
            if self._is_managed
            else ecs.Ec2Service(self, "Workers", placement_strategies=[spread], **options)
        )
        cast("ecs.CfnService", service.node.default_child).add_property_deletion_override("DesiredCount")
        return service


def _drain_s(pool: Pool) -> int:
    """Return how long a worker drains. On Managed Instances no notice of a spot instance's end reaches it."""
    is_cut_off = pool.capacity == "managed_instances" and pool.spot_percent > 0
    return min(pool.drain_s, _SPOT_DRAIN_S) if is_cut_off else pool.drain_s


def _worker_arguments(pool: Pool) -> list[str]:
    own = ["-m", "gpu_worker", "--engine", "vllm", "--home", HOME, "--host", "0.0.0.0", "--port", str(WORKER_PORT)]  # noqa: S104
    own += pool.worker.arguments()
    own += ["--model", _model_path(pool), "--slots", str(pool.slots), "--batch", str(pool.batch)]
    own += ["--drain-s", str(_drain_s(pool)), "--notice", f"{HOME}/{SPOT_NOTICE}", "--emf-s", str(_METRICS_S)]
    adapters = [f"{name}={_adapter_path(pool, name)}" for name in pool.adapters]
    own += ["--", "--tensor-parallel-size", str(pool.tensor_parallel), *pool.engine_arguments]
    return [*own, "--lora-modules", *adapters] if adapters else own


def _model_path(pool: Pool) -> str:
    """Return the model's folder. Its name is the one by which tenants ask for the model."""
    return f"{MODEL}/{pool.model_name}"


def _adapter_path(pool: Pool, name: str) -> str:
    """Return an adapter's folder: beside the model's, which has exactly the model's files."""
    return f"{_model_path(pool)}.adapters/{name}"


def _memory_mb(pool: Pool) -> int:
    """Return the memory for the worker on the smallest of the instance types."""
    smallest_gb = min(kind.memory_gb for kind in pool.types().values())
    return int(smallest_gb * 1024 * 0.95) - _SYSTEM_MB - _WEIGHTS_MB - _GATE_MB

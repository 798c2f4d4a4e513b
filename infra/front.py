"""The front on Fargate, behind a load balancer. In each task: the HTTP front, a gate process for each pool, which may
lead it, and the process that runs batches.

All containers run the functions' bundle (infra/bundle.py) on Python's own image. A front waits for as long as a caller
does. On Fargate a waiting caller costs nothing; in Lambda each one occupies an execution (docs/cost.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from aws_cdk import CfnOutput, Duration, Stack
from aws_cdk import aws_certificatemanager as acm
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_elasticloadbalancingv2 as elb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from headgate.deployment.model import Deployment
from infra.checks import acknowledge
from infra.network import FRONT_PORT, PRIVATE, Network, gate_ports, put_after
from infra.watched import FIVE_MINUTES

CPU, _MEMORY_MB = 1024, 2048
_MARGIN_S = 60
"""Beyond the longest deadline, for answers that end at it."""
_DRAIN_MAX_S = 3600
_BUSY_PERCENT = 50
"""Tasks are added while the fronts use more than this of their CPU. The other half is for bursts until they serve."""

_ACKNOWLEDGED_TASK = {"AwsSolutions-ECS2": "The variables name resources; the secret is read from Secrets Manager."}
_ACKNOWLEDGED_BALANCER = {
    "AwsSolutions-ELB2": "Each invocation leaves a line in the fronts' log; access logs would add addresses."
}


class Front(Construct):
    """The service. `environment`: the variables of the gate's processes. `role`: what they may do."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        deployment: Deployment,
        network: Network,
        cluster: ecs.Cluster,
        image: ecs.ContainerImage,
        role: iam.Role,
        environment: Mapping[str, str],
        log: logs.LogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        self._deployment, self._network = deployment, network
        self.silence_s = deployment.longest_s + _MARGIN_S
        task = self._task(image, role, environment, log)
        self.service = self._service(task, cluster)
        put_after(self.service, task, network)
        self.balancer = elb.ApplicationLoadBalancer(
            self,
            "Balancer",
            vpc=network.vpc,
            internet_facing=deployment.certificate is not None,
            idle_timeout=Duration.seconds(self.silence_s),  # an answer that is not streamed sends nothing until its end
            drop_invalid_header_fields=True,
        )
        self.targets = self._targets()
        self._listen()
        acknowledge(self.balancer, _ACKNOWLEDGED_BALANCER)
        CfnOutput(Stack.of(self), "OpenAiBaseUrl", value=self._base_url(), description="base_url for any OpenAI SDK")

    def _task(
        self, image: ecs.ContainerImage, role: iam.Role, environment: Mapping[str, str], log: logs.LogGroup
    ) -> ecs.FargateTaskDefinition:
        task = ecs.FargateTaskDefinition(
            self,
            "Task",
            cpu=CPU,
            memory_limit_mib=_MEMORY_MB,
            task_role=role,
            runtime_platform=ecs.RuntimePlatform(
                cpu_architecture=ecs.CpuArchitecture.ARM64, operating_system_family=ecs.OperatingSystemFamily.LINUX
            ),
            volumes=[ecs.Volume(name="tmp")],
        )
        idle = f"{2 * self.silence_s}"
        batches = ["dispatcher.executor", "--only-batches"]
        front = ["functions.http_api.server", "--host", "0.0.0.0", "--port", f"{FRONT_PORT}", "--idle-s", idle]  # noqa: S104
        alive = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{FRONT_PORT}/health', timeout=2)"
        add = partial(_add_container, task, image, log)
        check = ecs.HealthCheck(command=["CMD", "python3", "-c", alive])
        add("front", front, environment, ports=[FRONT_PORT], health_check=check)
        shards = {name: pool.shards for name, pool in self._deployment.pools.items()}
        for pool, ports in gate_ports(shards).items():
            gate = ["dispatcher", "--host", "0.0.0.0", "--port", f"{ports[0]}"]  # noqa: S104
            add(f"gate-{pool}", gate, {**environment, "HEADGATE_POOL": pool}, ports=ports)
        add("batches", batches, environment)
        acknowledge(task, _ACKNOWLEDGED_TASK)
        reason = "ECR's GetAuthorizationToken cannot be limited to a resource."
        acknowledge(task.obtain_execution_role(), {"AwsSolutions-IAM5[Resource::*]": reason})
        return task

    def _service(self, task: ecs.FargateTaskDefinition, cluster: ecs.Cluster) -> ecs.FargateService:
        service = ecs.FargateService(
            self,
            "Service",
            cluster=cluster,
            task_definition=task,
            service_name=f"{Stack.of(self).stack_name}-front",
            desired_count=self._deployment.front_count.min,
            min_healthy_percent=100,
            max_healthy_percent=200,
            circuit_breaker=ecs.DeploymentCircuitBreaker(enable=True, rollback=True),
            security_groups=[self._network.front],
            vpc_subnets=PRIVATE,
            assign_public_ip=False,
        )
        count = self._deployment.front_count
        scaling = service.auto_scale_task_count(min_capacity=count.min, max_capacity=count.max)
        scaling.scale_on_cpu_utilization(
            "Cpu",
            policy_name=f"{Stack.of(self).stack_name}-front-cpu",
            target_utilization_percent=_BUSY_PERCENT,
            scale_in_cooldown=Duration.minutes(5),
        )
        return service

    def _targets(self) -> elb.ApplicationTargetGroup:
        """Return the tasks as targets. ECS takes a task out first, and stops it when its streams have ended.

        Its health is /health and not /ready: a front without workers must itself answer, with an honest Retry-After.
        """
        return elb.ApplicationTargetGroup(
            self,
            "Targets",
            vpc=self._network.vpc,
            port=FRONT_PORT,
            protocol=elb.ApplicationProtocol.HTTP,
            targets=[self.service.load_balancer_target(container_name="front", container_port=FRONT_PORT)],
            deregistration_delay=Duration.seconds(min(self.silence_s, _DRAIN_MAX_S)),
            health_check=elb.HealthCheck(path="/health", interval=Duration.seconds(10), timeout=Duration.seconds(5)),
            load_balancing_algorithm_type=elb.TargetGroupLoadBalancingAlgorithmType.LEAST_OUTSTANDING_REQUESTS,
        )

    def _listen(self) -> None:
        """Listen with HTTPS to everybody; without a certificate, with HTTP inside the VPC only."""
        if self._deployment.certificate is None:
            peer = ec2.Peer.ipv4(self._network.vpc.vpc_cidr_block)
            self.balancer.add_listener("Http", port=80, open=False, default_target_groups=[self.targets])
            self.balancer.connections.allow_from(peer, ec2.Port.tcp(80), "callers in the VPC")
            self._acknowledge_ingress("Only callers in the VPC; its range of addresses is known at deployment.")
            return
        certificate = acm.Certificate.from_certificate_arn(self, "Certificate", self._deployment.certificate)
        self.balancer.add_listener(
            "Https",
            port=443,
            certificates=[certificate],
            ssl_policy=elb.SslPolicy.RECOMMENDED_TLS,
            default_target_groups=[self.targets],
        )
        self.balancer.add_redirect()
        self._acknowledge_ingress("Callers on the internet use it with HTTPS and an API key; port 80 only redirects.")

    def _acknowledge_ingress(self, reason: str) -> None:
        for group in self.balancer.connections.security_groups:
            acknowledge(group, {"AwsSolutions-EC23": reason})

    def errors(self) -> cloudwatch.MathExpression:
        """Return the answers with 5xx in five minutes: those of fronts, and those of the load balancer itself."""
        using = {
            "own": self.balancer.metrics.http_code_target(elb.HttpCodeTarget.TARGET_5XX_COUNT),
            "balancer": self.balancer.metrics.http_code_elb(elb.HttpCodeElb.ELB_5XX_COUNT),
        }
        return cloudwatch.MathExpression(
            expression="FILL(own, 0) + FILL(balancer, 0)", using_metrics=using, label="5xx", period=FIVE_MINUTES
        )

    def _base_url(self) -> str:
        if self._deployment.domain is not None:
            return f"https://{self._deployment.domain}/v1"
        return f"http://{self.balancer.load_balancer_dns_name}/v1"


def _add_container(
    task: ecs.FargateTaskDefinition,
    image: ecs.ContainerImage,
    log: logs.LogGroup,
    name: str,
    module: Sequence[str],
    environment: Mapping[str, str],
    *,
    ports: Sequence[int] = (),
    health_check: ecs.HealthCheck | None = None,
) -> None:
    """Add a container that runs a Python module of the bundle, and may write to /tmp only."""
    container = task.add_container(
        name,
        image=image,
        command=["python3", "-m", *module],
        environment=dict(environment),
        logging=ecs.LogDrivers.aws_logs(stream_prefix=name, log_group=log),
        readonly_root_filesystem=True,
        port_mappings=[ecs.PortMapping(container_port=port) for port in ports],
        stop_timeout=Duration.seconds(_MARGIN_S),
        health_check=health_check,
    )
    container.add_mount_points(
        ecs.MountPoint(container_path="/tmp", source_volume="tmp", read_only=False)  # noqa: S108
    )

"""The GPU instances of a pool: in an Auto Scaling group, or as ECS Managed Instances; and how a group is removed.

GpuCapacity: instances that ECS starts and ends in an Auto Scaling group: of mixed types, on demand and spot, or of one
type in a capacity block, which was reserved before.

ManagedCapacity: AWS chooses the image, patches it, and drains each instance on its 14th day. There is no warm pool. A
task there has no folder of its instance, so a new worker copies its model again; and no shared memory of its own size,
so a model uses one GPU. Source: AWS's differences of task definitions for Managed Instances.

FleetRemoval makes a rollback, a removed pool and `cdk destroy` end although ECS protects the instances of a pool. The
chain of dependencies is the order. It is created from left to right and deleted from right to left:

    Auto Scaling group -> removal -> capacity provider -> its association with the cluster -> service

So the service's tasks drain and end first, then ECS lets go of the group, then headgate-remove-fleet deletes the group
with force (functions/fleet_removal), then CloudFormation finds it deleted. The group has no instance before the service
exists, so none starts without a removal. Each pool has the right to delete its group in a policy of its own: a pool
that leaves the stack takes the right with it after its group.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from aws_cdk import Aws, CfnElement, CfnResource, CustomResource, Duration, Size, Stack
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from headgate.deployment.model import Deployment
from headgate.deployment.pool import Pool
from infra.checks import acknowledge
from infra.functions import RUNTIME
from infra.network import Network
from infra.observability import log_group
from infra.roles import function_role
from infra.watched import SERVICE

_ROOT_DISK_GB = 100
"""The size of the disk for the system and the image; the model lies on the instance's own disk."""
DISK = "/opt/headgate"
_WATCHER = "/usr/local/bin/headgate-spot"
_METADATA = "http://169.254.169.254"
SPOT_NOTICE = "spot-notice"
"""The file in which a worker finds that its instance ends."""
WORKER_UID = 10001
"""The user id of a worker, as in gpu_worker/Dockerfile."""
_AGENT_WILDCARDS = ("AwsSolutions-IAM5[Resource::*]", "AwsSolutions-IAM5[Action::ecs:Submit*]")


class GpuCapacity(Construct):
    """`strategies`: from where ECS takes instances for the pool's workers."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        pool: Pool,
        network: Network,
        cluster: ecs.Cluster,
        remove_group: RemoveGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        self._pool, self._network = pool, network
        role = iam.Role(self, "InstanceRole", assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"))
        group = self._group(self._template(role))
        provider = ecs.AsgCapacityProvider(
            self,
            "Provider",
            auto_scaling_group=group,
            enable_managed_scaling=True,
            enable_managed_draining=True,
            enable_managed_termination_protection=True,
        )
        provider.node.add_dependency(remove_group(self, group))
        cluster.add_asg_capacity_provider(provider)
        reason = "The actions of ECS's agent; those with a wildcard are limited to this cluster by a condition."
        acknowledge(role, dict.fromkeys(_AGENT_WILDCARDS, reason))
        name = provider.capacity_provider_name
        self.strategies = [ecs.CapacityProviderStrategy(capacity_provider=name, weight=1)]

    def _template(self, role: iam.Role) -> ec2.LaunchTemplate:
        template = ec2.LaunchTemplate(
            self,
            "Template",
            machine_image=ecs.EcsOptimizedImage.amazon_linux2023(ecs.AmiHardwareType.GPU),
            instance_type=ec2.InstanceType(self._pool.instance_types[0]),
            role=role,
            security_group=ec2.SecurityGroup(
                self,
                "InstanceGroup",
                vpc=self._network.vpc,
                description="headgate: instances, which nobody connects to",
            ),
            user_data=_user_data(),
            require_imdsv2=True,
            http_put_response_hop_limit=1,
            block_devices=[
                ec2.BlockDevice(
                    device_name="/dev/xvda",
                    volume=ec2.BlockDeviceVolume.ebs(
                        _ROOT_DISK_GB, encrypted=True, volume_type=ec2.EbsDeviceVolumeType.GP3
                    ),
                )
            ],
        )
        if self._pool.capacity_block is not None:
            data = cast("CfnResource", template.node.default_child)
            target = {"CapacityReservationId": self._pool.capacity_block.id}
            data.add_property_override("LaunchTemplateData.InstanceMarketOptions.MarketType", "capacity-block")
            data.add_property_override(
                "LaunchTemplateData.CapacityReservationSpecification.CapacityReservationTarget", target
            )
        return template

    def _group(self, template: ec2.LaunchTemplate) -> autoscaling.AutoScalingGroup:
        block = self._pool.capacity_block
        options: dict[str, Any] = (
            {"mixed_instances_policy": self._mixed_policy(template)} if block is None else {"launch_template": template}
        )
        group = autoscaling.AutoScalingGroup(
            self,
            "Instances",
            vpc=self._network.vpc,
            vpc_subnets=ec2.SubnetSelection(subnets=self._network.private_subnets(self._pool.own_zones)),
            min_capacity=0,
            max_capacity=self._pool.count.max,
            **options,
        )
        reason = "ECS starts and ends instances as tasks need them; the alarm without workers tells of failed launches."
        volume = "The volume of the launch template is encrypted."
        acknowledge(group, {"AwsSolutions-AS3": reason, "AwsSolutions-EC26": volume})
        return group

    def _mixed_policy(self, template: ec2.LaunchTemplate) -> autoscaling.MixedInstancesPolicy:
        pool = self._pool
        return autoscaling.MixedInstancesPolicy(
            launch_template=template,
            launch_template_overrides=[
                autoscaling.LaunchTemplateOverrides(instance_type=ec2.InstanceType(name))
                for name in pool.instance_types
            ],
            instances_distribution=autoscaling.InstancesDistribution(
                on_demand_base_capacity=pool.on_demand_base,
                on_demand_percentage_above_base_capacity=100 - pool.spot_percent,
                spot_allocation_strategy=autoscaling.SpotAllocationStrategy.PRICE_CAPACITY_OPTIMIZED,
            ),
        )


def _user_data() -> ec2.UserData:
    """Return what an instance does at its start: format its own disk, make the folders of the volumes on it, and
    configure ECS's agent: drain at a spot notice, and keep containers away from the instance's own credentials. Then
    start what writes a spot notice to the folder that the worker sees."""
    data = ec2.UserData.for_linux()
    data.add_commands(
        f"mkdir -p {DISK}",
        "disk=$(lsblk -dpno NAME,MODEL | awk '/Instance Storage/ {print $1; exit}')",
        f'if [ -n "$disk" ]; then mkfs.xfs -f "$disk" && mount "$disk" {DISK}; fi',
        f"mkdir -p {DISK}/model {DISK}/home",
        f"chown {WORKER_UID}:{WORKER_UID} {DISK}/model {DISK}/home",
        "echo ECS_ENABLE_SPOT_INSTANCE_DRAINING=true >> /etc/ecs/ecs.config",
        "echo ECS_AWSVPC_BLOCK_IMDS=true >> /etc/ecs/ecs.config",
        f"cat > {_WATCHER} <<'SCRIPT'\n{(Path(__file__).parent / 'spot_notice.sh').read_text()}SCRIPT",
        f"chmod 755 {_WATCHER}",
        f"systemd-run --unit headgate-spot -p Restart=always {_WATCHER} {_METADATA} {DISK}/home/{SPOT_NOTICE}",
    )
    return data


_ANY_PRICE_PERCENT = 999_999
"""Otherwise EC2 leaves out types that cost more than general-purpose ones of their size, and so all with GPUs."""
_INFRASTRUCTURE_POLICY = "AmazonECSInfrastructureRolePolicyForManagedInstances"
_INSTANCE_POLICY = "AmazonECSInstanceRolePolicyForManagedInstances"
"""AWS's own policies, which ECS documents for the role that starts instances, and for that of an instance."""


class ManagedCapacity(Construct):
    """`strategies`: from where ECS takes instances for the pool's workers: on demand, and spot instances."""

    def __init__(
        self, scope: Construct, construct_id: str, *, pool: Pool, network: Network, cluster: ecs.Cluster
    ) -> None:
        super().__init__(scope, construct_id)
        self._pool, self._network, self._cluster = pool, network, cluster
        self._group = ec2.SecurityGroup(
            self, "InstanceGroup", vpc=network.vpc, description="headgate: instances, which nobody connects to"
        )
        self._instance_role = self._role("InstanceRole", "ec2.amazonaws.com", _INSTANCE_POLICY)
        self._profile = iam.InstanceProfile(self, "InstanceProfile", role=self._instance_role)
        self._infrastructure_role = self._role("InfrastructureRole", "ecs.amazonaws.com", _INFRASTRUCTURE_POLICY)
        self._may_pass_the_instance_role()
        self.strategies = []
        if pool.on_demand_base or pool.spot_percent < 100:
            provider = self._provider("OnDemand", ecs.CapacityOptionType.ON_DEMAND)
            self.strategies.append(
                ecs.CapacityProviderStrategy(
                    capacity_provider=provider, base=pool.on_demand_base, weight=100 - pool.spot_percent
                )
            )
        if pool.spot_percent:
            provider = self._provider("Spot", ecs.CapacityOptionType.SPOT)
            self.strategies.append(ecs.CapacityProviderStrategy(capacity_provider=provider, weight=pool.spot_percent))

    def _role(self, title: str, service: str, policy: str) -> iam.Role:
        """Make a role without a fixed name: IAM's names are global, and a stack of this name may be in two regions."""
        managed = iam.ManagedPolicy.from_aws_managed_policy_name(policy)
        role = iam.Role(self, title, assumed_by=iam.ServicePrincipal(service), managed_policies=[managed])
        rule = f"AwsSolutions-IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/{policy}]"
        acknowledge(role, {rule: "The policy that ECS documents for this role."})
        return role

    def _may_pass_the_instance_role(self) -> None:
        """Let ECS give the role to instances. AWS's policy allows it for roles named ecsInstanceRole only."""
        self._infrastructure_role.add_to_policy(
            iam.PolicyStatement(
                actions=["iam:PassRole"],
                resources=[self._instance_role.role_arn],
                conditions={"StringLike": {"iam:PassedToService": "ec2.*"}},
            )
        )

    def _provider(self, title: str, option: ecs.CapacityOptionType) -> str:
        """Make a capacity provider, and return its name."""
        types, is_spot = self._pool.types().values(), option is ecs.CapacityOptionType.SPOT
        provider = ecs.ManagedInstancesCapacityProvider(
            self,
            title,
            subnets=self._network.private_subnets(self._pool.own_zones),
            security_groups=[self._group],
            capacity_option_type=option,
            ec2_instance_profile=self._profile,
            infrastructure_role=self._infrastructure_role,
            instance_requirements=ec2.InstanceRequirementsConfig(
                allowed_instance_types=list(self._pool.instance_types),
                v_cpu_count_min=min(kind.vcpus for kind in types),
                memory_min=Size.gibibytes(min(kind.memory_gb for kind in types)),
                on_demand_max_price_percentage_over_lowest_price=None if is_spot else _ANY_PRICE_PERCENT,
                spot_max_price_percentage_over_lowest_price=_ANY_PRICE_PERCENT if is_spot else None,
            ),
        )
        provider.node.add_dependency(self._infrastructure_role)  # its policy lets instances start
        resource = next(each for each in provider.node.children if isinstance(each, ecs.CfnCapacityProvider))
        own_disk = "ManagedInstancesProvider.InstanceLaunchTemplate.LocalStorageConfiguration.UseLocalStorage"
        resource.add_property_override(own_disk, True)
        self._cluster.add_managed_instances_capacity_provider(provider)
        name: str = provider.capacity_provider_name
        return name


_LONGEST = Duration.minutes(15)
"""Large instances need ten minutes to end."""
_ANSWERED_WITHIN = Duration.minutes(20)


RemoveGroup = Callable[[Construct, autoscaling.AutoScalingGroup], CustomResource]
"""Makes the removal of a group (FleetRemoval.of)."""


class FleetRemoval(Construct):
    """The function, which all pools of a stack share."""

    def __init__(self, scope: Construct, construct_id: str, *, code: lambda_.Code, deployment: Deployment) -> None:
        super().__init__(scope, construct_id)
        log = log_group(self, "Log", deployment)
        self._role = function_role(self, "Role", log_group=log, worker_secret=None)
        self._role.add_to_policy(
            iam.PolicyStatement(actions=["autoscaling:DescribeAutoScalingGroups"], resources=["*"])
        )
        self._function = lambda_.Function(
            self,
            "Function",
            function_name=f"{Stack.of(self).stack_name}-remove-fleet",
            runtime=RUNTIME,
            architecture=lambda_.Architecture.ARM_64,
            handler="functions.fleet_removal.handler.handler",
            code=code,
            timeout=_LONGEST,
            memory_size=256,
            environment={"POWERTOOLS_SERVICE_NAME": SERVICE},
            role=self._role,
            log_group=log,
            tracing=lambda_.Tracing.ACTIVE,
        )

    def of(self, scope: Construct, group: autoscaling.AutoScalingGroup) -> CustomResource:
        """Return what deletes the group with force, before CloudFormation deletes it. Whatever lets instances start in
        the group must depend on it."""
        name = group.auto_scaling_group_name
        place = f"arn:{Aws.PARTITION}:autoscaling:{Aws.REGION}:{Aws.ACCOUNT_ID}:autoScalingGroup:*"
        arn = f"{place}:autoScalingGroupName/{name}"
        deletion = iam.PolicyStatement(actions=["autoscaling:DeleteAutoScalingGroup"], resources=[arn])
        policy = iam.Policy(scope, "RemovalPolicy", roles=[self._role], statements=[deletion])
        own = Stack.of(self).get_logical_id(cast("CfnElement", group.node.default_child))
        found = "arn:<AWS::Partition>:autoscaling:<AWS::Region>:<AWS::AccountId>:autoScalingGroup:*"
        rule = f"AwsSolutions-IAM5[Resource::{found}:autoScalingGroupName/<{own}>]"
        acknowledge(policy, {rule: "Auto Scaling gives each group a random id; the name is this group's."})
        removal = CustomResource(
            scope,
            "Removal",
            service_token=self._function.function_arn,
            resource_type="Custom::FleetRemoval",
            properties={"GroupName": name},
            service_timeout=_ANSWERED_WITHIN,
        )
        removal.node.add_dependency(policy, group)
        return removal

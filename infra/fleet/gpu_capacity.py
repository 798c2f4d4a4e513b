"""The GPU instances of a pool that ECS starts and ends in an Auto Scaling group: of mixed types, on demand and spot, or
of one type in a capacity block, which was reserved before."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from aws_cdk import CfnResource
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from constructs import Construct

from headgate.deployment.pool import Pool
from infra.checks.findings import acknowledge
from infra.fleet.removal import RemoveGroup
from infra.network import Network

ROOT_DISK_GB = 100
"""The size of the disk for the system and the image; the model lies on the instance's own disk."""
DISK = "/opt/headgate"
WATCHER = "/usr/local/bin/headgate-spot"
METADATA = "http://169.254.169.254"
SPOT_NOTICE = "spot-notice"
"""The file in which a worker finds that its instance ends."""
WORKER_UID = 10001
"""The user id of a worker, as in gpu_worker/Dockerfile."""
AGENT_WILDCARDS = ("AwsSolutions-IAM5[Resource::*]", "AwsSolutions-IAM5[Action::ecs:Submit*]")


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
        acknowledge(role, dict.fromkeys(AGENT_WILDCARDS, reason))
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
                        ROOT_DISK_GB, encrypted=True, volume_type=ec2.EbsDeviceVolumeType.GP3
                    ),
                )
            ],
        )
        if self._pool.capacity_block is not None:
            data = cast(CfnResource, template.node.default_child)
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
        f"cat > {WATCHER} <<'SCRIPT'\n{(Path(__file__).parent / 'spot_notice.sh').read_text()}SCRIPT",
        f"chmod 755 {WATCHER}",
        f"systemd-run --unit headgate-spot -p Restart=always {WATCHER} {METADATA} {DISK}/home/{SPOT_NOTICE}",
    )
    return data

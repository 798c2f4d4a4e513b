"""The GPU instances of a pool as ECS Managed Instances: AWS chooses the image, patches it, and drains each instance on
its 14th day. There is no warm pool.

A task there has no folder of its instance, so a new worker copies its model again; and no shared memory of its own
size, so a model uses one GPU. Source: AWS's differences of task definitions for Managed Instances.
"""

from __future__ import annotations

from aws_cdk import Size
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from constructs import Construct

from headgate.deployment.pool import Pool
from infra.checks.findings import acknowledge
from infra.network import Network

ANY_PRICE_PERCENT = 999_999
"""Otherwise EC2 leaves out types that cost more than general-purpose ones of their size, and so all with GPUs."""
INFRASTRUCTURE_POLICY = "AmazonECSInfrastructureRolePolicyForManagedInstances"
INSTANCE_POLICY = "AmazonECSInstanceRolePolicyForManagedInstances"
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
        self._instance_role = self._role("InstanceRole", "ec2.amazonaws.com", INSTANCE_POLICY)
        self._profile = iam.InstanceProfile(self, "InstanceProfile", role=self._instance_role)
        self._infrastructure_role = self._role("InfrastructureRole", "ecs.amazonaws.com", INFRASTRUCTURE_POLICY)
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
                on_demand_max_price_percentage_over_lowest_price=None if is_spot else ANY_PRICE_PERCENT,
                spot_max_price_percentage_over_lowest_price=ANY_PRICE_PERCENT if is_spot else None,
            ),
        )
        provider.node.add_dependency(self._infrastructure_role)  # its policy lets instances start
        resource = next(each for each in provider.node.children if isinstance(each, ecs.CfnCapacityProvider))
        own_disk = "ManagedInstancesProvider.InstanceLaunchTemplate.LocalStorageConfiguration.UseLocalStorage"
        resource.add_property_override(own_disk, True)
        self._cluster.add_managed_instances_capacity_provider(provider)
        name: str = provider.capacity_provider_name
        return name

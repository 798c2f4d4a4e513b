"""The GPU instances of a pool as ECS Managed Instances: AWS chooses the image, patches it, and drains each instance on
its 14th day. There is no warm pool.

A task there has no folder of its instance, so a new worker copies its model again; and no shared memory of its own
size, so a model uses one GPU. Source: AWS's differences of task definitions for Managed Instances.
"""

from __future__ import annotations

from aws_cdk import Size, Stack, Token
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecs as ecs
from constructs import Construct

from headgate.deployment.pool import Pool
from infra.findings import acknowledge
from infra.network import Network

ANY_PRICE_PERCENT = 999_999
"""Otherwise EC2 leaves out types that cost more than general-purpose ones of their size, and so all with GPUs."""
INFRASTRUCTURE = "arn:<AWS::Partition>:iam::aws:policy/AmazonECSInfrastructureRolePolicyForManagedInstances"


def _acknowledge(provider: ecs.ManagedInstancesCapacityProvider) -> None:
    """Accept the policies of the two roles that CDK makes for the provider."""
    region = Stack.of(provider).region
    place = "<AWS::Region>" if Token.is_unresolved(region) else region
    instances = f"arn:<AWS::Partition>:ecs:{place}:<AWS::AccountId>:container-instance/*"
    documented = "The policy that ECS documents for its role that starts instances."
    agent = "The actions of ECS's agent on an instance, which has no name before it starts."
    rules = {f"AwsSolutions-IAM4[Policy::{INFRASTRUCTURE}]": documented, "AwsSolutions-IAM5[Resource::*]": agent}
    acknowledge(provider, {**rules, f"AwsSolutions-IAM5[Resource::{instances}]": agent})


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

    def _provider(self, title: str, option: ecs.CapacityOptionType) -> str:
        """Make a capacity provider, and return its name."""
        types, is_spot = self._pool.types().values(), option is ecs.CapacityOptionType.SPOT
        provider = ecs.ManagedInstancesCapacityProvider(
            self,
            title,
            subnets=self._network.vpc.private_subnets,
            security_groups=[self._group],
            capacity_option_type=option,
            instance_requirements=ec2.InstanceRequirementsConfig(
                allowed_instance_types=list(self._pool.instance_types),
                v_cpu_count_min=min(kind.vcpus for kind in types),
                memory_min=Size.gibibytes(min(kind.memory_gb for kind in types)),
                on_demand_max_price_percentage_over_lowest_price=None if is_spot else ANY_PRICE_PERCENT,
                spot_max_price_percentage_over_lowest_price=ANY_PRICE_PERCENT if is_spot else None,
            ),
        )
        resource = next(each for each in provider.node.children if isinstance(each, ecs.CfnCapacityProvider))
        own_disk = "ManagedInstancesProvider.InstanceLaunchTemplate.LocalStorageConfiguration.UseLocalStorage"
        resource.add_property_override(own_disk, True)
        self._cluster.add_managed_instances_capacity_provider(provider)
        _acknowledge(provider)
        name: str = provider.capacity_provider_name
        return name

"""The network: a VPC, and which process may connect to which. Everything else is closed from outside.

| from | to | port | why |
| --- | --- | --- | --- |
| load balancer | front | FRONT_PORT | requests |
| front, function, worker | gate process beside a front | GATE_PORT and on: each pool's shards | the link to a leader |
| front, function, worker | gate process beside a worker | GATE_PORT + k for shard k | the same |
| front, function | worker | WORKER_PORT | orders and their streams |

Fronts, functions and workers are in private subnets. They reach DynamoDB and S3 through gateway endpoints, which cost
nothing, and AWS's other services through the NAT gateway.

A service is created after the network that its tasks need, and deleted before it. CloudFormation knows a dependency
only if the template has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aws_cdk import CfnOutput, Fn, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct, IDependable

from infra.checks import acknowledge

FRONT_PORT, GATE_PORT, WORKER_PORT = 8080, 8090, 8080
"""A gate process beside a worker has GATE_PORT. Beside a front, the first pool's has it."""
PRIVATE = ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS)


def gate_ports(pools: Mapping[str, int]) -> dict[str, range]:
    """Return the ports of each pool's gate process beside a front: one for each shard. `pools`: their shards."""
    found, port = dict[str, range](), GATE_PORT
    for pool, shards in pools.items():
        found[pool] = range(port, port + shards)
        port += shards
    return found


def _zones(zones: int | Sequence[str]) -> list[str]:
    """Return the names of the zones: those that are given, or so many of the account's own ones."""
    return list(zones) if not isinstance(zones, int) else [Fn.select(each, Fn.get_azs()) for each in range(zones)]


def make_cluster(scope: Construct, construct_id: str, vpc: ec2.Vpc) -> ecs.Cluster:
    """Make a cluster, which costs nothing.

    Each GPU fleet has a cluster of its own. The capacity providers of a cluster are one resource in CloudFormation.
    When a pool leaves the stack, CloudFormation updates this resource before it deletes the pool's service, and ECS
    refuses to remove a capacity provider that a service uses.
    """
    cluster = ecs.Cluster(scope, construct_id, vpc=vpc)
    reason = "Container Insights would cost more than the fronts; alarms use metrics that cost nothing."
    acknowledge(cluster, {"AwsSolutions-ECS4": reason})
    return cluster


def _ports(count: int, *, is_range: bool = False) -> ec2.Port:
    """Return so many ports from GATE_PORT on."""
    return ec2.Port.tcp_range(GATE_PORT, GATE_PORT + count - 1) if is_range or count > 1 else ec2.Port.tcp(GATE_PORT)


class Network(Construct):
    """`front`, `function`, `worker`: the security groups of these processes. A gate process is in the group of the
    process beside which it runs. `cluster`: of what runs on Fargate. `pools`: the number of each one's shards."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        zones: int | Sequence[str],
        nat_gateways: int,
        pools: Mapping[str, int],
        flow_log: logs.LogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        self._front_gates = _ports(sum(pools.values()), is_range=True)
        self._worker_gates = _ports(max(pools.values()))
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            availability_zones=_zones(zones),
            nat_gateways=nat_gateways,
            subnet_configuration=[
                ec2.SubnetConfiguration(name="public", subnet_type=ec2.SubnetType.PUBLIC, cidr_mask=22),
                ec2.SubnetConfiguration(name="private", subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS, cidr_mask=20),
            ],
            gateway_endpoints={
                "DynamoDb": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.DYNAMODB),
                "S3": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.S3),
            },
            restrict_default_security_group=False,  # nothing uses it, and a function with a role would have to do it
        )
        self.front = self._group("Front", "headgate: fronts, and the gate processes beside them")
        self.function = self._group("Function", "headgate: functions that reach gate processes and workers")
        self.worker = self._group("Worker", "headgate: workers, and the gate processes beside them")
        self.cluster = make_cluster(self, "Cluster", self.vpc)
        self._open_paths()
        self._log_rejected(flow_log)
        CfnOutput(
            Stack.of(self), "WorkerGroup", value=self.worker.security_group_id, description="Security group for workers"
        )
        CfnOutput(Stack.of(self), "VpcId", value=self.vpc.vpc_id, description="VPC for workers: its private subnets")

    def private_subnets(self, zones: Sequence[str]) -> list[ec2.ISubnet]:
        """Return the private subnets in these zones; in all of the network without any."""
        found = self.vpc.select_subnets(subnet_type=PRIVATE.subnet_type, availability_zones=list(zones) or None)
        return list(found.subnets)

    def _group(self, title: str, description: str) -> ec2.SecurityGroup:
        return ec2.SecurityGroup(self, title, vpc=self.vpc, description=description)

    def _open_paths(self) -> None:
        worker = ec2.Port.tcp(WORKER_PORT)
        for caller, name in ((self.front, "front"), (self.function, "function"), (self.worker, "worker")):
            self.front.add_ingress_rule(caller, self._front_gates, f"{name} to gate process")
            self.worker.add_ingress_rule(caller, self._worker_gates, f"{name} to gate process")
        self.worker.add_ingress_rule(self.front, worker, "front to worker")
        self.worker.add_ingress_rule(self.function, worker, "function to worker")

    def _log_rejected(self, group: logs.LogGroup) -> None:
        """Log the connections that the network refuses: a wrong security group is found there."""
        role = iam.Role(self, "FlowLogRole", assumed_by=iam.ServicePrincipal("vpc-flow-logs.amazonaws.com"))
        self.vpc.add_flow_log(
            "Rejected",
            traffic_type=ec2.FlowLogTrafficType.REJECT,
            destination=ec2.FlowLogDestination.to_cloud_watch_logs(group, role),
        )
        reason = "The flow log writes to its own log group only; the wildcard is for its streams."
        acknowledge(role, {"AwsSolutions-IAM5[Resource::*]": reason})


def put_after(service: Construct, task: ecs.TaskDefinition, network: Network, *others: IDependable) -> None:
    """Create the service after all that its tasks need to start, and delete it before, because they need the same to
    end: an instance without a route or without its role's policy cannot tell ECS that a task has stopped, and the
    service's deletion never ends.

    The CDK itself names the role of the task and its load balancer. This adds the network with its routes, endpoints
    and rules, the role that pulls the image and writes the log, and `others`.
    """
    service.node.add_dependency(network, task.obtain_execution_role(), *others)

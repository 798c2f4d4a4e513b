"""Which process may connect to which: every path that the gate needs is open, and no other."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.infra.conftest import Synthesise
from tests.infra.templates import Template, ids_of_type, of_type, template_in
from tests.infra.wiring import group_name

FRONT, GATE, WORKER = 8080, 8090, 8080
PATHS = {
    ("balancer", "front", FRONT),
    *((caller, host, GATE) for caller in ("front", "function", "worker") for host in ("front", "worker")),
    ("front", "worker", WORKER),
    ("function", "worker", WORKER),
}
HTTPS = {"certificate": "arn:aws:acm:us-east-1:123456789012:certificate/a", "domain": "llm.example.com"}


def group_names(template: Template) -> dict[str, str]:
    """Who is in each security group, by logical id."""
    return {name: group_name(template, name) for name in ids_of_type(template, "AWS::EC2::SecurityGroup")}


def paths(template: Template) -> set[tuple[str, str, int]]:
    """Every ingress between the stack's security groups: from, to, port."""
    names, found = group_names(template), set()
    for rule in of_type(template, "AWS::EC2::SecurityGroupIngress"):
        assert rule["FromPort"] == rule["ToPort"]
        caller, host = (rule[key]["Fn::GetAtt"][0] for key in ("SourceSecurityGroupId", "GroupId"))
        found.add((names[caller], names[host], rule["FromPort"]))
    return found


def open_to_addresses(template: Template) -> dict[str, list[int]]:
    """The ports that a group opens to addresses, and not to another group."""
    names = group_names(template)
    return {
        names[logical_id]: [rule["FromPort"] for rule in resource["Properties"]["SecurityGroupIngress"]]
        for logical_id, resource in template["Resources"].items()
        if resource["Type"] == "AWS::EC2::SecurityGroup" and resource["Properties"].get("SecurityGroupIngress")
    }


def test_every_path_is_open_and_no_other(template: Template) -> None:
    assert paths(template) == PATHS


def test_a_path_that_is_missing_or_too_much_is_found(template: Template) -> None:
    broken = copy.deepcopy(template)
    rules = [each for each in broken["Resources"].values() if each["Type"] == "AWS::EC2::SecurityGroupIngress"]
    rules[0]["Properties"].update(FromPort=22, ToPort=22)
    assert paths(broken) != PATHS


def test_functions_that_call_workers_are_in_private_subnets(each_template: Template) -> None:
    private = {
        logical_id
        for logical_id, resource in each_template["Resources"].items()
        if resource["Type"] == "AWS::EC2::Subnet" and not resource["Properties"]["MapPublicIpOnLaunch"]
    }
    connected = {
        function["FunctionName"]: {subnet["Ref"] for subnet in function["VpcConfig"]["SubnetIds"]}
        for function in of_type(each_template, "AWS::Lambda::Function")
        if "VpcConfig" in function
    }
    assert set(connected) - {"headgate-front"} == {"headgate-invoke", "headgate-execute", "headgate-sweep"}
    assert all(subnets == private for subnets in connected.values())


def test_the_table_and_the_bucket_are_reached_without_the_nat_gateway(template: Template) -> None:
    endpoints = of_type(template, "AWS::EC2::VPCEndpoint")
    assert sorted(str(each["ServiceName"]).count("dynamodb") for each in endpoints) == [0, 1]
    assert all(each["VpcEndpointType"] == "Gateway" for each in endpoints)


@pytest.mark.parametrize(("zones", "gateways"), [(2, 1), (3, 2)])
def test_zones_and_nat_gateways(synthesise: Synthesise, zones: int, gateways: int) -> None:
    made = template_in(synthesise(zones=zones, nat_gateways=gateways))
    assert len(of_type(made, "AWS::EC2::Subnet")) == 2 * zones
    assert len(of_type(made, "AWS::EC2::NatGateway")) == gateways


def test_without_a_certificate_only_the_vpc_reaches_the_front(template: Template) -> None:
    (balancer,) = of_type(template, "AWS::ElasticLoadBalancingV2::LoadBalancer")
    assert balancer["Scheme"] == "internal"
    assert open_to_addresses(template) == {"balancer": [80]}
    (group,) = (each for each in of_type(template, "AWS::EC2::SecurityGroup") if each.get("SecurityGroupIngress"))
    assert [rule["CidrIp"] for rule in group["SecurityGroupIngress"]] != ["0.0.0.0/0"]


def test_with_a_certificate_it_listens_to_everybody_with_https(synthesise: Synthesise) -> None:
    made = template_in(synthesise(**HTTPS))
    (balancer,) = of_type(made, "AWS::ElasticLoadBalancingV2::LoadBalancer")
    assert balancer["Scheme"] == "internet-facing"
    listeners = {each["Port"]: each for each in of_type(made, "AWS::ElasticLoadBalancingV2::Listener")}
    assert listeners.keys() == {80, 443}
    assert listeners[443]["Certificates"] == [{"CertificateArn": HTTPS["certificate"]}]
    assert "TLS13" in listeners[443]["SslPolicy"]
    assert [action["Type"] for action in listeners[80]["DefaultActions"]] == ["redirect"]
    assert sorted(open_to_addresses(made)["balancer"]) == [80, 443]
    urls: list[Any] = [each["Value"] for each in made["Outputs"].values() if "OpenAI SDK" in each["Description"]]
    assert urls == ["https://llm.example.com/v1"]

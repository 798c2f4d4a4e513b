"""What each process of a template needs beside its own definition: rights to what its variables name, an open port, and
a log that is its own. `problems` yields each that is missing; a test plants faults in copies of templates.

A process is a container of an ECS service, or a Lambda function.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.infra.templates import Template, actions, dependencies, ids_of_type, listed, of_type, references, statements

WITHOUT_THE_GATE = ("result", "admin", "remove-fleet")
"""Functions that read a log or write the configuration, and decide nothing."""
NEEDED = {
    "HEADGATE_QUEUE_URL": "sqs:SendMessage",
    "HEADGATE_WORKER_SECRET_ARN": "secretsmanager:GetSecretValue",
    "HEADGATE_OPERATOR_TOKEN_ARN": "secretsmanager:GetSecretValue",
    "HEADGATE_TABLE": "dynamodb:PutItem",
    "HEADGATE_FILES": "s3:PutObject",
}
"""What a process that decides does with the resource that a variable names."""
CALLERS = {"dispatcher": {"front", "function", "worker"}, "gpu_worker": {"front", "function"}}
"""The groups that connect to a process, by its module."""
GROUPS = {"fronts": "front", "functions": "function", "workers": "worker"}


class Process(NamedTuple):
    """`service`: the ECS service, none for a function. `writer`: the role that writes the log. Ids are logical."""

    name: str
    service: str | None
    command: list[str]
    variables: dict[str, Any]
    role: str
    writer: str
    log: str


def processes(template: Template) -> Iterator[Process]:
    """Yield the containers of all services, and all functions."""
    resources = template["Resources"]
    for service in sorted(ids_of_type(template, "AWS::ECS::Service")):
        task = resources[resources[service]["Properties"]["TaskDefinition"]["Ref"]]["Properties"]
        role, writer = (task[key]["Fn::GetAtt"][0] for key in ("TaskRoleArn", "ExecutionRoleArn"))
        for each in task["ContainerDefinitions"]:
            variables = {pair["Name"]: pair["Value"] for pair in each.get("Environment", [])}
            log = each["LogConfiguration"]["Options"]["awslogs-group"]["Ref"]
            yield Process(each["Name"], service, each["Command"], variables, role, writer, log)
    for name in sorted(ids_of_type(template, "AWS::Lambda::Function")):
        own = resources[name]["Properties"]
        role, title = own["Role"]["Fn::GetAtt"][0], own["FunctionName"].partition("-")[2]
        variables = {} if title in WITHOUT_THE_GATE else own["Environment"]["Variables"]
        yield Process(title, None, [], variables, role, role, own["LoggingConfig"]["LogGroup"]["Ref"])


def problems(template: Template) -> Iterator[str]:
    """Yield what a process lacks."""
    found = list(processes(template))
    for process in found:
        yield from _missing_rights(template, process)
        yield from _closed_ports(template, process)
    yield from _wrong_logs(template, found)
    yield from _missing_order(template)


def _missing_rights(template: Template, process: Process) -> Iterator[str]:
    own = [statement for role, statement in statements(template) if role == process.role]
    for variable, action in NEEDED.items():
        for resource in references(process.variables.get(variable, "")):
            allowed = any(action in actions(each) and resource in references(each["Resource"]) for each in own)
            if not allowed:
                yield f"{process.name}: {process.role} lacks {action} on {resource} ({variable})"


def _closed_ports(template: Template, process: Process) -> Iterator[str]:
    module = next((name for name in CALLERS if name in process.command), None)
    if process.service is None or module is None or "--port" not in process.command:
        return
    port = int(process.command[process.command.index("--port") + 1])
    network = template["Resources"][process.service]["Properties"]["NetworkConfiguration"]["AwsvpcConfiguration"]
    groups = set(references(network["SecurityGroups"]))
    open_to = {
        caller
        for rule in of_type(template, "AWS::EC2::SecurityGroupIngress")
        if rule["GroupId"]["Fn::GetAtt"][0] in groups and rule["FromPort"] <= port <= rule["ToPort"]
        for caller in (group_name(template, rule["SourceSecurityGroupId"]["Fn::GetAtt"][0]),)
    }
    if missing := CALLERS[module] - open_to:
        yield f"{process.name}: port {port} is closed to {', '.join(sorted(missing))}"


def group_name(template: Template, logical_id: str) -> str:
    """Return who is in a security group."""
    text = template["Resources"][logical_id]["Properties"]["GroupDescription"]
    return next((name for word, name in GROUPS.items() if f": {word}" in text), "balancer")


def _wrong_logs(template: Template, found: list[Process]) -> Iterator[str]:
    """Yield each log that its writer may not write, that others write too, or where the dashboard looks in vain."""
    owners = {log: {kind} for kind, log in _of_no_process(template)}
    for process in found:
        # the tasks before a pool's servers have one log, and one role
        owner = process.role if process.service else process.name
        owners.setdefault(process.log, set()).add(owner)
        written = {
            group
            for role, statement in statements(template)
            if role == process.writer and "logs:PutLogEvents" in actions(statement)
            for group in references(statement["Resource"])
        }
        if process.log not in written:
            yield f"{process.name}: {process.writer} may not write {process.log}"
    yield from (f"{log} is the log of {', '.join(sorted(each))}" for log, each in owners.items() if len(each) > 1)
    fronts = {process.log for process in found if process.name == "front"}
    watched = {log for name in ids_of_type(template, "AWS::CloudWatch::Dashboard") for log in _queried(template, name)}
    if watched != fronts:
        yield f"the dashboard reads {sorted(watched)}, and fronts write {sorted(fronts)}"


def _of_no_process(template: Template) -> Iterator[tuple[str, str]]:
    """Yield the log groups that AWS's services write, each with the type of its writer."""
    logs = ids_of_type(template, "AWS::Logs::LogGroup")
    for kind in ("AWS::EC2::FlowLog", "AWS::ApiGateway::Stage"):
        for name in ids_of_type(template, kind):
            yield from ((kind, log) for log in logs & set(references(template["Resources"][name]["Properties"])))


def _queried(template: Template, dashboard: str) -> set[str]:
    logs = ids_of_type(template, "AWS::Logs::LogGroup")
    return set(references(template["Resources"][dashboard]["Properties"])) & logs


def _missing_order(template: Template) -> Iterator[str]:
    """Yield what a service's tasks need to start and to end, if it may be created later or deleted earlier."""
    resources = template["Resources"]
    for service in ids_of_type(template, "AWS::ECS::Service"):
        before = dependencies(template, service)
        roles = before & ids_of_type(template, "AWS::IAM::Role")
        policies = {
            name
            for name in ids_of_type(template, "AWS::IAM::Policy")
            if roles & set(references(resources[name]["Properties"]["Roles"]))
        }
        subnets = before & ids_of_type(template, "AWS::EC2::Subnet")
        placed = ids_of_type(template, "AWS::EC2::SubnetRouteTableAssociation")
        placed = {name for name in placed if subnets & set(references(resources[name]["Properties"]["SubnetId"]))}
        tables = {table for name in placed for table in references(resources[name]["Properties"]["RouteTableId"])}
        routes = {
            name
            for name in ids_of_type(template, "AWS::EC2::Route")
            if tables & set(references(resources[name]["Properties"]["RouteTableId"]))
        }
        rules = ids_of_type(template, "AWS::EC2::SecurityGroupIngress")
        endpoints = ids_of_type(template, "AWS::EC2::VPCEndpoint")
        wanted = policies | placed | routes | rules | endpoints | _associations(template, service)
        for name in sorted(wanted - before):
            yield f"{service} does not depend on {name}"


def _associations(template: Template, service: str) -> set[str]:
    """Return the association of the service's capacity providers. Managed Instances need none."""
    resources = template["Resources"]
    strategies = resources[service]["Properties"].get("CapacityProviderStrategy", [])
    providers = set(references(strategies))
    grouped = {name for name in providers if "AutoScalingGroupProvider" in json.dumps(resources[name])}
    associations = ids_of_type(template, "AWS::ECS::ClusterCapacityProviderAssociations")
    found = {name for name in associations if grouped & set(references(listed(resources[name]["Properties"])))}
    if grouped and not found:
        return {f"an association of {', '.join(sorted(grouped))}"}
    return found

"""A stack's synthesis over an empty bundle, and readers of its CloudFormation template."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Template = dict[str, Any]
MODEL = "s3://models/llama-3-8b/"
IMAGE = f"123456789012.dkr.ecr.us-east-1.amazonaws.com/worker@sha256:{'a' * 64}"
MANAGED = "AWS::IAM::ManagedPolicy"


def synthesise(fields: dict[str, Any], folder: Path) -> Path:
    """Synthesise a stack with these fields of headgate.yaml over an empty bundle, and return the assembly's folder."""
    from aws_cdk import App

    from headgate.deployment.model import Deployment
    from infra import checks
    from infra.app import make_app
    from infra.bundle import Bundle

    bundle, out = folder / "bundle", folder / "cdk.out"
    bundle.mkdir()
    for name in ("run.sh", "Dockerfile"):
        (bundle / name).write_text("")
    app = make_app(Deployment.model_validate(fields), Bundle(bundle, "digest"), App(outdir=str(out)))
    checks.synthesise(app)
    return out


def template_in(assembly: Path) -> Template:
    """The stack's template in a cloud assembly."""
    loaded: Template = json.loads((assembly / "Headgate.template.json").read_text())
    return loaded


def of_type(template: Template, kind: str) -> list[dict[str, Any]]:
    """The properties of all resources of a type."""
    resources = template["Resources"].values()
    return [resource.get("Properties", {}) for resource in resources if resource["Type"] == kind]


def functions(template: Template) -> dict[str, dict[str, Any]]:
    return {function["FunctionName"]: function for function in of_type(template, "AWS::Lambda::Function")}


def tasks(template: Template) -> list[dict[str, dict[str, Any]]]:
    """The containers of each task definition, by name."""
    definitions = of_type(template, "AWS::ECS::TaskDefinition")
    return [{each["Name"]: each for each in task["ContainerDefinitions"]} for task in definitions]


def variables_of(container: dict[str, Any]) -> dict[str, Any]:
    return {each["Name"]: each["Value"] for each in container["Environment"]}


def role_of(function: dict[str, Any]) -> str:
    """The logical id of a function's role."""
    return str(function["Role"]["Fn::GetAtt"][0])


def statements(template: Template) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each statement of each role's policies, with the role's logical id."""
    for policy in of_type(template, "AWS::IAM::Policy"):
        for role in policy["Roles"]:
            for statement in policy["PolicyDocument"]["Statement"]:
                yield role["Ref"], statement
    for name, resource in template["Resources"].items():
        for policy in (
            resource.get("Properties", {}).get("Policies", []) if resource["Type"] == "AWS::IAM::Role" else []
        ):
            for statement in policy["PolicyDocument"]["Statement"]:
                yield name, statement


def managed_policy(template: Template, beginning: str) -> list[dict[str, Any]]:
    """The statements of the managed policy whose logical id has this beginning."""
    resources = template["Resources"].items()
    (found,) = (each for name, each in resources if name.startswith(beginning) and each["Type"] == MANAGED)
    own: list[dict[str, Any]] = found["Properties"]["PolicyDocument"]["Statement"]
    return own


def listed(value: Any) -> list[Any]:
    """IAM writes one thing without a list."""
    return value if isinstance(value, list) else [value]


def actions(statement: dict[str, Any]) -> list[str]:
    return listed(statement["Action"])


def references(value: Any) -> Iterator[str]:
    """The logical ids and parameters that a value refers to."""
    if isinstance(value, list):
        for each in value:
            yield from references(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            if key == "Ref":
                yield each
            elif key == "Fn::GetAtt":
                yield each[0]
            elif key == "Fn::Sub":
                yield from re.findall(r"\$\{(\w+)", json.dumps(each))
                yield from references(each[1] if isinstance(each, list) else {})
            else:
                yield from references(each)


def dependencies(template: Template, logical_id: str) -> set[str]:
    """All resources that CloudFormation creates before this one, and deletes after it."""
    resources, found, left = template["Resources"], set[str](), [logical_id]
    while left:
        resource = resources[left.pop()]
        named = {*listed(resource.get("DependsOn", [])), *references(resource.get("Properties", {}))}
        fresh = (named & resources.keys()) - found
        found |= fresh
        left += fresh
    return found


def ids_of_type(template: Template, kind: str) -> set[str]:
    """The logical ids of all resources of a type."""
    return {name for name, resource in template["Resources"].items() if resource["Type"] == kind}


def open_ended(statement: dict[str, Any]) -> list[str]:
    """The resources of a statement that name more than one thing."""
    return [text for resource in listed(statement["Resource"]) if "*" in (text := json.dumps(resource))]


def plain(value: object) -> str:
    """Return a text without intrinsic functions, as in account 123456789012 of us-east-1."""
    text = json.dumps(value)
    for name, own in (("URLSuffix", "amazonaws.com"), ("Partition", "aws"), ("Region", "us-east-1")):
        text = text.replace(f'{{"Ref": "AWS::{name}"}}', f'"{own}"').replace(f"${{AWS::{name}}}", own)
    text = text.replace('{"Ref": "AWS::AccountId"}', '"123456789012"').replace("${AWS::AccountId}", "123456789012")
    return _joined(json.loads(text))


def _joined(value: object) -> str:
    match value:
        case {"Fn::Join": [str(separator), list(parts)]}:
            return separator.join(map(_joined, parts))
        case {"Fn::Sub": str(text)}:
            return text
    return str(value)

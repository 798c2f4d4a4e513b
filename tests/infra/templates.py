"""Readers of a CloudFormation template."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Template = dict[str, Any]
MANAGED = "AWS::IAM::ManagedPolicy"


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

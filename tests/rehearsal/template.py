"""Makes of the synthesised template one that moto's CloudFormation can create. Pure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headgate.local.aws_lambda.invocation import ACCOUNT_ID, REGION

Template = dict[str, Any]
SECRET = "AWS::SecretsManager::Secret"
CODE = "AWS::Lambda::Function"


class Prepared(NamedTuple):
    """`left_out`: the logical ids of the resources that moto cannot create, by type."""

    template: Template
    left_out: dict[str, list[str]]


def prepared(template: Template, can_create: Callable[[str], bool], values: Mapping[str, str]) -> Prepared:
    """Leave out the resources that moto cannot create. `values`: what stands for some of these, by logical id; others
    become a text that says so. Functions get code that is never run, because their processes run the checkout."""
    made = copy.deepcopy(template)
    resources: dict[str, Any] = made["Resources"]
    gone = {name: each["Type"] for name, each in resources.items() if not can_create(each["Type"]) or name in values}
    left_out: dict[str, list[str]] = {}
    for name, kind in gone.items():
        del resources[name]
        left_out.setdefault(kind, []).append(name)
    stand_in = {name: values.get(name, _left_out(name, kind)) for name, kind in gone.items()}
    for each in resources.values():
        each["DependsOn"] = [name for name in _listed(each.get("DependsOn", [])) if name not in gone]
        if each["Type"] == CODE:
            each["Properties"]["Code"] = {"ZipFile": "pass"}
    for part in ("Resources", "Outputs"):
        made[part] = _replaced(made[part], stand_in)
    for part in ("Rules", "Parameters"):
        made.pop(part, None)
    return Prepared(made, left_out)


def _left_out(name: str, kind: str) -> str:
    """Return what stands for a resource that is left out. A policy may name an alias, by its ARN."""
    text = f"left-out-{name.lower()}"
    return f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:function:{text}" if kind == "AWS::Lambda::Alias" else text


def _replaced(value: Any, stand_in: Mapping[str, str]) -> Any:
    """Replace references to what was left out."""
    if isinstance(value, list):
        return [_replaced(each, stand_in) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"Ref"} and value["Ref"] in stand_in:
        return stand_in[value["Ref"]]
    if value.keys() == {"Fn::GetAtt"} and value["Fn::GetAtt"][0] in stand_in:
        return stand_in[value["Fn::GetAtt"][0]]
    return {key: _replaced(each, stand_in) for key, each in value.items()}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]

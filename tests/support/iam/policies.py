"""A template's identity policies, evaluated as IAM does, and physical names for its resources.

Evaluation knows the elements and the condition operators that our templates use. An explicit Deny wins. Without an
Allow a call is refused. An element or an operator that is not known here raises Unsupported, so that a new one in a
template never passes unread. Source: IAM's user guide, "Policy evaluation logic" and "Multivalued context keys".

A resource's physical name is its logical id in small letters, so that a template's variables and policies can be read
before a deployment. A process that gets the variables then names the resources exactly as the policies do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.local.aws_lambda.invocation import ACCOUNT_ID, REGION
from tests.infra.templates import Template, statements

Statement = Mapping[str, Any]
"""A statement of a policy whose intrinsic functions are resolved (Names)."""
ELEMENTS = {"Sid", "Effect", "Action", "Resource", "Condition"}
LEADING_KEYS = "dynamodb:LeadingKeys"


class Unsupported(Exception):
    """A policy has an element that this evaluator does not know."""


@dataclass(frozen=True, order=True)
class Call:
    """One action on one resource. `context`: the values of each condition key that the request has."""

    action: str
    resource: str
    context: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def values(self, key: str) -> tuple[str, ...]:
        return dict(self.context).get(key, ())


@dataclass(frozen=True, order=True)
class Grant:
    """What one statement allows, in its smallest part: an action on a resource, for one pattern of partition keys."""

    action: str
    resource: str
    leading_key: str = ""


def allows(statements: Iterable[Statement], call: Call) -> bool:
    """Return whether a role with these statements may make the call. Raises Unsupported."""
    effects = {str(each["Effect"]) for each in statements if applies(each, call)}
    return "Allow" in effects and "Deny" not in effects


def applies(statement: Statement, call: Call) -> bool:
    """Return whether action, resource and conditions of the statement fit the call. Raises Unsupported."""
    if statement.keys() - ELEMENTS or statement["Effect"] not in ("Allow", "Deny"):
        raise Unsupported(f"elements {sorted(statement)} with the effect {statement['Effect']}")
    conditions = [
        _operator(name)(_listed(wanted), call.values(key))
        for name, wanted_by_key in statement.get("Condition", {}).items()
        for key, wanted in wanted_by_key.items()
    ]
    return (
        any(matches(pattern.lower(), call.action.lower()) for pattern in _listed(statement["Action"]))
        and any(matches(pattern, call.resource) for pattern in _listed(statement["Resource"]))
        and all(conditions)
    )


def matches(pattern: str, text: str) -> bool:
    """Return whether the text fits IAM's pattern: * is any text, ? any character."""
    expression = "".join({"*": ".*", "?": "."}.get(each, re.escape(each)) for each in pattern)
    return re.fullmatch(expression, text, re.DOTALL) is not None


def unused(statements: Sequence[Statement], calls: Iterable[Call]) -> set[Grant]:
    """Return the grants of the statements that none of the calls needs."""
    found = set(calls)
    return {
        grant
        for statement in statements
        if statement["Effect"] == "Allow"
        for grant in grants(statement)
        if not any(applies(statement, call) and _is_use(grant, call) for call in found)
    }


def grants(statement: Statement) -> Iterator[Grant]:
    keys = _listed(statement.get("Condition", {}).get("ForAllValues:StringLike", {}).get(LEADING_KEYS, [""]))
    for action in _listed(statement["Action"]):
        for resource in _listed(statement["Resource"]):
            yield from (Grant(action, resource, key) for key in keys)


def _is_use(grant: Grant, call: Call) -> bool:
    keys = call.values(LEADING_KEYS)
    return (
        matches(grant.action.lower(), call.action.lower())
        and matches(grant.resource, call.resource)
        and (not grant.leading_key or any(matches(grant.leading_key, key) for key in keys))
    )


# ── Conditions ─────────────────────────────────────────────────────────────────────────────────────────────────────

Operator = Callable[[list[str], tuple[str, ...]], bool]


def _string_like(patterns: list[str], values: tuple[str, ...]) -> bool:
    return len(values) == 1 and any(matches(pattern, values[0]) for pattern in patterns)


def _all_like(patterns: list[str], values: tuple[str, ...]) -> bool:
    """IAM's ForAllValues is also true for a request without the key."""
    return all(any(matches(pattern, value) for pattern in patterns) for value in values)


def _null(wanted: list[str], values: tuple[str, ...]) -> bool:
    """Compare: "true" means that the request has no such key."""
    return wanted == ["false" if values else "true"]


OPERATORS: dict[str, Operator] = {"StringLike": _string_like, "ForAllValues:StringLike": _all_like, "Null": _null}


def _operator(name: str) -> Operator:
    if name not in OPERATORS:
        raise Unsupported(f"the condition operator {name}")
    return OPERATORS[name]


def _listed(value: Any) -> list[str]:
    """Return IAM's value as a list. Raises Unsupported for what is no text, such as an unresolved intrinsic."""
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in found):
        raise Unsupported(f"the value {value}")
    return found


PSEUDO = {"AWS::Partition": "aws", "AWS::Region": REGION, "AWS::AccountId": ACCOUNT_ID}
ARNS = {
    "AWS::DynamoDB::Table": "arn:aws:dynamodb:{place}:table/{name}",
    "AWS::SQS::Queue": "arn:aws:sqs:{place}:{name}",
    "AWS::S3::Bucket": "arn:aws:s3:::{name}",
    "AWS::SecretsManager::Secret": "arn:aws:secretsmanager:{place}:secret:{name}",
    "AWS::Logs::LogGroup": "arn:aws:logs:{place}:log-group:{name}:*",
    "AWS::IAM::Role": "arn:aws:iam::{account}:role/{name}",
}
REFERS_BY_ARN = {"AWS::SecretsManager::Secret"}
"""Types of which `Ref` returns the ARN; of all others it returns the name here."""


class Names:
    """`given`: what replaces a reference, by logical id, for example the URL of a queue."""

    def __init__(self, template: Template, given: Mapping[str, str] | None = None) -> None:
        self._resources, self._given = template["Resources"], given or {}

    def resolved(self, value: Any) -> Any:
        """Return the value without intrinsic functions. Raises KeyError for one that is not known here."""
        if isinstance(value, list):
            return [self.resolved(each) for each in value]
        if not isinstance(value, dict):
            return value
        if len(value) == 1 and (name := next(iter(value))) in ("Ref", "Fn::GetAtt", "Fn::Join", "Fn::Sub"):
            return self._intrinsic(name, value[name])
        return {name: self.resolved(each) for name, each in value.items()}

    def logical_id(self, kind: str, beginning: str = "") -> str:
        """Return the logical id of the only resource of a type whose id begins so."""
        found = [name for name, each in self._resources.items() if each["Type"] == kind and name.startswith(beginning)]
        (only,) = found
        return str(only)

    def arn(self, logical_id: str) -> str:
        pattern = ARNS[self._resources[logical_id]["Type"]]
        return pattern.format(place=f"{REGION}:{ACCOUNT_ID}", account=ACCOUNT_ID, name=logical_id.lower())

    def _intrinsic(self, name: str, value: Any) -> str:
        if name == "Fn::Join":
            return str(value[0]).join(self.resolved(value[1]))
        if name == "Fn::GetAtt":
            return {"Arn": self.arn}[value[1]](value[0])
        if name == "Ref":
            return self._reference(value)
        raise KeyError(name)

    def _reference(self, name: str) -> str:
        if name in PSEUDO or name in self._given:
            return {**PSEUDO, **self._given}[name]
        by_arn = self._resources[name]["Type"] in REFERS_BY_ARN
        return self.arn(name) if by_arn else name.lower()


def policies(template: Template, role: str) -> list[Statement]:
    """Return the statements of a role, without intrinsic functions."""
    names = Names(template)
    return [names.resolved(statement) for owner, statement in statements(template) if owner == role]

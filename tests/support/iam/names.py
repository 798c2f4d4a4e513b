"""Physical names for a template's resources, so that its variables and its policies can be read before a deployment.

A resource's name is its logical id in small letters. A process that gets the template's variables then names the
resources exactly as the template's policies do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.local.aws_lambda.invocation import ACCOUNT_ID, REGION
from tests.infra.templates import Template, statements
from tests.support.iam.policies import Statement

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

"""Findings of AWS's own checks (cdk-nag) that are accepted, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import Acknowledgment, Validations
from constructs import IConstruct


def acknowledge(construct: IConstruct, findings: Mapping[str, str]) -> None:
    """Accept findings on a construct: the reason of each, by the name of its rule. Any other finding fails the
    synthesis."""
    for rule, reason in findings.items():
        Validations.of(construct).acknowledge(Acknowledgment(id=rule, reason=reason))

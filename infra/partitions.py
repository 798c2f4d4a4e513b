"""The operations that each role may do on each partition of the table. dispatcher/stores/layout.py says what
each partition holds.

The letters are the store's operations on a partition: G GetItem, Q Query, P PutItem, U UpdateItem, D DeleteItem. IAM
authorizes a transaction by the operations of its parts. tests/infra/test_partitions.py compares the letters
of all roles with what the store does, and tests/infra/test_recorded_calls.py those of a role with what it did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from aws_cdk import aws_iam as iam

from infra.state import StateTable

Partitions = Mapping[str, str]
"""The letters of each pattern of partition keys."""
OPERATIONS = {"G": "GetItem", "Q": "Query", "P": "PutItem", "U": "UpdateItem", "D": "DeleteItem"}
_LEADING_KEYS = "dynamodb:LeadingKeys"
LOGS: Partitions = {"LOG#{pool}": "QP", "SNAP#{pool}": "QP", "STATE#{pool}": "P", "USAGE#*": "P", "MAIL#*": "QP"}
"""A process that may decide follows and writes the log, its snapshots and projections, and mailboxes."""
STRIPES: Partitions = {"LOG#{pool}#*": "QP", "SNAP#{pool}#striped": "QP"}
"""A log may become striped at any time and stays so. So these are granted beside LOGS, whatever the setting is."""
FORMER: Partitions = {"LOG#{pool}": "Q", "SNAP#{pool}": "Q"}
"""A gate process reads whether calls are left in shards that its pool had before."""
ANSWERS: Partitions = {"INV#*": "GU"}
"""A process that writes the log also stores the answers of durable calls that end."""
ACCEPTED: Partitions = {"TENANT#*": "G", "KEY#*": "G", "CALL#*": "GP", "INV#*": "P"}
"""A process that takes requests of tenants reads tenants and keys, and writes calls."""
EXECUTED: Partitions = {"TENANT#*": "G"}
"""Executors and the sweep read whether the tenant of a call still exists."""
HTTP: Partitions = {"RESP#*": "QPU", "USAGE#*": "Q"}
"""Fronts use these partitions beside ACCEPTED, for kept responses and GET /v1/usage."""
BATCHES: Partitions = {"FILE#*": "GQP", "BATCH#*": "GQP", "OPEN#*": "QP"}
"""Fronts on Fargate use these partitions. A front in Lambda has no batches."""
RESULTS: Partitions = {"TENANT#*": "G", "KEY#*": "G", "CALL#*": "G", "INV#*": "G", "LOG#*": "Q", "SNAP#*": "Q"}
ADMINISTERED: Partitions = {"TENANT#*": "GQPD", "KEY#*": "GPD", "TENANTS": "QPD", "AUDIT#*": "QP"}
"""No role deletes an audit record."""
OPERATED: Partitions = {"LOG#*": "Q", "SNAP#*": "Q", "USAGE#*": "Q", "AUDIT#*": "Q"}
"""The operators' partitions, which contain no prompts, answers, tenants' configuration or keys."""


def of_pool(partitions: Partitions, pool: str) -> Partitions:
    """Return the partitions of one pool, or of all with `*`."""
    return {key.format(pool=pool): letters for key, letters in partitions.items()}


def of_shards(partitions: Partitions, pool: str) -> Partitions:
    """Return the partitions of the further shards of one pool (dispatcher/model/shards.py)."""
    return {key.format(pool=f"{pool}~*"): letters for key, letters in partitions.items() if "{pool}" in key}


def statements(state: StateTable, *granted: Partitions) -> Iterator[iam.PolicyStatement]:
    """Yield the statements that allow all of this: one for each group of partitions with the same operations."""
    letters: dict[str, set[str]] = defaultdict(set)
    for partitions in granted:
        for key, own in partitions.items():
            letters[key].update(own)
    keys: dict[str, list[str]] = defaultdict(list)
    for key, own_letters in letters.items():
        keys["".join(letter for letter in OPERATIONS if letter in own_letters)].append(key)
    for together, patterns in keys.items():
        yield iam.PolicyStatement(
            actions=[f"dynamodb:{OPERATIONS[letter]}" for letter in together],
            resources=[state.table.table_arn],
            conditions=_only(patterns),
        )


def _only(patterns: list[str]) -> dict[str, dict[str, list[str] | str]]:
    """Return the condition that a request names partition keys, and that all of them have these patterns.

    `ForAllValues` alone also holds for a request that names no key.
    """
    return {"ForAllValues:StringLike": {_LEADING_KEYS: patterns}, "Null": {_LEADING_KEYS: "false"}}

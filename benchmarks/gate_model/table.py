"""A model of a DynamoDB table: items, capacity units, a limit for each partition, and stalls. No time passes here.

It has the operations and conditions that the log, the mailboxes, the snapshots and the read models use, with botocore's
names, arguments and errors, so that the production store runs on it. Capacity is counted as DynamoDB bills it: a write
by the larger of the old and the new item, also if its condition refuses it; a strongly consistent read by 4 KB.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from math import ceil
from typing import Any

from botocore.exceptions import ClientError

from dispatcher.ports import Clock

WRITE_UNITS_PER_S = 1_000.0
READ_UNITS_PER_S = 3_000.0
PAGE_BYTES = 1_000_000

Encoded = dict[str, dict[str, Any]]


@dataclass
class Bucket:
    """Tokens of a partition. One request may overdraw them, as in DynamoDB; the next ones are refused."""

    per_s: float
    tokens: float
    at: float

    def take(self, units: float, now: float) -> bool:
        self.tokens = min(self.per_s, self.tokens + (now - self.at) * self.per_s)
        self.at = now
        if self.tokens < 0:
            return False
        self.tokens -= units
        return True


@dataclass
class Partition:
    items: dict[str, Encoded] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)


class ModelledTable:
    """The methods named as botocore's are single steps. `counts`: requests by "operation partition"."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._partitions: dict[str, Partition] = {}
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self.write_units_per_s = WRITE_UNITS_PER_S
        self.counts: Counter[str] = Counter()
        self.write_units: Counter[str] = Counter()
        self.read_units: Counter[str] = Counter()
        """Units by the kind of the partition: LOG, MAIL, SNAP, USAGE, STATE."""
        self.refused = 0
        """Puts to the log that found their position occupied."""
        self.throttled = 0

    def put_item(self, **request: Any) -> dict[str, Any]:
        item: Encoded = request["Item"]
        pk, sk = item["pk"]["S"], item["sk"]["S"]
        partition = self._partitions.setdefault(pk, Partition())
        old = partition.items.get(sk)
        self._use("put", pk, ceil(max(_size(item), _size(old or {})) / 1024), self.write_units, self.write_units_per_s)
        if old is not None and not _allows(request, old):
            self.refused += pk.startswith("LOG#")
            raise _error("ConditionalCheckFailedException", Item=old)
        if old is None:
            insort(partition.order, sk)
        partition.items[sk] = item
        return {}

    def get_item(self, **request: Any) -> dict[str, Any]:
        pk, sk = request["Key"]["pk"]["S"], request["Key"]["sk"]["S"]
        found = self._partitions.get(pk, Partition()).items.get(sk)
        self._use("get", pk, max(1, ceil(_size(found or {}) / 4096)), self.read_units, READ_UNITS_PER_S)
        return {} if found is None else {"Item": found}

    def query(self, **request: Any) -> dict[str, Any]:
        values = request["ExpressionAttributeValues"]
        pk = values[":pk"]["S"]
        partition = self._partitions.get(pk, Partition())
        low, high = _range(partition.order, request["KeyConditionExpression"], values)
        keys = partition.order[low:high][: request.get("Limit")] if request.get("ScanIndexForward", True) else (
            partition.order[low:high][::-1][: request.get("Limit")]
        )  # fmt: skip
        page, size = [], 0
        for sk in keys:
            size += _size(partition.items[sk])
            page.append(partition.items[sk])
            if size > PAGE_BYTES:
                break
        self._use("query", pk, max(1, ceil(size / 4096)), self.read_units, READ_UNITS_PER_S)
        reply: dict[str, Any] = {"Items": page}
        if len(page) < len(keys):
            reply["LastEvaluatedKey"] = {"pk": page[-1]["pk"], "sk": page[-1]["sk"]}
        return reply

    def _use(self, operation: str, pk: str, units: float, counter: Counter[str], per_s: float) -> None:
        kind, now = pk.partition("#")[0], self._clock.monotonic()
        self.counts[f"{operation} {kind}"] += 1
        direction = "write" if counter is self.write_units else "read"
        bucket = self._buckets.setdefault((direction, pk), Bucket(per_s, per_s, now))
        bucket.per_s = per_s
        if not bucket.take(units, now):
            self.throttled += 1
            raise _error("ProvisionedThroughputExceededException")
        counter[kind] += int(units)


def _range(order: list[str], condition: str, values: dict[str, Any]) -> tuple[int, int]:
    if "<" in condition:
        return 0, bisect_left(order, values[":from"]["S"])
    if ":from" in values:
        return bisect_left(order, values[":from"]["S"]), len(order)
    if ":prefix" in values:
        prefix = values[":prefix"]["S"]
        return bisect_left(order, prefix), bisect_left(order, prefix + "\U0010ffff")
    return 0, len(order)


def _allows(request: dict[str, Any], old: Encoded) -> bool:
    """Return whether the condition allows to replace an item: none, or one of `attribute_not_exists(pk) OR #a < :a`."""
    condition = request.get("ConditionExpression", "")
    if not condition:
        return True
    for comparison in condition.split(" OR ")[1:]:
        name, operator, value = comparison.split()
        stands = Decimal(old[request["ExpressionAttributeNames"][name]]["N"])
        given = Decimal(request["ExpressionAttributeValues"][value]["N"])
        if stands < given or (operator == "<=" and stands == given):
            return True
    return False


def _size(item: Encoded) -> int:
    return sum(len(name) + _value_size(value) for name, value in item.items())


def _value_size(value: dict[str, Any]) -> int:
    ((kind, content),) = value.items()
    if kind == "L":
        return 3 + sum(1 + _value_size(each) for each in content)
    if kind == "M":
        return 3 + sum(1 + len(name) + _value_size(each) for name, each in content.items())
    if kind == "N":
        return len(content) // 2 + 2
    return 1 if kind == "BOOL" else len(content)


def _error(code: str, **more: Any) -> ClientError:
    response: Any = {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": 400}, **more}
    return ClientError(response, "Modelled")

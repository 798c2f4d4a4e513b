"""Builds one item's conditional write: conditions, assignments, and the placeholders that DynamoDB wants for both.

Every name goes through a placeholder, so that no attribute can collide with one of DynamoDB's 573 reserved words.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from math import inf
from typing import Any

from dispatcher.old_stores.dynamodb.attributes import Encoded, encode, encode_item
from dispatcher.old_stores.numbers import ZERO, exact, placed
from dispatcher.policies.clocks import Step


class Statement:
    """Conditions and assignments on the item of one key. A failed condition reports the item as it is."""

    def __init__(self, key: Mapping[str, str]) -> None:
        self.key = dict(key)
        self._names: dict[str, str] = {}
        self._values: Encoded = {}
        self._conditions: list[str] = []
        self._sets: list[str] = []
        self._removes: list[str] = []

    # ── Operands and clauses ───────────────────────────────────────────────────────────────────────────────────────

    def name(self, path: str) -> str:
        """A path such as `slots.3.execution`, by placeholders."""
        parts = {f"#n_{part}": part for part in path.split(".")}
        self._names.update(parts)
        return ".".join(parts)

    def value(self, value: Any) -> str:
        encoded = encode(value)
        for placeholder, known in self._values.items():
            if known == encoded:
                return placeholder
        placeholder = f":v{len(self._values)}"
        self._values[placeholder] = encoded
        return placeholder

    def compares(self, path: str, operator: str, value: Any) -> str:
        return f"{self.name(path)} {operator} {self.value(value)}"

    def absent(self, path: str) -> str:
        return f"attribute_not_exists({self.name(path)})"

    def require(self, *alternatives: str) -> None:
        """One clause of the condition: at least one of the alternatives holds."""
        clause = " OR ".join(alternatives)
        self._conditions.append(f"({clause})" if len(alternatives) > 1 else clause)  # DynamoDB refuses needless ones

    # ── Assignments ────────────────────────────────────────────────────────────────────────────────────────────────

    def set(self, path: str, value: Any) -> None:
        """None removes the attribute."""
        if value is None:
            self.remove(path)
        else:
            self._sets.append(f"{self.name(path)} = {self.value(value)}")

    def set_all(self, attributes: Mapping[str, Any]) -> None:
        for name, value in attributes.items():
            self.set(name, value)

    def remove(self, path: str) -> None:
        self._removes.append(self.name(path))

    def add(self, path: str, delta: Decimal | int) -> None:
        """Counts from zero where the attribute is absent. Additions commute: nothing is read first."""
        name = self.name(path)
        self._sets.append(f"{name} = if_not_exists({name}, {self.value(ZERO)}) + {self.value(delta)}")

    def move(self, clock: str, step: Step, place: Decimal) -> None:
        """A clock's step (policies/clocks.py) as condition and assignment; a clock that is absent reads 0."""
        bounds = []
        if step.low > -inf:
            bounds.append(self.compares(clock, ">=", exact(step.low)))
        if step.high < inf:
            bounds.append(self.compares(clock, "<=", exact(step.high)))
        if bounds:
            within = " AND ".join(bounds)  # binds tighter than the OR
            self.require(*([self.absent(clock)] if step.low <= 0.0 <= step.high else []), within)
        delta = placed(step.delta, place)
        if step.base is None:
            self.add(clock, delta)
        else:
            self.set(clock, placed(step.base, place) + delta)

    # ── Requests ───────────────────────────────────────────────────────────────────────────────────────────────────

    def as_update(self, table: str) -> dict[str, Any]:
        assignments = ["SET " + ", ".join(self._sets)] if self._sets else []
        if self._removes:
            assignments.append("REMOVE " + ", ".join(self._removes))
        return {**self._request(table), "Key": encode_item(self.key), "UpdateExpression": " ".join(assignments)}

    def as_put(self, table: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._request(table), "Item": encode_item({**self.key, **attributes})}

    def as_delete(self, table: str) -> dict[str, Any]:
        return {**self._request(table), "Key": encode_item(self.key)}

    def _request(self, table: str) -> dict[str, Any]:
        request: dict[str, Any] = {"TableName": table, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        if self._conditions:
            request["ConditionExpression"] = " AND ".join(self._conditions)
        if self._names:
            request["ExpressionAttributeNames"] = self._names
        if self._values:
            request["ExpressionAttributeValues"] = self._values
        return request

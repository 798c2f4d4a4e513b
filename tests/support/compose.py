"""Reads a compose file as Docker Compose does: merge keys, then variables in strings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

VARIABLE = re.compile(r"\$\{(?P<name>[A-Z_]+)(?:(?P<kind>:-|:\?)(?P<rest>[^}]*))?\}")


class MissingVariable(Exception):
    """A variable that the file needs has no value. The message is the file's own."""


def read_compose(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the file's services and volumes. Raises MissingVariable."""
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    plain = {name: value for name, value in found.items() if not name.startswith("x-")}
    replaced: dict[str, Any] = _replaced(plain, variables)
    return replaced


def _replaced(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_replaced(each, variables) for each in value]
    if isinstance(value, dict):
        return {name: _replaced(each, variables) for name, each in value.items()}
    return VARIABLE.sub(lambda match: _value(match, variables), value) if isinstance(value, str) else value


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    given = variables.get(match["name"], "")
    if given or match["kind"] is None:
        return given
    if match["kind"] == ":?":
        raise MissingVariable(f"{match['name']}: {match['rest']}")
    return match["rest"]

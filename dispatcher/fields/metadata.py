"""Reads the request's `metadata`: the names of its application, interaction, stage and SLO class. Pure.

headgate reads the keys with the prefix `headgate_` and ignores all others. A client cannot set the tenant, tier,
weight, deadline or cache salt.
"""

from __future__ import annotations

import re
from typing import Any, TypedDict

from dispatcher.fields.reading import Reading, invalid
from dispatcher.fields.shapes.scalars import Text, Whole

PREFIX = "headgate_"
NAMES = ("headgate_application", "headgate_stage", "headgate_interaction", "headgate_slo_class")
STAGE_MAX = 1000
_LABEL = Text(64, 1, r"[A-Za-z0-9._:-]+", "letters, digits or any of . _ : -")
_STAGE = Whole(0, STAGE_MAX)


class RequestPart(TypedDict, total=False):
    """What a request is a part of, by the names of the attributes of Request."""

    app: str
    stage: int
    interaction: str
    slo_class: str


def part_of(metadata: Any, reading: Reading) -> RequestPart:
    """Return what `metadata` names. Values are texts, as in OpenAI's API; a stage may also be a number.

    Raises InvalidRequest.
    """
    part = RequestPart()
    if metadata is None:
        return part
    if not isinstance(metadata, dict):
        raise invalid("metadata", "an object of strings is required")
    for name, value in metadata.items():
        at = f"metadata.{name}"
        if not name.startswith(PREFIX):
            continue
        if name not in NAMES:
            Reading().unknown(at)
        elif value is None:
            continue
        elif name == "headgate_application":
            part["app"] = _LABEL.read(value, at, reading)
        elif name == "headgate_stage":
            part["stage"] = _STAGE.read(_number(value), at, reading)
        elif name == "headgate_slo_class":
            part["slo_class"] = _LABEL.read(value, at, reading)
        else:
            part["interaction"] = _LABEL.read(value, at, reading)
    return part


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,4}", value) else value

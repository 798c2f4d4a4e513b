"""A strict reader of CloudWatch's embedded metric format (EMF): it raises where CloudWatch would drop a metric.

Source: Amazon CloudWatch User Guide, "Specification: Embedded metric format" and its JSON schema.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

UNITS = {
    *("Seconds", "Microseconds", "Milliseconds", "Percent", "Count", "None"),
    *(f"{size}{unit}" for size in ("", "Kilo", "Mega", "Giga", "Tera") for unit in ("bytes", "bits")),
    *("Bytes", "Bits", "Count/Second"),
}
NAME = re.compile(r"[\x20-\x7e]*\S[\x20-\x7e]*")
LINE_BYTES_MAX = 256 * 1024
DIMENSIONS_MAX, METRICS_MAX, VALUES_MAX = 30, 100, 100
LARGEST = 2.0**360
"""CloudWatch refuses values beyond it, NaN and infinity."""


@dataclass(frozen=True)
class Series:
    """One metric with its values. `dimensions`: sorted pairs of name and value."""

    namespace: str
    name: str
    dimensions: tuple[tuple[str, str], ...]
    unit: str
    values: tuple[float, ...]


def series_in(text: str) -> list[Series]:
    """Return the metrics of all EMF lines of an output. Other lines are ignored, as CloudWatch does."""
    return [series for line in text.splitlines() if '"_aws"' in line for series in parse(line)]


def parse(line: str) -> list[Series]:
    """Return the metrics of one line. Raises AssertionError or ValueError if CloudWatch would drop one."""
    assert len(line.encode()) <= LINE_BYTES_MAX
    root = json.loads(line, parse_constant=_refuse)
    assert isinstance(root, dict)
    metadata = root["_aws"]
    assert isinstance(metadata["Timestamp"], int)
    assert metadata["CloudWatchMetrics"]
    return [series for directive in metadata["CloudWatchMetrics"] for series in _series(directive, root)]


def _series(directive: dict[str, Any], root: dict[str, Any]) -> Iterator[Series]:
    namespace = _named(directive["Namespace"], 256)
    assert 0 < len(directive["Metrics"]) <= METRICS_MAX
    assert directive["Dimensions"]
    for names in directive["Dimensions"]:
        assert len(names) <= DIMENSIONS_MAX
        dimensions = tuple(sorted((_named(name, 250), _named(root[name], 1024)) for name in names))
        for metric in directive["Metrics"]:
            assert set(metric) <= {"Name", "Unit", "StorageResolution"}
            assert metric["Unit"] in UNITS, metric["Unit"]
            name = _named(metric["Name"], 1024)
            yield Series(namespace, name, dimensions, metric["Unit"], _values(root[name]))


def _named(text: Any, chars_max: int) -> str:
    assert isinstance(text, str)
    assert len(text) <= chars_max
    assert NAME.fullmatch(text), text
    return text


def _values(found: Any) -> tuple[float, ...]:
    values = found if isinstance(found, list) else [found]
    assert 0 < len(values) <= VALUES_MAX
    for value in values:
        assert isinstance(value, int | float)
        assert not isinstance(value, bool)
        assert math.isfinite(value)
        assert abs(value) <= LARGEST
    return tuple(float(value) for value in values)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")

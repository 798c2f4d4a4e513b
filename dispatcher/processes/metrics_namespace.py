"""CloudWatch's namespace of headgate's own metrics. A stack uses its own name, so that two stacks do not mix theirs."""

from __future__ import annotations

import os

SERVICE = "headgate"
"""The dimension `service` of every metric."""


def metrics_namespace() -> str:
    """Return the namespace that Powertools' own variable names; `headgate` without it."""
    return os.environ.get("POWERTOOLS_METRICS_NAMESPACE") or SERVICE

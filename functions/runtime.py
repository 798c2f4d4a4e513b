"""The gate of a Lambda sandbox: made at the first call, and kept while the sandbox lives."""

from __future__ import annotations

from functools import cache

from dispatcher.processes.sandbox import Runtime


@cache
def runtime() -> Runtime:
    return Runtime()

"""What one check found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckResult(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """`seen`: what was found, in words. `advice`: what to do; empty if nothing is to be done."""

    check: str
    result: CheckResult
    seen: str
    advice: str = ""


def ok(check: str, seen: str) -> Finding:
    return Finding(check, CheckResult.OK, seen)


def warning(check: str, seen: str, advice: str) -> Finding:
    return Finding(check, CheckResult.WARNING, seen, advice)


def failed(check: str, seen: str, advice: str) -> Finding:
    return Finding(check, CheckResult.FAILED, seen, advice)


def skipped(check: str, seen: str) -> Finding:
    return Finding(check, CheckResult.SKIPPED, seen)

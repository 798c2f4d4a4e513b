"""What a child's output says: the object that it announces itself with, and the sentence with which it ends."""

from __future__ import annotations

import json
from typing import Any

REASON_CHARS_MAX = 300
SERIOUS = ("WARNING", "ERROR", "CRITICAL")


def last_sentence(output: str) -> str:
    """Return the last line that says something, with its control characters as spaces; empty if no line does.

    Of a line of a log in JSON, it is the message, if it is a warning or worse. The frames of a traceback are indented.
    """
    for line in reversed(output.splitlines()):
        logged = json_object(line.encode())
        if logged is not None:
            line = str(logged.get("message", "")) if logged.get("level") in SERIOUS else ""
        elif line[:1].isspace():
            continue
        if sentence := " ".join("".join(each if each.isprintable() else " " for each in line).split()):
            return sentence[:REASON_CHARS_MAX]
    return ""


def json_object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None

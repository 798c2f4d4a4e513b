"""Handlers that the tests of the local Lambda run in real processes."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import boto3

loaded = {"count": 0}


def echo(event: Any, context: Any) -> dict[str, Any]:
    loaded["count"] += 1
    return {
        "event": event,
        "request_id": context.aws_request_id,
        "arn": context.invoked_function_arn,
        "function": context.function_name,
        "remaining_ms": context.get_remaining_time_in_millis(),
        "pid": os.getpid(),
        "calls": loaded["count"],
        "client_context": context.client_context and context.client_context.custom,
        "env": {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "TEST_"))},
    }


def fail(event: Any, context: Any) -> None:
    raise ValueError(f"no {event['what']} here")


def hang(event: Any, context: Any) -> None:
    threading.Event().wait()


def leave(event: Any, context: Any) -> None:
    os._exit(event["status"])


def wait(event: Any, context: Any) -> str:
    """Busy until the test writes to a pipe."""
    Path(event["started"]).write_text("yes")
    Path(event["until"]).read_text()
    return "done"


def fail_twice(event: Any, context: Any) -> None:
    """Counts its attempts in a file; the third one works."""
    attempts = Path(event["attempts"])
    with attempts.open("a") as file:
        file.write(context.aws_request_id + "\n")
    if len(attempts.read_text().splitlines()) < 3:
        raise RuntimeError("again")


def big(event: Any, context: Any) -> str:
    return "x" * (7 * 1024 * 1024)


def note(event: Any, context: Any) -> None:
    """Hands the messages' bodies to the test, through a pipe."""
    Path(os.environ["TEST_FILE"]).write_text("".join(record["body"] for record in event["Records"]))


def count_tables(event: Any, context: Any) -> list[str]:
    return boto3.client("dynamodb").list_tables()["TableNames"]

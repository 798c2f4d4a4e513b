"""Rate schedules as in EventBridge: a function is invoked at a fixed interval."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from headgate.local.aws_lambda.invocation import ACCOUNT_ID, REGION


@dataclass(frozen=True)
class Schedule:
    """A function and the seconds between two events for it; EventBridge allows whole minutes only."""

    function_name: str
    every_s: float


def scheduled_event(schedule: Schedule, event_id: str, now: float) -> bytes:
    """Make the event that EventBridge sends for a rule. `now`: Unix seconds."""
    return json.dumps(
        {
            "version": "0",
            "id": event_id,
            "detail-type": "Scheduled Event",
            "source": "aws.events",
            "account": ACCOUNT_ID,
            "time": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "region": REGION,
            "resources": [f"arn:aws:events:{REGION}:{ACCOUNT_ID}:rule/{schedule.function_name}"],
            "detail": {},
        }
    ).encode()


async def tick(
    schedule: Schedule,
    fire: Callable[[bytes], Awaitable[object]],
    *,
    sleep: Callable[[float], Awaitable[None]],
    now: Callable[[], float],
    new_id: Callable[[], str],
) -> None:
    """Send events until cancelled. Each waits for the end of the one before, so that they do not pile up."""
    while True:
        await sleep(schedule.every_s)
        await fire(scheduled_event(schedule, new_id(), now()))

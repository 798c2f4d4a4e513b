"""Finds the last try of an idempotency key.

If the call of a key ended with a retryable error, a repetition of the key is stored under a new key: the caller's key,
`~`, and the number of the try. A caller's key cannot contain `~`. The numbers have no gap, so few reads find the last.
"""

from __future__ import annotations

from dispatcher.model.kept import Invocation
from dispatcher.operations.calls.results import is_retryable
from dispatcher.operations.context import Context
from dispatcher.operations.store_patience import in_time

TRIES_PER_KEY_MAX = 4096
"""The most tries of one key while its answers are stored. Further repetitions get the last error again."""


def numbered(key: str, number: int) -> str:
    return f"{key}~{number}" if number else key


async def latest(context: Context, tenant: str, key: str) -> Invocation | None:
    """Return the last invocation with a caller's key, or None."""
    return (await last_try(context, tenant, key))[1]


async def next_number(context: Context, tenant: str, key: str) -> int:
    """Return the number for a repetition of the key: a new one if its last try may be tried again, otherwise that of
    its last try."""
    number, last = await last_try(context, tenant, key)
    return number + 1 if may_try_again(last) and number + 1 < TRIES_PER_KEY_MAX else number


async def last_try(context: Context, tenant: str, key: str) -> tuple[int, Invocation | None]:
    """Return the number of a key's last try, and its invocation. O(log of the number) reads."""
    found = await in_time(context.store.find(tenant, key))
    low, high, step = 0, TRIES_PER_KEY_MAX, 1
    while may_try_again(found) and low + 1 < high:
        number = low + step if low + step < high else (low + high) // 2
        item = await in_time(context.store.find(tenant, numbered(key, number)))
        if item is None:
            high, step = number, high
        else:
            low, found, step = number, item, 2 * step
    return low, found


def may_try_again(item: Invocation | None) -> bool:
    return item is not None and item.answer is not None and is_retryable(item.answer)

"""Requests to DynamoDB: in threads, retried within a budget, and classified by their known effect.

A write has one of four ends:
- applied, and the reply says so;
- refused by a condition: `ConditionFailed`, with the items as they are;
- refused before anything was applied (a transaction in conflict, throttling): tried again after a jittered pause;
- *perhaps applied* (a timeout, a broken connection, a 5xx): tried again with the same request token, which DynamoDB
  answers from memory for ten minutes; should the retry fail its condition because the first try had been applied after
  all, the caller finds its own nonce in the item reported, and knows its own write.
Once the budget is spent: StoreUnavailable. Closed, not open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as NotConnected

from dispatcher.model.errors import StoreUnavailable
from dispatcher.old_ports import Clock
from dispatcher.old_stores.dynamodb.attributes import Item, decode_item

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

TRIES_MAX = 10
PAUSE_FIRST_S = 0.02
PAUSE_MAX_S = 0.5
"""Ten tries pause for 1.5 s on average, 3.1 s at most, between them."""
PENDING_PER_THREAD_MAX = 64
"""Requests waiting for a thread beyond this are refused at once: a store that is slow must not gather a crowd."""

CONDITION_FAILED = "ConditionalCheckFailed"
_NOT_APPLIED = {
    "TransactionConflict",
    "TransactionConflictException",
    "ThrottlingError",
    "ThrottlingException",
    "ProvisionedThroughputExceeded",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "LimitExceededException",
}
_PERHAPS_APPLIED = {"TransactionInProgressException", "InternalServerError", "ServiceUnavailable", "InternalFailure"}


@dataclass
class ConditionFailed(Exception):
    """DynamoDB refused the write. `old` holds the present item for each failed condition."""

    failed: tuple[bool, ...]
    """By statement, in the order of the transaction."""
    old: tuple[Item | None, ...]
    perhaps_applied: bool
    """An earlier try of the same write may have been applied before this answer."""


class _Retry(Exception):
    def __init__(self, *, perhaps_applied: bool) -> None:
        self.perhaps_applied = perhaps_applied


class Requests:
    """One client, shared by all parts of a store."""

    def __init__(self, client: DynamoDBClient, table: str, clock: Clock, random: Random, threads: int) -> None:
        self.table = table
        self.clock = clock
        self._client = client
        self._random = random
        self._threads = ThreadPoolExecutor(threads, "headgate-dynamodb")
        self._pending, self._pending_max = 0, threads * PENDING_PER_THREAD_MAX

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def nonce(self) -> str:
        """Names one write: 128 random bits."""
        return f"{self._random.getrandbits(128):032x}"

    def pick(self, count: int) -> int:
        """A random number below `count`."""
        return self._random.randrange(count)

    async def read(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return await self._call(operation, arguments)

    async def write(self, operation: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """One item's conditional write. Raises ConditionFailed, StoreUnavailable."""
        return await self._call(operation, dict(arguments))

    async def transact(self, statements: Sequence[Mapping[str, Any]], token: str) -> None:
        """Several items, all or none: {"Put" | "Update" | "Delete": ...}. Raises ConditionFailed, StoreUnavailable."""
        await self._call("transact_write_items", {"TransactItems": list(statements)}, token=token)

    async def _call(self, operation: str, arguments: dict[str, Any], token: str | None = None) -> dict[str, Any]:
        perhaps_applied = False
        for number in range(TRIES_MAX):
            if number:
                await self.clock.sleep(self._pause_s(number))
            if token is not None:
                arguments["ClientRequestToken"] = token
            try:
                return await self._once(partial(_answer, getattr(self._client, operation), arguments))
            except ConditionFailed as refused:
                refused.perhaps_applied = perhaps_applied
                raise
            except _Retry as retry:
                perhaps_applied = perhaps_applied or retry.perhaps_applied
                if token is not None and not retry.perhaps_applied:
                    token = self.nonce()  # the token of a transaction that DynamoDB has already answered is spent
        raise StoreUnavailable()

    async def _once(self, call: partial[dict[str, Any]]) -> dict[str, Any]:
        if self._pending >= self._pending_max:
            raise StoreUnavailable("Too many requests are waiting for the tenant store.")
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        finally:
            self._pending -= 1

    def _pause_s(self, number: int) -> float:
        """Exponential, with full jitter: those that collided do not collide again in step."""
        return self._random.uniform(0.0, min(PAUSE_MAX_S, PAUSE_FIRST_S * 2**number))


def _answer(method: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The reply. Raises ConditionFailed, _Retry or StoreUnavailable: nothing of botocore leaves this module."""
    try:
        return dict(method(**arguments))
    except ClientError as error:
        raise _meaning(error) from error
    except NotConnected as error:
        raise _Retry(perhaps_applied=False) from error
    except HTTPClientError as error:  # it broke, or nothing came back in time
        raise _Retry(perhaps_applied=True) from error
    except BotoCoreError as error:
        raise StoreUnavailable(f"The tenant store cannot be used: {type(error).__name__}.") from error


def _meaning(error: ClientError) -> Exception:
    code = error.response["Error"]["Code"]
    if code == "ConditionalCheckFailedException":
        return ConditionFailed((True,), (_old(error.response),), perhaps_applied=False)
    if code == "TransactionCanceledException":
        return _cancellation(error.response)
    if code in _NOT_APPLIED:
        return _Retry(perhaps_applied=False)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _PERHAPS_APPLIED or status >= 500:
        return _Retry(perhaps_applied=True)
    logging.getLogger("headgate.store").error("refused: %s", error.response["Error"].get("Message", "")[:300])
    return StoreUnavailable(f"The tenant store refused a request: {code}.")


def _cancellation(response: Any) -> Exception:
    reasons: Sequence[Mapping[str, Any]] = response.get("CancellationReasons", ())
    codes = [reason.get("Code") for reason in reasons]
    if CONDITION_FAILED in codes:
        failed = tuple(code == CONDITION_FAILED for code in codes)
        return ConditionFailed(failed, tuple(_old(reason) for reason in reasons), perhaps_applied=False)
    if any(code in _NOT_APPLIED for code in codes):
        return _Retry(perhaps_applied=False)
    return StoreUnavailable(f"The tenant store refused a transaction: {codes}.")


def _old(answer: Mapping[str, Any]) -> Item | None:
    return decode_item(answer["Item"]) if answer.get("Item") else None

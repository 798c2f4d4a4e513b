"""Sends requests to DynamoDB: in threads, with retries within a budget. The result says whether a write was applied.

A write has one of three results:
- It is applied, and the reply confirms it.
- Its condition fails: ConditionFailed, with the present items.
- It fails otherwise (throttled, a conflict of transactions, a timeout, a broken connection, a 5xx). Then it is tried
  again after a jittered pause. The first try may have been applied. If so, the condition of the second try fails, and
  the caller finds its own bytes or its own nonce in the present item. After the budget, StoreUnavailable is raised.

`Reads` reads with strong consistency, and leaves expired items out: DynamoDB deletes them up to days late. Values are
encoded for DynamoDB's low-level API. Numbers are sent as decimals and keep their exact values.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from math import isfinite
from random import Random
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as NotConnected

from dispatcher.model.errors import StoreUnavailable
from dispatcher.ports import Clock
from dispatcher.stores.dynamodb.server_time import ServerTime, times
from dispatcher.stores.table import PARTITION, SORT, ConditionFailed, Item, Key, is_live

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


TRIES_MAX = 10
_PAUSE_FIRST_S = 0.02
_PAUSE_MAX_S = 0.5
"""Ten tries pause for 1.5 s on average, 3.1 s at most, between them."""
BUDGET_S = 6.0
"""No further try begins after this time, even if there were fewer than TRIES_MAX."""
PENDING_PER_THREAD_MAX = 64
"""The most requests that wait for a thread. More are refused at once, so that a slow store causes no long queue."""
THROTTLED_S = 5.0
"""The table counts as throttled for this time after it has throttled a request."""

_CONDITION_FAILED = "ConditionalCheckFailed"
_CONFLICT = {"TransactionConflict", "TransactionConflictException", "TransactionInProgressException"}
_THROTTLED = {
    "ThrottlingError",
    "ThrottlingException",
    "ProvisionedThroughputExceeded",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "LimitExceededException",
}
_UNKNOWN = {"InternalServerError", "ServiceUnavailable", "InternalFailure"}


class _Retry(Exception):
    def __init__(self, *, throttled: bool = False, spent: bool = False) -> None:
        self.throttled = throttled
        self.spent = spent
        """True if DynamoDB has given a final answer to this transaction. Then its token must not be used again."""


class Requests:
    """One client, shared by all parts of a store."""

    def __init__(
        self, client: DynamoDBClient, table: str, clock: Clock, random: Random, threads: int, server_time: ServerTime
    ) -> None:
        self.table, self.clock, self.server_time = table, clock, server_time
        self._client = client
        self._random = random
        self._threads = ThreadPoolExecutor(threads, "headgate-dynamodb")
        self._pending, self._pending_max = 0, threads * PENDING_PER_THREAD_MAX
        self._throttled_until = float("-inf")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def is_throttled(self) -> bool:
        return self.clock.monotonic() < self._throttled_until

    def nonce(self) -> str:
        """Return 128 random bits, hexadecimal, which name one write."""
        return f"{self._random.getrandbits(128):032x}"

    async def send(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Send one request about the table and return the reply. Raises ConditionFailed, StoreUnavailable."""
        return await self._call(operation, {"TableName": self.table, **arguments})

    async def put(self, item: Mapping[str, Any], condition: str = "", **more: Any) -> None:
        """Put one encoded item under a condition. Raises ConditionFailed with the present item, StoreUnavailable."""
        if condition:
            more |= {"ConditionExpression": condition, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        await self.send("put_item", Item=item, **more)

    async def transact(self, statements: Sequence[Mapping[str, Any]], token: str) -> None:
        """Write several items, all or none: {"Put" | "Delete": …}. Raises ConditionFailed, StoreUnavailable."""
        await self._call("transact_write_items", {"TransactItems": list(statements)}, token)

    async def _call(self, operation: str, arguments: dict[str, Any], token: str = "") -> dict[str, Any]:
        until = self.clock.monotonic() + BUDGET_S
        cause: BaseException | None = None
        for number in range(TRIES_MAX):
            if number:
                await self.clock.sleep(self._pause_s(number))
            if token:
                arguments["ClientRequestToken"] = token
            try:
                return await self._once(partial(self._answer, getattr(self._client, operation), arguments, until))
            except _Retry as retry:
                cause = retry.__cause__
                token = self.nonce() if token and retry.spent else token
                if retry.throttled:
                    self._throttled_until = self.clock.monotonic() + THROTTLED_S
            if self.clock.monotonic() > until:
                break
        raise StoreUnavailable() from cause

    async def _once(self, call: partial[dict[str, Any]]) -> dict[str, Any]:
        if self._pending >= self._pending_max:
            raise StoreUnavailable("Too many requests are waiting for the tenant store.")
        try:
            future = asyncio.get_running_loop().run_in_executor(self._threads, call)
        except RuntimeError:
            raise StoreUnavailable("The tenant store is closed.") from None
        self._pending += 1
        future.add_done_callback(self._on_done)
        return await asyncio.shield(future)  # a thread goes on when its caller is cancelled

    def _on_done(self, future: asyncio.Future[dict[str, Any]]) -> None:
        self._pending -= 1
        if not future.cancelled():
            future.exception()  # its caller may be gone

    def _pause_s(self, number: int) -> float:
        """Return an exponential pause with full jitter, so that requests that collided do not collide again."""
        return self._random.uniform(0.0, min(_PAUSE_MAX_S, _PAUSE_FIRST_S * 2**number))

    def _answer(self, method: Any, arguments: dict[str, Any], until: float) -> dict[str, Any]:
        """Send the request and return the reply. Raises only ConditionFailed, _Retry or StoreUnavailable."""
        if self.clock.monotonic() > until:  # it waited so long for a thread that the later requests wait for it
            raise StoreUnavailable("The tenant store is too slow.")
        began = times(self.clock)
        try:
            reply = dict(method(**arguments))
        except ClientError as error:
            raise _meaning(error) from error
        except (HTTPClientError, NotConnected) as error:  # not connected, broken, or no reply in time
            raise _Retry from error
        except BotoCoreError as error:
            raise StoreUnavailable(f"The tenant store cannot be used: {type(error).__name__}.") from error
        self.server_time.observe(reply, began, times(self.clock))
        return reply


def _meaning(error: ClientError) -> Exception:
    code = error.response["Error"]["Code"]
    if code == "ConditionalCheckFailedException":
        return ConditionFailed((_old(error.response),))
    if code == "TransactionCanceledException":
        return _cancellation(error.response)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _CONFLICT or code in _THROTTLED:
        return _Retry(throttled=code in _THROTTLED, spent=True)
    if code in _UNKNOWN or status >= 500:
        return _Retry()
    logging.getLogger("headgate.store").error("refused: %s", error.response["Error"].get("Message", "")[:300])
    return StoreUnavailable(f"The tenant store refused a request: {code}.")


def _cancellation(response: Any) -> Exception:
    reasons: Sequence[Mapping[str, Any]] = response.get("CancellationReasons", ())
    codes = {reason.get("Code") for reason in reasons}
    if _CONDITION_FAILED in codes:
        return ConditionFailed(tuple(_old(reason) for reason in reasons))
    if codes & (_CONFLICT | _THROTTLED):
        return _Retry(throttled=bool(codes & _THROTTLED), spent=True)
    return StoreUnavailable(f"The tenant store refused a transaction: {sorted(map(str, codes))}.")


def _old(answer: Mapping[str, Any]) -> Item | None:
    return decode_item(answer["Item"]) if answer.get("Item") else None


class Reads:
    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def item(self, key: Key) -> Item | None:
        reply = await self._requests.send("get_item", Key=encode_item(key), ConsistentRead=True)
        item = decode_item(reply.get("Item", {}))
        return item if item and not self.is_expired(item) else None

    async def partition(self, partition: str, sort_prefix: str = "") -> list[Item]:
        """Return the items of a partition whose sort keys begin with the prefix, in order of the sort keys."""
        if not sort_prefix:
            found = await self.query(partition)
        else:
            found = await self.query(partition, "begins_with(#sk, :prefix)", {":prefix": sort_prefix})
        return [item for item in found if not self.is_expired(item)]

    async def query(
        self,
        partition: str,
        condition: str = "",
        values: Mapping[str, Any] | None = None,
        limit: int | None = None,
        **more: Any,
    ) -> list[Item]:
        """Return the items that a condition on `#sk` selects, at most `limit`, also expired ones.

        One request returns at most 1 MB, so this may send several.
        """
        request = {**_condition(partition, condition, values or {}), "ConsistentRead": True, **more}
        found: list[Item] = []
        while limit is None or len(found) < limit:
            if limit is not None:
                request["Limit"] = limit - len(found)
            reply = await self._requests.send("query", **request)
            found += map(decode_item, reply["Items"])
            if "LastEvaluatedKey" not in reply:
                break
            request["ExclusiveStartKey"] = reply["LastEvaluatedKey"]
        return found

    def is_expired(self, item: Item) -> bool:
        return not is_live(item, self._requests.clock.now())


def _condition(partition: str, condition: str, values: Mapping[str, Any]) -> dict[str, Any]:
    names = {"#pk": PARTITION, **({"#sk": SORT} if condition else {})}
    return {
        "KeyConditionExpression": "#pk = :pk" + (f" AND {condition}" if condition else ""),
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": {":pk": encode(partition), **encode_item(values)},
    }


_Encoded = dict[str, dict[str, Any]]
"""Attribute name -> AttributeValue."""


def encode(value: Any) -> dict[str, Any]:
    """Return an AttributeValue. Raises TypeError, and ValueError for a number that is not finite."""
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, bytes):
        return {"B": value}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, int | float | Decimal):
        return {"N": _number(value)}
    if isinstance(value, Mapping):
        return {"M": encode_item(value)}
    if isinstance(value, list | tuple):
        return {"L": [encode(element) for element in value]}
    raise TypeError(f"cannot store a {type(value).__name__}")


def encode_item(item: Mapping[str, Any]) -> _Encoded:
    """Return the encoded item, without the attributes that are None."""
    return {name: encode(value) for name, value in item.items() if value is not None}


def _decode(value: Mapping[str, Any]) -> Any:
    ((kind, content),) = value.items()
    if kind == "N":
        return Decimal(content)
    if kind == "M":
        return decode_item(content)
    if kind == "L":
        return [_decode(element) for element in content]
    return content


def decode_item(item: Mapping[str, Mapping[str, Any]]) -> Item:
    return {name: _decode(value) for name, value in item.items()}


def _number(value: int | float | Decimal) -> str:
    """Return the number as text. A float becomes the shortest decimal that gives the same float (at most 17 digits)."""
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError(f"only finite numbers can be stored, not {value!r}")
        value = Decimal(repr(value))
    return format(value, "f")

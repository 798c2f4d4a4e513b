"""Durable invocations in DynamoDB: an item for each, and an item that maps the caller's key to the invocation's id.

An invocation is created by two puts, because a transaction would cost twice as much. The first writes the key's item,
under the condition that there is none. The second writes the invocation's item. If the process dies between the puts,
the key leads to an id without an item. The next call with the key then writes its own request under that id. The first
write of an item wins.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from dispatcher.model.invocation import Invocation, StoredAnswer
from dispatcher.stores.dynamodb.attributes import decode_item, encode, encode_item
from dispatcher.stores.dynamodb.layout import EXPIRY, caller_key, invocation_key
from dispatcher.stores.dynamodb.reads import Reads
from dispatcher.stores.dynamodb.requests import ConditionFailed, Requests
from dispatcher.stores.limits import checked_invocation, expires_at, fitting_answer
from dispatcher.stores.records import answer_record, invocation_record, to_answer, to_invocation

_FREE_OR_EXPIRED = "attribute_not_exists(pk) OR #ttl <= :now"
_UNANSWERED = "attribute_exists(pk) AND attribute_not_exists(#answer) AND #ttl > :now"
_UNSHARED = "attribute_not_exists(#shared)"


class DynamoInvocations:
    """dispatcher.ports.InvocationStore."""

    def __init__(self, requests: Requests, reads: Reads) -> None:
        self._requests, self._reads = requests, reads

    async def create(self, invocation: Invocation) -> Invocation:
        checked_invocation(invocation)
        named = await self._take_key(invocation) if invocation.key else invocation.id
        if named != invocation.id:
            found = await self.get(named)
            if found is not None:
                return found
        return await self._put(replace(invocation, id=named))

    async def get(self, invocation_id: str) -> Invocation | None:
        item = await self._reads.item(invocation_key(invocation_id))
        return None if item is None else to_invocation(item)

    async def find(self, tenant: str, key: str) -> Invocation | None:
        item = await self._reads.item(caller_key(tenant, key)) if key else None
        return None if item is None else await self.get(item["id"])

    async def answer(self, invocation_id: str, answer: StoredAnswer) -> StoredAnswer | None:
        return await self._keep(invocation_id, answer, _UNANSWERED, {})

    async def share(self, invocation_id: str) -> Invocation | None:
        try:
            updated = await self._requests.send(
                "update_item",
                Key=encode_item(invocation_key(invocation_id)),
                UpdateExpression="SET #shared = :true",
                ConditionExpression=_UNANSWERED,
                ExpressionAttributeNames={"#answer": "answer", "#shared": "shared", "#ttl": EXPIRY},
                ExpressionAttributeValues={":true": encode(True), ":now": self._now()},
                ReturnValues="ALL_NEW",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except ConditionFailed as refused:
            old = refused.old[0]
            return None if old is None or self._reads.is_expired(old) else to_invocation(old)
        return to_invocation(decode_item(updated["Attributes"]))

    async def refuse(self, invocation_id: str, answer: StoredAnswer) -> StoredAnswer | None:
        return await self._keep(invocation_id, answer, f"{_UNANSWERED} AND {_UNSHARED}", {"#shared": "shared"})

    async def _keep(
        self, invocation_id: str, answer: StoredAnswer, condition: str, names: dict[str, str]
    ) -> StoredAnswer | None:
        fitting = fitting_answer(answer)
        try:  # REMOVE first: moto applies the clauses in order, and both texts together are above its limit of an item
            await self._requests.send(
                "update_item",
                Key=encode_item(invocation_key(invocation_id)),
                UpdateExpression="REMOVE #body SET #answer = :answer",
                ConditionExpression=condition,
                ExpressionAttributeNames={"#answer": "answer", "#body": "body", "#ttl": EXPIRY, **names},
                ExpressionAttributeValues={":answer": encode(answer_record(fitting)), ":now": self._now()},
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except ConditionFailed as refused:
            old = refused.old[0]
            if old is None or "answer" not in old or self._reads.is_expired(old):
                return None
            return to_answer(old["answer"])
        return fitting

    async def _take_key(self, invocation: Invocation) -> str:
        """Return the id under the caller's key: that of this invocation, or of an earlier one."""
        item = {**caller_key(invocation.tenant, invocation.key), "id": invocation.id, EXPIRY: _expiry(invocation)}
        try:
            await self._put_if_free(item)
        except ConditionFailed as refused:
            return str((refused.old[0] or {})["id"])
        return invocation.id

    async def _put(self, invocation: Invocation) -> Invocation:
        record = {**invocation_record(invocation), EXPIRY: _expiry(invocation)}
        try:
            await self._put_if_free({**invocation_key(invocation.id), **record})
        except ConditionFailed as refused:
            return to_invocation(refused.old[0] or {})
        return invocation

    async def _put_if_free(self, item: dict[str, object]) -> None:
        values, names = {":now": self._now()}, {"#ttl": EXPIRY}
        more = {"ExpressionAttributeNames": names, "ExpressionAttributeValues": values}
        await self._requests.put(encode_item(item), _FREE_OR_EXPIRED, **more)

    def _now(self) -> dict[str, object]:
        return encode(self._requests.clock.now())


def _expiry(invocation: Invocation) -> int:
    return ceil(expires_at(invocation))

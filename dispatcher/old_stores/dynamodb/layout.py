"""The table's layout: one table, keys `pk` and `sk`, expiry in `ttl`. No Scan, ever.

    pk              sk            what
    TENANT#<t>      CONFIG        a tenant's configuration
    TENANT#<t>      KEY#<prefix>  that it has this key
    TENANT#<t>      I#<id>        an invocation; request and answer live here alone
    TENANTS         <t>           every tenant's configuration again, to list them
    KEY#<prefix>    KEY           an API key's digest
    LINE#<line>     STATE         clocks, waiting, reserved, spent; `waiting_pool` only while something waits
    LINE#<line>     Q#<queue key> a waiting invocation, in order of arrival: a pointer, no content
    POOL#<p>        STATE         V and the hints
    POOL#<p>        SEAT#<nn>     a worker: registration, heartbeat and the leases of all its slots

A worker is one item, so that liveness, draining and slot are one condition, and a pool with all its workers and a queue
is one request. The indexes hold waiting *queues*, not requests: sparse by `waiting_pool`, one row a queue.
"""

from __future__ import annotations

from typing import Any

from dispatcher.model.old_invocation import Invocation

PARTITION, SORT, EXPIRY = "pk", "sk", "ttl"
BY_VFT, BY_TAT = "waiting-by-vft", "waiting-by-tat"
WAITING_POOL = "waiting_pool"

Key = dict[str, str]


def table_definition(name: str) -> dict[str, Any]:
    """Arguments of CreateTable. (Expiry is set apart: UpdateTimeToLive on `ttl`.)"""
    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": _key_schema(PARTITION, SORT),
        "AttributeDefinitions": [
            {"AttributeName": PARTITION, "AttributeType": "S"},
            {"AttributeName": SORT, "AttributeType": "S"},
            {"AttributeName": WAITING_POOL, "AttributeType": "S"},
            {"AttributeName": "vft", "AttributeType": "N"},
            {"AttributeName": "tat", "AttributeType": "N"},
        ],
        "GlobalSecondaryIndexes": [
            _index(BY_VFT, "vft", ["line", "tat", "waiting"]),
            _index(BY_TAT, "tat", ["line", "vft", "waiting"]),
        ],
    }


def _key_schema(partition: str, sort: str) -> list[dict[str, str]]:
    return [{"AttributeName": partition, "KeyType": "HASH"}, {"AttributeName": sort, "KeyType": "RANGE"}]


def _index(name: str, sort: str, included: list[str]) -> dict[str, Any]:
    projection = {"ProjectionType": "INCLUDE", "NonKeyAttributes": included}
    return {"IndexName": name, "KeySchema": _key_schema(WAITING_POOL, sort), "Projection": projection}


# ── Keys ───────────────────────────────────────────────────────────────────────────────────────────────────────────

TENANTS = "TENANTS"
OWN_KEY_PREFIX, QUEUE_PREFIX = "KEY#", "Q#"


def tenant_key(name: str) -> Key:
    return {PARTITION: f"TENANT#{name}", SORT: "CONFIG"}


def listing_key(name: str) -> Key:
    return {PARTITION: TENANTS, SORT: name}


def key_key(prefix: str) -> Key:
    return {PARTITION: f"KEY#{prefix}", SORT: "KEY"}


def own_key_key(tenant: str, prefix: str) -> Key:
    return {PARTITION: f"TENANT#{tenant}", SORT: f"{OWN_KEY_PREFIX}{prefix}"}


def invocation_key(tenant: str, invocation_id: str) -> Key:
    return {PARTITION: f"TENANT#{tenant}", SORT: f"I#{invocation_id}"}


def queue_key(name: str) -> Key:
    return {PARTITION: f"LINE#{name}", SORT: "STATE"}


def waiting_key(invocation: Invocation) -> Key:
    return {PARTITION: f"LINE#{invocation.queue}", SORT: f"{QUEUE_PREFIX}{invocation.queue_key}"}


def pool_key(name: str) -> Key:
    return {PARTITION: f"POOL#{name}", SORT: "STATE"}


def seat_key(pool: str, seat: int) -> Key:
    return {PARTITION: f"POOL#{pool}", SORT: f"SEAT#{seat:02d}"}

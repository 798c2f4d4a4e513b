"""The table's layout: one table, keys `pk` and `sk`, expiry in `ttl`. There is no index, and no code uses Scan.

Only DynamoDB has the log and its snapshots in this table. All other partitions are the same on every backend.

    pk                  sk                        what
    LOG#<shard>         <position>                an entry of the log, or the mark from which on it is striped
    LOG#<shard>#<stripe>  <position>              an entry of a striped log (stores/dynamodb/log_items.py)
    SNAP#<shard>        M#<position>#<nonce>      the manifest of a complete snapshot
    SNAP#<shard>        P#<position>#<nonce>#<n>  a part of that snapshot
    SNAP#<shard>#striped  the same                the snapshots of a striped log
    MAIL#<process>      <position>#<digest>       news for a process without a connection
    INV#<id>            INV                       a durable invocation: its request, later its answer
    CALL#<tenant>       <SHA-256 of the key>      the id of the invocation under a caller's key
    RESP#<tenant>#<id>  <part>                    a part of a kept response
    RESP#<tenant>       <hour>                    the bytes of the tenant's kept responses that expire before this hour
    FILE#<tenant>       <id>                      the record of a file of the batch API
    BATCH#<tenant>      <id>                      a batch
    OPEN#<pool>         <id>                      the tenant of a batch that is not retired
    USAGE#<day>         <tenant>#<hour>#<shard>#<app>  usage within an hour
    STATE#<shard>       <tenant>                  the state of an active tenant, from the log
    TENANT#<tenant>     CONFIG                    a tenant's configuration
    TENANT#<name>       NAME                      the identity of the tenant that has the name
    TENANT#<tenant>     KEY#<prefix>              an API key of the tenant
    TENANTS             <tenant>                  a copy of every tenant's configuration, to list them
    KEY#<prefix>        KEY                       the same API key, to find its tenant and digest
    AUDIT#<month>       <milliseconds>#<id>       the record of a change of tenants or keys

<tenant> is a tenant's identity (model/tenants.py): its name, or its name and an id. The item NAME is missing
for a tenant that is older than identities. Only administrators write the last six. Positions and hours have leading
zeros, so that they sort as text.

The limits of every backend stand here too: sizes in bytes, times in seconds.
"""

from __future__ import annotations

import hashlib
import re

from dispatcher.model.errors import EntryTooLarge, LogGap
from dispatcher.stores.table import PARTITION, SORT, Key

POSITION_DIGITS, _HOUR_DIGITS = 14, 8
DAY_HOURS = 24


# ── Partitions ─────────────────────────────────────────────────────────────────────────────────────────────────────

TENANTS = "TENANTS"
OWN_KEY_PREFIX, OWN_KEYS_END, MANIFEST_PREFIX, PART_PREFIX = "KEY#", "KEY$", "M#", "P#"
"""All own keys of a tenant are between the first two."""


def log_partition(shard: str) -> str:
    return f"LOG#{shard}"


def stripe_partition(shard: str, stripe: int) -> str:
    """Return the partition. A shard's name has no `#`."""
    return f"LOG#{shard}#{stripe}"


def snapshot_partition(shard: str, *, is_striped: bool = False) -> str:
    return f"SNAP#{shard}#striped" if is_striped else f"SNAP#{shard}"


def mailbox_partition(process: str) -> str:
    return f"MAIL#{process}"


def state_partition(shard: str) -> str:
    return f"STATE#{shard}"


def tenant_partition(tenant: str) -> str:
    return f"TENANT#{tenant}"


def caller_partition(tenant: str) -> str:
    return f"CALL#{tenant}"


def response_partition(tenant: str, response_id: str) -> str:
    """Return the partition. A tenant's identity has no `#`, so a response's id may have any character."""
    return f"RESP#{tenant}#{response_id}"


def response_bytes_partition(tenant: str) -> str:
    return f"RESP#{tenant}"


def file_partition(tenant: str) -> str:
    return f"FILE#{tenant}"


def batch_partition(tenant: str) -> str:
    return f"BATCH#{tenant}"


def open_batches_partition(pool: str) -> str:
    return f"OPEN#{pool}"


def usage_partition(hour: int) -> str:
    return f"USAGE#{hour // DAY_HOURS}"


# ── Keys ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def position_text(position: int) -> str:
    return f"{position:0{POSITION_DIGITS}d}"


def manifest_key(partition: str, position: int, nonce: str) -> Key:
    return {PARTITION: partition, SORT: f"{MANIFEST_PREFIX}{position_text(position)}#{nonce}"}


def parts_prefix(position: int, nonce: str) -> str:
    return f"{PART_PREFIX}{position_text(position)}#{nonce}#"


def part_key(partition: str, position: int, nonce: str, number: int) -> Key:
    return {PARTITION: partition, SORT: f"{parts_prefix(position, nonce)}{number:04d}"}


def news_key(process: str, position: int, digest: str) -> Key:
    return {PARTITION: mailbox_partition(process), SORT: f"{position_text(position)}#{digest}"}


def invocation_key(invocation_id: str) -> Key:
    return {PARTITION: f"INV#{invocation_id}", SORT: "INV"}


def response_key(tenant: str, response_id: str, part: int) -> Key:
    return {PARTITION: response_partition(tenant, response_id), SORT: f"{part:04d}"}


def response_bytes_key(tenant: str, hour: int) -> Key:
    return {PARTITION: response_bytes_partition(tenant), SORT: f"{hour:0{_HOUR_DIGITS}d}"}


def file_key(tenant: str, file_id: str) -> Key:
    return {PARTITION: file_partition(tenant), SORT: file_id}


def batch_key(tenant: str, batch_id: str) -> Key:
    return {PARTITION: batch_partition(tenant), SORT: batch_id}


def open_batch_key(pool: str, batch_id: str) -> Key:
    return {PARTITION: open_batches_partition(pool), SORT: batch_id}


def caller_key(tenant: str, key: str) -> Key:
    """Return the item's key, with a digest of the caller's key, which may have any length and any character."""
    return {PARTITION: caller_partition(tenant), SORT: hashlib.sha256(key.encode()).hexdigest()}


def usage_prefix(tenant: str, hour: int) -> str:
    return f"{tenant}#{hour:0{_HOUR_DIGITS}d}"


def usage_key(tenant: str, hour: int, shard: str, app: str) -> Key:
    """Return the item's key. The application is last, because no other name may contain the separator."""
    return {PARTITION: usage_partition(hour), SORT: f"{usage_prefix(tenant, hour)}#{shard}#{app}"}


def tenant_row_key(shard: str, tenant: str) -> Key:
    return {PARTITION: state_partition(shard), SORT: tenant}


def tenant_key(identity: str) -> Key:
    return {PARTITION: tenant_partition(identity), SORT: "CONFIG"}


def name_key(name: str) -> Key:
    return {PARTITION: tenant_partition(name), SORT: "NAME"}


def listing_key(identity: str) -> Key:
    return {PARTITION: TENANTS, SORT: identity}


def audit_partition(month: str) -> str:
    return f"AUDIT#{month}"


def audit_key(month: str, when: str) -> Key:
    return {PARTITION: audit_partition(month), SORT: when}


def key_key(prefix: str) -> Key:
    return {PARTITION: f"KEY#{prefix}", SORT: "KEY"}


def own_key_key(tenant: str, prefix: str) -> Key:
    return {PARTITION: tenant_partition(tenant), SORT: f"{OWN_KEY_PREFIX}{prefix}"}


ENTRY_BYTES_MAX = 380_000
"""The longest entry of a log. An item of DynamoDB, with its keys, may have 400 KB."""
TEXT_BYTES_MAX = 350_000
"""The longest body or answer of an invocation. An item never has both."""
CUT_AFTER_S = 24 * 3600.0
"""Entries and snapshots below a cut are kept at least this long after they were written, so that a read that began
before the cut still finds them."""
INVOCATION_KEEP_S = 24 * 3600.0
"""For this time after its deadline, an invocation can be read and its key is in use."""
MAILBOX_KEEP_S = 3600.0
"""News is kept for this time. That is enough, because a call's deadline is at most 900 s after its arrival."""
USAGE_KEEP_S = 400 * 24 * 3600.0
"""The usage of an hour can be read for this time."""
TENANT_ROW_KEEP_S = 7 * 24 * 3600.0
"""The state of a tenant that is not active any more can be read for this time."""

_SHARD = re.compile(r"[A-Za-z0-9._-]{1,64}(~[0-9]{1,2})?")


def checked_shard(shard: str) -> str:
    """Return the name. Raises ValueError."""
    if not _SHARD.fullmatch(shard):
        raise ValueError(f"a shard's name has 1 to 64 of A-Za-z0-9._-, and perhaps ~ and a number, not {shard!r}")
    return shard


def checked_entry(position: int, entry: bytes) -> bytes:
    """Return the entry. Raises EntryTooLarge."""
    if len(entry) > ENTRY_BYTES_MAX:
        limit = f"at most {ENTRY_BYTES_MAX} are kept"
        raise EntryTooLarge(f"Entry {position} has {len(entry)} bytes; {limit}. Write fewer commands at once.")
    return entry


def gap_at(shard: str, position: int) -> LogGap:
    return LogGap(f"The log of {shard} has no entry {position}, but a later one: begin at a snapshot above it.")

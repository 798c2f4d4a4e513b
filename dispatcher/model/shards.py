"""The shards of a pool: their names, the shard of a tenant's next call, and the shard of a call by its id. Pure.

A pool of n shards has n logs with a leader each. A tenant's new calls go to one of them, by a hash of the tenant's
identity. Everything about a call goes to the shard that its id names, so a later change of n moves no call.

Shard 0 has the name of the pool, and its ids are those of a pool with one shard. The name of another shard ends with
`~k`, which no pool's name can, and its processes are named `process.k`, so that its ids are `process.k-sequence`.
"""

from __future__ import annotations

from hashlib import blake2b

SHARDS_MAX = 16
_OF_LOG, _OF_PROCESS = "~", "."


def shard_name(pool: str, shard: int) -> str:
    """Return the name of a pool's shard, which its log, its snapshots and its rows of usage have too."""
    return f"{pool}{_OF_LOG}{shard}" if shard else pool


def shard_number(shard: str) -> int:
    """Return the number of the shard of this name."""
    return int(shard.partition(_OF_LOG)[2] or 0)


def shard_of_tenant(tenant: str, shards: int) -> int:
    """Return the shard that gets the tenant's new calls. `tenant`: its identity."""
    return int.from_bytes(blake2b(tenant.encode(), digest_size=8).digest(), "big") % shards


def process_in(process: str, shard: int) -> str:
    """Return the name that a process has in a shard."""
    return f"{process}{_OF_PROCESS}{shard}" if shard else process


def shard_of_call(call_id: str) -> int:
    """Return the shard that has the call of this id, or of this execution (`id#attempt`)."""
    process, _, _ = call_id.rpartition("-")
    _, mark, number = process.rpartition(_OF_PROCESS)
    return int(number) if mark and number.isdecimal() else 0

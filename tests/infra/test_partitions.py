"""What the store does with each kind of partition of the table, against what all roles together may do with it.

Every method of the store is called on moto, and each request of botocore is looked at. So a role can be checked by what
its processes call, and the table of operations (infra/partitions.py) by what the store does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import boto3
import pytest
from moto import mock_aws

from dispatcher.model.tenants import AuditRecord, KeyRecord, Tenant
from dispatcher.stores.dynamodb.store import DynamoStore, create_table
from tests.conformance.store_world import (
    START,
    FakeClock,
    answer,
    batch,
    file,
    invocation,
    kept_response,
    tenant_row,
    usage_row,
)
from tests.support.iam.policies import LEADING_KEYS
from tests.support.iam.recorder import calls_of
from tests.support.server_time import IgnoredServerTime

HOURS = (0, 1000)
ONLY_PUT = {"STATE": "Q"}
"""Operations that no process of the stack needs: nothing reads a tenant's row (`tenant_rows`) but the tests."""


async def used(store: DynamoStore, clock: FakeClock) -> None:
    """Call every method, so that each takes the way on which it does most."""
    log, audit = store.log("s"), AuditRecord("1", START, "arn:x", "tenant.create", "a", None, {})
    await log.append(0, b"entry")
    await log.read(0)
    await log.last()
    await log.save_snapshot(1, "n", b"state" * 200_000)
    await log.load_snapshot()
    await log.cut(1)
    await store.mailboxes.put("p", 0, [b"news"])
    await store.mailboxes.read("p", 0)
    first, second = invocation("p-0"), invocation("p-1", key="other")
    await store.create(first)
    await store.create(first)
    await store.create(second)
    await store.find("a", "k")
    await store.share("p-0")
    await store.answer("p-0", answer())
    await store.refuse("p-1", answer(outcome="refused"))
    kept = kept_response(content=b"x" * 900_000)
    await store.keep_response(kept, 10**9)
    await store.keep_response(kept, 10**9)
    await store.response("a", kept.id)
    await store.delete_response("a", kept.id)
    await store.put_file(file())
    await store.file("a", "file-0")
    await store.files("a")
    await store.delete_file("a", "file-0")
    await store.create_batch(batch())
    await store.batch("a", "batch_0")
    await store.batches("a")
    await store.replace_batch(replace(batch(), version=2), 1)
    await store.open_batches("default")
    await store.retire_batch(batch())
    await store.put_usage("s", [usage_row()])
    await store.usage("a", *HOURS)
    await store.usage(None, *HOURS)
    await store.put_tenant_rows("s", [tenant_row()])
    await store.tenant_rows("s")
    await store.put_tenant(Tenant("a"), expected_version=None, audit=audit)
    await store.get_tenant("a")
    await store.list_tenants()
    await store.put_key(KeyRecord("prefix", "digest", "a"), audit=audit)
    await store.find_key("prefix")
    await store.keys_of("a")
    await store.audit_records(audit.month)
    await store.delete_key("prefix", audit=audit)
    await store.put_key(KeyRecord("second", "digest", "a"), audit=audit)
    await store.delete_tenant("a", audit=audit)


async def operations(clock: FakeClock) -> dict[str, set[str]]:
    """The store's operations by kind of partition, of all its methods."""
    seen: dict[str, set[str]] = defaultdict(set)

    def look(request: Any, **_: Any) -> None:
        target = request.headers["X-Amz-Target"]
        text = target.decode() if isinstance(target, bytes) else target
        for call in calls_of("POST", "/", "", text, request.body):
            for key in call.values(LEADING_KEYS):
                seen[key.partition("#")[0]].add(call.action.removeprefix("dynamodb:"))

    with mock_aws():
        client = boto3.client("dynamodb", "us-east-1", aws_access_key_id="x", aws_secret_access_key="y")
        create_table(client, "operations")
        client.meta.events.register("before-send.dynamodb", look)
        store = DynamoStore(
            client, "operations", clock=clock, random=Random(1), threads=1, server_time=IgnoredServerTime()
        )
        await used(store, clock)
        await store.close()
    return seen


async def test_the_roles_together_may_do_what_the_store_does_and_nothing_else() -> None:
    partitions: Any = pytest.importorskip("infra.partitions", reason="`make synth` installs aws_cdk and runs this test")
    granted: dict[str, set[str]] = defaultdict(set)
    tables: list[Mapping[str, str]] = [
        *(partitions.LOGS, partitions.ANSWERS, partitions.ACCEPTED, partitions.EXECUTED, partitions.HTTP),
        *(partitions.BATCHES, partitions.RESULTS, partitions.ADMINISTERED, partitions.OPERATED),
    ]
    for table in tables:
        for key, letters in table.items():
            granted[key.partition("#")[0]] |= {partitions.OPERATIONS[letter] for letter in letters}
    done = await operations(FakeClock())
    for kind, letters in ONLY_PUT.items():
        done[kind] -= {partitions.OPERATIONS[letter] for letter in letters}
    assert granted == done

"""The rows of docs/operations.md that the stack's table and its page for operators answer. They only read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import httpx

from dispatcher.model.errors import HeadgateError
from dispatcher.model.tenants import AuditRecord
from dispatcher.monitor.follower import open_followers
from dispatcher.processes.bootstrap import RealClock, real_random
from dispatcher.settings.config import load_config
from dispatcher.stores.dynamodb.store import DynamoStore
from headgate.deployment.model import Deployment
from headgate.doctor.deployed.stack import Deployed
from headgate.doctor.finding import Finding, failed, ok, skipped, warning

if TYPE_CHECKING:
    from dispatcher.settings.config import Config

_PAGE_S = 5.0
_WRONG_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"


def gate_leads(deployed: Deployed, title: str) -> Finding:
    """Check that the log of each shard of each pool names a leading gate process."""
    configs = _config(deployed.deployment).each_pool()
    try:
        leaders = asyncio.run(_leaders(_store(deployed), configs))
    except HeadgateError as error:
        return _unreadable(title, error)
    without = [shard for shard, leader in leaders.items() if not leader]
    if without:
        advice = "see NoFront in docs/operations.md: without gate processes each process decides alone"
        return failed(title, f"no process leads the pool {', '.join(without)}", advice)
    return ok(title, ", ".join(f"{shard}: {leader}" for shard, leader in leaders.items()))


def administrator_is_named(deployed: Deployed, title: str) -> Finding:
    """Check that this month's audit records name identities of AWS."""
    month = datetime.fromtimestamp(deployed.now, UTC).strftime("%Y-%m")
    try:
        records = asyncio.run(_read_audit(_store(deployed), month))
    except HeadgateError as error:
        return _unreadable(title, error)
    if not records:
        return skipped(title, "no change this month: create and delete a tenant with HEADGATE_ADMIN_FUNCTION")
    unnamed = [record for record in records if not record.actor.startswith("arn:")]
    if unnamed:
        advice = "change tenants through headgate-admin only, and let nothing else write the table"
        return failed(title, f"{len(unnamed)} of {len(records)} records name no ARN: {unnamed[-1].actor}", advice)
    return ok(title, f"{len(records)} records this month, the last by {records[-1].actor}")


def operator_page(deployed: Deployed, title: str) -> Finding:
    """Check that the page opens with the secret's token. A front within the VPC can be reached only from there."""
    outputs = deployed.stack.outputs
    secrets = deployed.client("secretsmanager")
    token = secrets.get_secret_value(SecretId=outputs.get("OperatorToken", ""))["SecretString"]
    address = f"{outputs.get('OpenAiBaseUrl', '').removesuffix('/v1')}/operator"
    try:
        shown = httpx.get(address, headers={"authorization": f"Bearer {token}"}, timeout=_PAGE_S)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        if _WRONG_CERTIFICATE in str(error):
            return failed(title, f"{address}: {error}", "the certificate of headgate.yaml must name the domain")
        return skipped(title, f"{address} cannot be reached from here ({type(error).__name__}): try it within the VPC")
    if shown.status_code != 200:
        return failed(title, f"{address} answers {shown.status_code}", "was the token changed? Restart the fronts")
    return ok(title, f"{address} answers with {len(shown.content):,} bytes")


def _config(deployment: Deployment) -> Config:
    pools = {name: deployment.pool_settings(name) for name in deployment.pools}
    return load_config({**deployment.environment(), "HEADGATE_POOLS": json.dumps(pools)})


def _store(deployed: Deployed) -> DynamoStore:
    table = deployed.stack.outputs.get("TableName", "")
    return DynamoStore(deployed.client("dynamodb"), table, clock=RealClock(), random=real_random())


async def _leaders(store: DynamoStore, configs: Sequence[Config]) -> dict[str, str]:
    """Return the leader's address of each shard of the pools; empty without one."""
    leaders = {}
    try:
        for follower in (each for config in configs for each in open_followers(store, config, RealClock())):
            await follower.catch_up()
            leaders[follower.shard] = follower.picture(RealClock().now()).leader
    finally:
        await store.close()
    return leaders


async def _read_audit(store: DynamoStore, month: str) -> Sequence[AuditRecord]:
    try:
        return await store.audit_records(month)
    finally:
        await store.close()


def _unreadable(title: str, error: HeadgateError) -> Finding:
    return warning(title, f"the table cannot be read: {error}", "allow this principal to read the stack's table")

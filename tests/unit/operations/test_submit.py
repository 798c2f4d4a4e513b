"""submit: refusals before any write, the command for the gate, and what a repeated key finds."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from dispatcher.model.answers import Collected, error_body
from dispatcher.model.commands import Accept, Leave, Offer
from dispatcher.model.commands import Refused as GateRefused
from dispatcher.model.errors import (
    AnsweredError,
    DeadlineExceeded,
    IdempotencyConflict,
    InvalidRequest,
    Refused,
    RequestTooLarge,
    StoreUnavailable,
    TenantError,
    UnknownModel,
)
from dispatcher.model.fleet import Capability
from dispatcher.model.kept import Invocation, StoredAnswer
from dispatcher.model.requests import Endpoint, Request
from dispatcher.operations.calls.answer import result_of
from dispatcher.operations.calls.call import item_of, order_of
from dispatcher.operations.calls.ends import error_of_refused
from dispatcher.operations.calls.results import is_retryable, latest_of_key
from dispatcher.operations.calls.submit import Known, NewCall
from dispatcher.operations.limits import DURABLE_REFUSED_S
from dispatcher.policies.clocks import Share
from dispatcher.policies.share_bounds import BURST_MAX, RATE_MIN, WEIGHT_MIN
from dispatcher.policies.throttling import ThrottleLimits
from dispatcher.policies.tiers import Tier
from dispatcher.shard.settings import ShardSettings
from tests.support.world.in_process import OFFER_S
from tests.support.world.memory_gate import POOL, Gate, make_gate
from tests.support.world.store_faults import FailsOnce
from tests.support.world.story import (
    accepted,
    answered_again,
    asked,
    begun,
    dispatched,
    followed,
    queued,
    read,
    submitted,
    take_slots,
)
from tests.support.world.worker_client import SHED, Act, refuses


def accepts(gate: Gate) -> list[Accept]:
    return [command for command in gate.shard.commands if isinstance(command, Accept)]


def over(gate: Gate, *calls: NewCall) -> None:
    for call in calls:
        call.leave()


@pytest.mark.parametrize(
    ("request_", "limits", "error"),
    [
        (asked(model="other"), {}, UnknownModel),
        (asked(), {"models": ("n",)}, UnknownModel),
        (asked(max_tokens=4097), {}, InvalidRequest),
        (asked(max_tokens=8), {"max_tokens_max": 7}, InvalidRequest),
        (asked(max_tokens=None), {"max_tokens_max": 0}, InvalidRequest),
        (asked("p" * 360_000), {}, RequestTooLarge),
    ],
)
async def test_what_is_refused_leaves_nothing_behind(
    gate: Gate, request_: Any, limits: dict[str, Any], error: type[AnsweredError]
) -> None:
    await gate.add_tenant("c", **limits)
    with pytest.raises(error):
        await submitted(gate, "c", "k", request=request_)
    assert await gate.store.find("c", "k") is None
    assert accepts(gate) == []


async def test_the_context_is_the_prompt_and_what_may_come(gate: Gate) -> None:
    gate.add_worker("s", model="s", context_tokens=100, bytes_per_token=2.0)
    over(gate, await dispatched(gate, "a", request=asked("x" * 180, 10, "s")))
    with pytest.raises(InvalidRequest) as caught:
        await submitted(gate, "a", request=asked("x" * 181, 10, "s"))
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(InvalidRequest):
        await submitted(gate, "a", request=asked("é" * 91, 10, "s"))  # two bytes each


def open_chat(prompt: str = "p", choices: int = 1) -> Request:
    """Return a chat without a limit."""
    body = {"messages": [{"role": "user", "content": prompt}]}
    return Request("m", Endpoint.CHAT, body, None, choices)


async def test_a_completion_without_a_limit_gets_the_expected_tokens(gate: Gate) -> None:
    await gate.add_tenant("small", max_tokens_max=7)
    await followed(gate, "a", request=asked(max_tokens=None))
    await followed(gate, "small", request=asked(max_tokens=None))
    assert [(order.max_tokens, order.expected_tokens) for _, order in gate.workers.orders] == [(256, None), (7, None)]


async def test_a_chat_without_a_limit_gets_the_tenants_and_its_cost_counts_the_expected_tokens(gate: Gate) -> None:
    await gate.add_tenant("small", max_tokens_max=7)
    gate.add_worker("many", model="many", capabilities=(Capability.CHAT, Capability.CHOICES))
    await followed(gate, "a", request=replace(open_chat(choices=3), model="many"))
    await followed(gate, "small", request=open_chat())
    limits = [(order.max_tokens, order.expected_tokens) for _, order in gate.workers.orders]
    assert limits == [(4096 // 3, 256), (7, 7)]
    prompt_tokens = open_chat().prompt_bytes()
    assert [command.terms.cost for command in accepts(gate)] == [prompt_tokens + 2 * 3 * 256, prompt_tokens + 2 * 7]


async def test_a_chat_without_a_limit_is_refused_only_if_its_prompt_fills_the_context(gate: Gate) -> None:
    gate.add_worker("short", model="s", context_tokens=100)
    room = 100 - open_chat("").prompt_bytes()
    over(gate, await dispatched(gate, "a", request=replace(open_chat("x" * (room - 1)), model="s")))
    with pytest.raises(InvalidRequest, match="the prompt has about 100\\.") as caught:
        await submitted(gate, "a", request=replace(open_chat("x" * room), model="s"))
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


async def test_each_input_of_embeddings_must_fit_the_context_by_itself(gate: Gate) -> None:
    gate.add_worker("short", model="s", context_tokens=100, capabilities=(Capability.EMBEDDINGS,))
    several = Request("s", Endpoint.EMBEDDINGS, {"input": ["x" * 100] * 5}, None)
    over(gate, await dispatched(gate, "a", request=several))
    assert accepts(gate)[0].terms.cost == 500
    for inputs in (["x" * 101, "x"], "x" * 101, list(range(26))):
        with pytest.raises(InvalidRequest, match=r"the prompt has about 10[14]\.") as caught:
            await submitted(gate, "a", request=replace(several, body={"input": inputs}))
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")


async def test_a_deadline_is_the_callers_but_never_later_than_the_gates(gate: Gate) -> None:
    short = await dispatched(gate, "a", deadline_s=5.0)
    long = await dispatched(gate, "a", deadline_s=9999.0)
    assert short.call.terms.deadline_at == gate.clock.now() + 5
    assert long.call.terms.deadline_at == gate.clock.now() + gate.pool.deadline_s
    assert [command.terms for command in accepts(gate)] == [short.call.terms, long.call.terms]
    over(gate, short, long)


async def test_the_command_has_the_cost_and_the_tenants_share(gate: Gate) -> None:
    await gate.add_tenant("owed", Share(2.0, 3.0, 4.0), tier=Tier.PREMIUM, queue_items_max=9)
    request = replace(asked("x" * 20, 5), app="chat", interaction="i-7")
    over(gate, await dispatched(gate, "owed", request=request))
    (command,) = accepts(gate)
    assert command.terms.cost == 20 + 2 * 5
    assert command.config[1:] == (2.0, 3.0, 4.0, "premium", 9)
    assert (command.terms.tenant, command.terms.app, command.terms.interaction) == ("owed", "chat", "i-7")
    assert (command.process, command.floor, command.terms.durable) == ("p0", 1, False)


async def test_a_share_that_is_older_than_the_bounds_is_clamped(gate: Gate) -> None:
    await gate.add_tenant("old", Share(1e-306, 1e-308, 1e300))
    one = await dispatched(gate, "old", request=asked("x" * 20, 5))
    (command,) = accepts(gate)
    assert command.config[1:4] == (WEIGHT_MIN, RATE_MIN, BURST_MAX)
    assert isinstance(one.outcome, Offer)
    assert order_of(one.call, one.outcome).weight == WEIGHT_MIN
    over(gate, one)


def test_a_fault_of_the_gate_is_a_500_that_may_be_tried_again() -> None:
    error = error_of_refused(GateRefused("p-1", "internal_error", "An error (fault 1a2b).", 1.0))
    assert (error.status, error.code, error.type, error.retry_after_s) == (500, "internal_error", "server_error", 1.0)
    assert is_retryable(StoredAnswer("failed", 0, 0, 0, error_body(error), 0.0))


async def test_the_bound_is_the_tenants_own_and_a_refused_key_is_free_again(gate: Gate) -> None:
    await gate.add_tenant("small", queue_items_max=2)
    running = [await dispatched(gate, "b") for _ in range(2)]
    waiting = [await queued(gate, "small") for _ in range(2)]
    with pytest.raises(Refused) as caught:
        await submitted(gate, "small", "k")
    assert caught.value.retry_after_s
    writes = gate.store.requests["put INV"]
    with pytest.raises(Refused):
        await submitted(gate, "small", "l")
    assert gate.store.requests["put INV"] == writes, "a flood of keys is refused before it writes"
    waiting.append(await queued(gate, "a"))
    over(gate, *running, *waiting)
    await gate.quiet()
    await asyncio.sleep(DURABLE_REFUSED_S)
    assert isinstance(await followed(gate, "small", "k"), Collected)


async def test_a_throttled_application_does_not_bar_the_others_of_its_tenant() -> None:
    gate = await make_gate(settings=ShardSettings(throttling=ThrottleLimits(user=100, app=1)))
    gate.add_worker(kv_use=1.0)
    batch = replace(asked(), app="batch")
    await followed(gate, "a", "one", request=batch)
    with pytest.raises(Refused) as caught:
        await submitted(gate, "a", "two", request=batch)
    assert caught.value.code == "throttled_app"
    assert isinstance(await followed(gate, "a", "three", request=replace(asked(), app="chat")), Collected)
    await gate.at_rest()


async def test_the_same_key_is_known_whatever_became_of_it(gate: Gate) -> None:
    running = await dispatched(gate, "a", "k")
    again = await submitted(gate, "a", "k")
    assert isinstance(again, Known)
    assert again.invocation.id == running.call.id
    collected = await read(running)
    answer = await result_of(gate.context, again)
    again.leave()
    assert answer is not None
    assert (collected.text, answer.output_tokens) == ("xxx", 3)
    done = await submitted(gate, "a", "k")
    assert isinstance(done, Known)
    assert (done.following, done.invocation.answer) == (None, answer)
    with pytest.raises(IdempotencyConflict):
        await submitted(gate, "a", "k", request=asked("another"))
    assert len(gate.workers.orders) == 1


async def test_a_refusal_is_not_the_answer_of_a_key_that_another_process_was_accepted_for(gate: Gate) -> None:
    """The gate refuses the first try. The repeat has read its item by then, and is accepted."""
    await gate.add_tenant("barred", queue_items_max=0)
    busy = await take_slots(gate, max_tokens=1)
    there = gate.process()
    gate.shard.delay_s = 0.05
    first = begun(gate, "barred", "k")
    await asyncio.sleep(0.01)
    gate.shard.delay_s = 0.3
    second = asyncio.ensure_future(submitted(gate, "barred", "k", context=there))
    await asyncio.sleep(0.01)
    gate.shard.delay_s = 0.0
    assert isinstance(await first, Refused)
    known = await second  # decided when the slots are free again
    assert isinstance(known, Known)
    answer = await result_of(there, known)
    known.leave()
    assert answer is not None
    assert (answer.outcome, answer.output_tokens, gate.spent("barred")) == ("done", 3, 16.0)
    again = await submitted(gate, "barred", "k")
    assert isinstance(again, Known)
    assert again.invocation.answer == answer
    assert len(gate.ends("done")) == 3
    await busy


async def test_a_key_that_was_refused_twice_is_tried_again_under_its_first_id(gate: Gate) -> None:
    await gate.add_tenant("barred", queue_items_max=0)
    busy = await take_slots(gate, max_tokens=1)
    gate.shard.delay_s = 0.01
    tries = [begun(gate, "barred", "k", context=context) for context in (gate.context, gate.process())]
    assert [type(each) for each in await asyncio.gather(*tries)] == [Refused, Refused]
    gate.shard.delay_s = 0.0
    assert (await gate.item("barred", "k")).answer is None
    await busy
    await asyncio.sleep(DURABLE_REFUSED_S)
    answer = await answered_again(gate, "barred", "k")
    assert (answer.outcome, gate.spent("barred")) == ("done", 16.0)


@pytest.mark.parametrize("wait", [False, True])
async def test_a_key_that_another_process_holds_is_one_call(gate: Gate, wait: bool) -> None:
    """Its offer goes to the process that asked last, and both get the answer."""
    there = gate.process()
    busy = [begun(gate, "b", max_tokens=10) for _ in range(2 if wait else 0)]
    await asyncio.sleep(0.01)
    first = begun(gate, "a", "k")
    await asyncio.sleep(0.01)
    answer = await answered_again(gate, "a", "k", context=there)
    collected = await first
    assert isinstance(collected, Collected)
    assert (collected.text, answer.output_tokens, gate.spent("a")) == ("xxx", 3, 16.0)
    await asyncio.gather(*busy)


async def test_a_call_that_its_process_never_put_before_the_gate_is_put_there_by_a_repeat(gate: Gate) -> None:
    """The process wrote the item and stopped."""
    running = await dispatched(gate, "b")
    there = gate.process()
    item = item_of(
        replace(running.call, id=there.link(POOL).new_id("a"), tenant=await tenant(gate, "a"), key="k"), "{}"
    )
    there.link(POOL).forget(item.id)
    await gate.store.create(item)
    assert (await answered_again(gate, "a", "k")).outcome == "done"
    assert (await gate.item("a", "k")).id == item.id
    over(gate, running)


async def tenant(gate: Gate, name: str) -> Any:
    return await gate.context.directory.tenant_of(gate.keys[name])


async def kept_long_ago(gate: Gate) -> Invocation:
    """A durable call of which the gate remembers nothing, and the item has no answer."""
    await followed(gate, "a", "k")
    item = replace(await gate.item("a", "k"), answer=None, id="p9-1", key="lost")
    await gate.store.create(item)
    gate.shard.link("p9")
    gate.shard.decide(accepts(gate)[0]._replace(id="p9-5", process="p9", floor=5))
    gate.shard.decide(Leave("w"))
    gate.add_worker()
    return item


async def test_a_lost_call_is_tried_again_before_its_deadline_and_has_expired_after_it(gate: Gate) -> None:
    await kept_long_ago(gate)
    again = await followed(gate, "a", "lost")
    assert isinstance(again, Collected)
    item = await gate.item("a", "lost~1")
    assert (await latest_of_key(gate.context, "a", "lost")) == item
    for call_id in list(gate.shard.shard.state.calls):
        gate.shard.decide_cancel(call_id)
    await gate.quiet()


async def test_a_lost_call_has_expired_after_its_deadline(gate: Gate) -> None:
    item = await kept_long_ago(gate)
    await asyncio.sleep(item.deadline_at - gate.clock.now())
    with pytest.raises(DeadlineExceeded):
        await answered_again(gate, "a", "lost")
    for call_id in list(gate.shard.shard.state.calls):
        gate.shard.decide_cancel(call_id)


async def test_a_shed_key_is_served_when_it_comes_back(gate: Gate) -> None:
    gate.workers.acts.extend([SHED, Act(drops_after=0)])
    assert isinstance(await followed(gate, "a", "k"), Refused)
    assert isinstance(await followed(gate, "a", "k"), AnsweredError)
    assert isinstance(await followed(gate, "a", "k"), Collected)
    again = await submitted(gate, "a", "k")
    assert isinstance(again, Known)
    assert again.invocation.answer is not None
    assert again.invocation.answer.outcome == "done", "and is one invocation ever after"
    assert await latest_of_key(gate.context, "a", "k") == again.invocation
    assert await latest_of_key(gate.context, "a", "never") is None
    assert gate.spent("a") == 16.0


async def test_a_key_that_failed_for_good_stays_so(gate: Gate) -> None:
    gate.workers.acts.append(refuses(400, "context_length_exceeded"))
    await followed(gate, "a", "k")
    with pytest.raises(TenantError) as caught:
        await answered_again(gate, "a", "k")
    assert caught.value.code == "context_length_exceeded"


async def test_a_gate_that_cannot_be_reached_is_503_and_the_key_is_resumed_later(gate: Gate) -> None:
    await followed(gate, "a")  # the view of the fleet is fresh
    gate.shard.down = True
    for key in ("", "k"):
        assert isinstance(await followed(gate, "a", key), StoreUnavailable)
    gate.shard.down = False
    assert (await answered_again(gate, "a", "k")).outcome == "done"


@pytest.mark.parametrize("applied", [False, True])
async def test_an_item_that_cannot_be_written_is_503_and_the_key_works_later(gate: Gate, applied: bool) -> None:
    gate.store.faults = FailsOnce("put INV", applied=applied)
    assert isinstance(await followed(gate, "a", "k"), StoreUnavailable)
    assert accepts(gate) == []
    again = await submitted(gate, "a", "k")
    if isinstance(again, NewCall):
        assert (await read(again)).text == "xxx"
    else:
        assert await result_of(gate.context, again) is not None
        again.leave()


@pytest.mark.parametrize("key", ["", "k"])
async def test_a_caller_that_leaves_during_the_acceptance_leaves_nothing(gate: Gate, key: str) -> None:
    gate.shard.delay_s = 0.3
    asking = asyncio.ensure_future(accepted(gate, "a", key))
    await asyncio.sleep(0.1)
    asking.cancel()
    await asyncio.wait({asking})
    await gate.quiet()
    if key:
        ((call_id, attempt),) = gate.launcher.launched
        assert gate.shard.shard.state.calls[call_id].attempt == attempt
        gate.shard.decide_cancel(call_id)
    await asyncio.sleep(OFFER_S)
    assert (gate.workers.orders, gate.workers.not_begun) == ([], [])


async def test_the_outcome_of_a_key_that_ended_meanwhile_is_its_answer(gate: Gate) -> None:
    """The item was read before its answer was written."""
    running = await dispatched(gate, "a", "k")
    item = await gate.item("a", "k")
    await read(running)
    there = gate.process()

    async def stale(_: Invocation) -> Invocation:
        return item

    class Stale:
        create = staticmethod(stale)

        def __getattr__(self, name: str) -> Any:
            return getattr(gate.store, name)

    there.store = Stale()
    assert (await answered_again(gate, "a", "k", context=there)).outcome == "done"


async def test_a_call_has_keys_of_its_prompt_only_where_the_gate_prefers_workers_by_them(gate: Gate) -> None:
    long = asked("p" * 2000)
    without = await accepted(gate, "a", request=long)
    gate.context.pools.first.names_prefixes = True
    found = [await accepted(gate, tenant, request=long) for tenant in ("a", "b", "a")]
    keys = [each.call.terms.prefix for each in found]
    assert (without.call.terms.prefix, len(keys[0])) == ("", 8)
    assert keys[0] == keys[2] != keys[1], "no tenant meets the prefixes of another one"
    over(gate, without, *found)

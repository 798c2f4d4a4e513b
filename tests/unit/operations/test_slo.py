"""SLO classes at the gate's face: a request, its key and its tenant have one, and the log gets it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dispatcher.model.commands import Accept
from dispatcher.model.errors import InvalidRequest
from dispatcher.operations.calls.detached import execute_detached
from dispatcher.operations.directory import new_key
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.policies.planning.slo import SloClass, SloClasses
from dispatcher.policies.tiers import Tier
from dispatcher.shard.settings import ShardSettings
from tests.support.world.memory_gate import Gate, make_gate
from tests.support.world.story import asked, followed, submitted

CLASSES = SloClasses([SloClass("chat", 20.0), SloClass("normal", 60.0), SloClass("night", 3600.0, is_deferred=True)])


async def gate_with_classes(**tenant: Any) -> Gate:
    gate = await make_gate(settings=ShardSettings(slack=Slack()))
    gate.contexts.clear()
    gate.process(slo_classes=CLASSES)
    await gate.add_tenant("c", **tenant)
    return gate


def named(slo_class: str = "") -> dict[str, Any]:
    return {"request": replace(asked(), slo_class=slo_class)}


def accepted_as(gate: Gate) -> tuple[str, float, bool]:
    """Return class, seconds from now to the due time, and whether the last call is deferred."""
    last = [command.terms for command in gate.shard.commands if isinstance(command, Accept)][-1]
    return last.slo_class, last.due_at and last.due_at - gate.clock.now(), last.deferred


@pytest.mark.parametrize(
    ("own", "asks_for", "expected"),
    [
        ("", "", ("normal", 60.0, False)),
        ("", "normal", ("normal", 60.0, False)),
        ("chat", "", ("chat", 20.0, False)),
        ("chat", "normal", ("normal", 60.0, False)),
        ("gone", "", ("normal", 60.0, False)),
        ("normal", "night", ("night", 300.0, True)),  # never after the deadline
    ],
)
async def test_the_log_gets_class_and_due_time(own: str, asks_for: str, expected: tuple[str, float, bool]) -> None:
    gate = await gate_with_classes(slo_class=own)
    found = await submitted(gate, "c", **named(asks_for))
    assert accepted_as(gate) == expected
    found.leave()
    await gate.at_rest()


@pytest.mark.parametrize(
    ("own", "asks_for", "message"),
    [
        ("normal", "chat", "SLO class 'chat' is stricter than 'normal'; allowed are normal, night."),
        ("", "urgent", "Unknown SLO class 'urgent'; there are chat, normal, night."),
    ],
)
async def test_a_stricter_or_unknown_class_is_refused(own: str, asks_for: str, message: str) -> None:
    gate = await gate_with_classes(slo_class=own)
    with pytest.raises(InvalidRequest) as caught:
        await submitted(gate, "c", "key", **named(asks_for))
    assert (str(caught.value), caught.value.param) == (message, "metadata.headgate_slo_class")
    assert await gate.store.find("c", "key") is None


async def test_without_classes_none_is_sent_and_none_is_accepted(gate: Gate) -> None:
    found = await submitted(gate, "a")
    assert accepted_as(gate) == ("", 0.0, False)
    found.leave()
    with pytest.raises(InvalidRequest, match="has no SLO classes"):
        await submitted(gate, "a", **named("chat"))


async def test_a_key_may_have_a_class_of_its_own() -> None:
    gate = await gate_with_classes(slo_class="chat")
    gate.keys["c"], record = new_key("c", gate.ids.secret(), slo_class="night")
    await gate.store.put_key(record)
    assert (await gate.context.directory.tenant_of(gate.keys["c"])).slo_class == "night"
    found = await submitted(gate, "c")
    assert accepted_as(gate)[0] == "night"
    found.leave()


async def test_a_deferred_call_is_background_in_the_engine() -> None:
    gate = await gate_with_classes(tier=Tier.PREMIUM)
    await followed(gate, "c", **named("night"))
    await followed(gate, "c")
    assert [order.tier for _, order in gate.workers.orders] == [Tier.BACKGROUND, Tier.PREMIUM]


async def test_an_executor_keeps_the_class_of_a_durable_call() -> None:
    """It reads the tenant by name, and so does not know the class of the key."""
    gate = await gate_with_classes()
    gate.keys["c"], record = new_key("c", gate.ids.secret(), slo_class="chat")
    await gate.store.put_key(record)
    found = await submitted(gate, "c", "key")
    found.leave()
    item = await gate.item("c", "key")
    other = gate.process(slo_classes=CLASSES)
    await execute_detached(other, item.id)
    commands = [command.terms for command in gate.shard.commands if isinstance(command, Accept)]
    assert {(terms.slo_class, terms.due_at) for terms in commands} == {("chat", item.created_at + 20.0)}
    assert len(commands) > 1

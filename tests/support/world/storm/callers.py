"""Callers: plain streams, calls with idempotency keys that are repeated anywhere, and event work without a caller."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import TYPE_CHECKING

from dispatcher.model.answers import Collected, tokens_of
from dispatcher.model.errors import AnsweredError
from dispatcher.model.requests import Endpoint, Request
from dispatcher.model.tenants import Tenant
from dispatcher.model.worker_protocol import Finished
from dispatcher.operations.calls.answer import result_of
from dispatcher.operations.calls.results import choices_of, last_event
from dispatcher.operations.calls.submit import Known, submit
from dispatcher.policies.clocks import Share
from tests.support.world.storm.engine import MODELS
from tests.support.world.storm.records import Answered
from tests.support.world.storm.thrown_errors import is_thrown
from tests.support.world.story import events_of

if TYPE_CHECKING:
    from tests.support.world.storm.nodes import FrontNode
    from tests.support.world.storm.world import World


WAITING_MAX = 4
DEADLINES_S = (3.0, 10.0, 40.0)
DURABLE_DEADLINES_S = (5.0, 20.0, 50.0)
LONG_TOKENS = 40
"""Output of some calls: longer than a lease on a slow engine."""
STREAMS = 0.5
"""The part of the calls that are streamed."""
REPEATED = 0.4
"""The part of the keys that another caller repeats at some front."""
APPS = ("chat", "search", "")
INTERACTIONS = ("", "", "talk 1", "talk 2")
CLASSES = ("", "normal", "batch")
RUSH_S = 3.0
"""The time between two moments at which calls come together."""
CROWD_PART = 0.7
CROWD_S = (1.5, 10.0, 40.0)
"""Deadlines of crowded calls: some of them cannot be met."""
TRIES = 4
AGAIN_S = (0.1, 6.0)
"""The pause before a caller repeats its key: shortest and longest."""
RETRIED = frozenset({"store_unavailable", "worker_failed", "no_worker", "front died", "model_not_found", "queue_full"})

TENANTS = {
    "a": Tenant("a", queue_items_max=WAITING_MAX),
    "b": Tenant("b", share=Share(weight=3.0), queue_items_max=WAITING_MAX),
    "owed": Tenant("owed", share=Share(rate_per_s=20.0, burst=100.0), queue_items_max=WAITING_MAX),
}


@dataclass(frozen=True)
class Plan:
    """What one caller does."""

    number: int
    at_s: float
    tenant: str
    key: str
    max_tokens: int
    deadline_s: float
    stream: bool
    """It gets each token at once; else the whole answer at the end."""
    leaves_s: float | None
    """It leaves after so many seconds; 0: at once after the acceptance (event work)."""
    model: str = MODELS[0]
    app: str = ""
    interaction: str = ""
    slo_class: str = ""


def plans(world: World) -> list[Plan]:
    """Return the callers of a run."""
    weather = world.weather
    random = Random(f"{weather.seed} callers")
    streams = Random(f"{weather.seed} streams")
    models = Random(f"{weather.seed} models")
    apps = Random(f"{weather.seed} apps")
    streams_part, repeated = (0.9, 0.9) if weather.shared else (STREAMS, REPEATED)
    long_calls = 0.5 if weather.isolations or weather.shared else 0.15 if weather.durable else 0.05
    made: list[Plan] = []
    for number in range(weather.calls):
        durable = random.random() < weather.durable
        leaves = random.random() < (weather.callers_leave if not durable else 0.3)
        is_long = random.random() < long_calls
        deadlines_s = DURABLE_DEADLINES_S if durable else DEADLINES_S
        plan = Plan(
            number,
            random.random() * weather.trouble_s,
            random.choice(sorted(TENANTS)),
            f"key{number}" if durable else "",
            LONG_TOKENS if is_long else random.randrange(1, 9),
            deadlines_s[-1] if is_long else random.choice(deadlines_s),
            streams.random() < streams_part,
            (0.0 if durable else random.random() * 3) if leaves else None,
            models.choice(MODELS[: weather.models]),
            apps.choice(APPS) if weather.throttled or weather.small else "",
            apps.choice(INTERACTIONS) if weather.throttled else "",
            apps.choice(CLASSES) if weather.due_times else "",
        )
        if weather.rushed:
            plan = replace(plan, at_s=plan.at_s // RUSH_S * RUSH_S)
        if weather.crowded:
            plan = replace(plan, at_s=plan.at_s * CROWD_PART, deadline_s=min(plan.deadline_s, apps.choice(CROWD_S)))
        made.append(plan)
        if durable and random.random() < repeated:
            made.append(replace(plan, number=weather.calls + number, at_s=plan.at_s + random.random() ** 2 * 8))
    return made


async def play(world: World, plan: Plan) -> None:
    """Act as one caller until it has an answer, has left, or gives up."""
    random = Random(f"{world.weather.seed} caller {plan.number}")
    await asyncio.sleep(plan.at_s)
    for _ in range(TRIES):
        front = await _reachable(world, random)
        answered = await _once(world, front, plan)
        world.books.answers.append(answered)
        world.note(f"caller {plan.number} at {front.tag}: {answered.id} {answered.code}")
        if answered.code not in RETRIED or not plan.key:
            return
        shortest, longest = AGAIN_S
        await asyncio.sleep(shortest + random.random() ** 2 * longest)


async def _reachable(world: World, random: Random) -> FrontNode:
    """Return a front that is up, perhaps paused."""
    while not (up := [front for front in world.fronts if front.is_up]):
        await asyncio.sleep(0.1)
    return random.choice(up)


class _Call:
    """One request at one front. `serve` runs on the front's host."""

    def __init__(self, world: World, front: FrontNode, plan: Plan) -> None:
        self.world, self.front, self.plan = world, front, plan
        self.id = ""
        self.deadline_at = inf
        """Known once the front has taken the request: a paused front begins to count late."""
        self.collected = Collected()
        self.finished: Finished | None = None
        self.streamed = True
        self.accepted = asyncio.Event()

    async def serve(self) -> str:
        """Return the code of the end. Cancelled when the caller leaves."""
        tenant = self.world.tenant(self.plan.tenant)
        prompt = "p" * (1 + self.plan.number % 7)
        request = Request(
            self.plan.model, Endpoint.COMPLETION, {"prompt": prompt}, self.plan.max_tokens, stream=self.plan.stream,
            app=self.plan.app, interaction=self.plan.interaction, slo_class=self.plan.slo_class,
        )  # fmt: skip
        if self.plan.key:
            request = replace(request, body={"prompt": f"prompt of {self.plan.key}"})
        try:
            submitted = await submit(
                self.front.context, tenant, request, self.plan.key, deadline_s=self.plan.deadline_s
            )
        except AnsweredError as error:
            return error.code
        try:
            if isinstance(submitted, Known):
                self.id, self.streamed = submitted.invocation.id, False
                self.deadline_at = submitted.invocation.deadline_at
                self.accepted.set()
                return await self._result(submitted)
            self.id, self.deadline_at = submitted.call.id, submitted.call.terms.deadline_at
            if self.plan.stream:
                self.world.books.streams.add(self.id)
            self.accepted.set()
            async for event in events_of(submitted.following):
                self.collected.note(event)
                self.finished = event if isinstance(event, Finished) else None
            if not self.plan.stream:
                self.collected = submitted.following.answer
        except AnsweredError as error:
            return error.code
        finally:
            submitted.leave()
        return "done" if self.finished is not None else "nothing"

    async def _result(self, known: Known) -> str:
        answer = await result_of(self.front.context, known)
        if answer is None:
            return "nothing"
        for token in tokens_of(choices_of(answer), answer.output_tokens):
            self.collected.note(token)
        self.collected.note(last_event(answer))
        return "done"


async def _once(world: World, front: FrontNode, plan: Plan) -> Answered:
    call, began = _Call(world, front, plan), world.now()
    serving = front.host.spawn(call.serve())
    died = asyncio.ensure_future(front.died.wait())
    leaving = asyncio.ensure_future(_leave(call, plan.leaves_s))
    world.callers[serving] = call
    await asyncio.wait((serving, died, leaving), return_when=asyncio.FIRST_COMPLETED)
    code = "front died"
    if leaving.done() and not serving.done() and not died.done():
        code = "left"
        serving.cancel()
        await asyncio.wait((serving, died), return_when=asyncio.FIRST_COMPLETED)
    elif serving.done():
        if (error := serving.exception()) is None:
            code = serving.result()
        elif is_thrown(error):
            code = "error"
        else:
            world.violate("processes go on", f"caller {plan.number}: {error!r}")
    died.cancel()
    leaving.cancel()
    del world.callers[serving]
    got = call.collected
    return Answered(
        plan.number, front.tag, call.id, plan.key, plan.tenant, code, got.text, got.input_tokens, got.output_tokens,
        call.streamed, world.now(), began, plan.interaction,
    )  # fmt: skip


async def _leave(call: _Call, after_s: float | None) -> None:
    if after_s is None:
        await asyncio.Event().wait()
    elif after_s == 0:
        await call.accepted.wait()
    else:
        await asyncio.sleep(after_s or 0.0)

"""Whatever is created, used, deleted and created again: a tenant reads only what was kept for its own identity."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatcher.model.tenants import Tenant, name_of
from dispatcher.operations.administration import StoreAdmin, TenantData
from dispatcher.operations.directory import CACHE_S
from tests.support.asgi import Caller
from tests.support.duration import at_depth
from tests.support.world.memory_gate import COMPLETION, MODEL, Gate
from tests.support.world.story import batch_gate, line, started
from tests.support.world.virtual_time import VirtualTimeLoop

NAMES = st.sampled_from(["acme", "acme-2", "old"])
PICKS = st.integers(0, 2)
living = precondition(lambda machine: machine.living)
KEYS = st.sampled_from(["k", "l"])
BODY = {"model": MODEL, "prompt": "hello", "max_tokens": 3}


class IdentityMachine(RuleBasedStateMachine):
    """`old` begins as a tenant from before identities: its identity is its name."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.gate: Gate = self.loop.run_until_complete(batch_gate())
        self.owners: dict[str, set[str]] = {}
        """By identity: the ids of its responses, files, batches and answers."""
        self.requests: dict[str, int] = {}
        """By identity: the requests that it has sent."""
        self.living: dict[str, str] = {}
        """The identity of each name that has a tenant."""
        self.run(self.gate.add_tenant("old"))
        self.living["old"] = "old"
        self.own = {"old": self.gate.keys["old"]}
        """By identity, also of deleted tenants: its last key."""

    def teardown(self) -> None:
        self.run(self.gate.quiet())
        self.loop.close()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def picked(self, pick: int) -> str:
        """Return the name of a living tenant."""
        return sorted(self.living)[pick % len(self.living)]

    def admin(self, *, erases: bool = True) -> StoreAdmin:
        gate = self.gate
        data = TenantData(gate.store, gate.context.files) if erases else None
        return StoreAdmin(gate.store, gate.ids, gate.clock, lambda: "ada", data)

    def caller(self, identity: str) -> Caller:
        self.gate.keys[identity] = self.own[identity]
        return self.gate.caller(identity)

    def keep(self, identity: str, kept: str) -> None:
        """Note that the identity keeps this, and that it belongs to no other one."""
        for other, things in self.owners.items():
            assert other == identity or kept not in things, f"{identity} reads {kept} of {other}"
        self.owners.setdefault(identity, set()).add(kept)

    @rule(name=NAMES)
    def create(self, name: str) -> None:
        if name in self.living:
            return
        key = self.run(self.admin().create(Tenant(name)))
        identity = self.run(self.admin().existing(name)).identity
        assert name_of(identity) == name
        assert identity not in self.own, "an identity is never given twice"
        self.living[name], self.own[identity] = identity, key

    @living
    @rule(pick=PICKS, erases=st.booleans())
    def delete(self, pick: int, erases: bool) -> None:
        """`erases` False: the deleter dies before it has deleted the data, or may not."""
        name = self.picked(pick)
        self.run(self.admin(erases=erases).delete(name))
        del self.living[name]

    @living
    @rule(pick=PICKS)
    def rotate(self, pick: int) -> None:
        name = self.picked(pick)
        self.own[self.living[name]] = self.run(self.admin().rotate_key(name))

    @living
    @rule(pick=PICKS, key=KEYS)
    def complete(self, pick: int, key: str) -> None:
        """The same idempotency keys and bodies, in every tenant."""
        identity = self.living[self.picked(pick)]
        reply = self.run(self.caller(identity).post(COMPLETION, BODY, idempotency_key=key))
        assert reply.status == 200
        answer = reply.json()["id"]
        self.requests[identity] = self.requests.get(identity, 0) + (answer not in self.owners.get(identity, set()))
        self.keep(identity, answer)

    @living
    @rule(pick=PICKS)
    def respond(self, pick: int) -> None:
        identity = self.living[self.picked(pick)]
        body = {"model": MODEL, "input": "secret", "max_output_tokens": 3}
        reply = self.run(self.caller(identity).post("/v1/responses", body))
        assert reply.status == 200
        self.requests[identity] = self.requests.get(identity, 0) + 1
        self.keep(identity, reply.json()["id"])

    @living
    @rule(pick=PICKS)
    def start_batch(self, pick: int) -> None:
        identity = self.living[self.picked(pick)]
        batch = self.run(started(self.gate, line("a"), tenant=identity))
        self.keep(identity, batch.id)
        self.keep(identity, batch.input_file_id)

    @rule(seconds=st.sampled_from([1.0, CACHE_S + 1]))
    def wait(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @living
    @rule(pick=PICKS, chosen=st.randoms(use_true_random=False))
    def read(self, pick: int, chosen: Any) -> None:
        """Read a thing of any tenant, listings, and usage."""
        identity = self.living[self.picked(pick)]
        own, caller = self.owners.get(identity, set()), self.caller(identity)
        every = sorted({each for things in self.owners.values() for each in things})
        thing = chosen.choice(every) if every else "resp_none"
        paths = {"resp": "/v1/responses/", "file": "/v1/files/", "batch": "/v1/batches/"}
        path = next((path for start, path in paths.items() if thing.startswith(start)), None)
        if path is not None:
            assert (self.run(caller.get(path + thing)).status == 200) == (thing in own)
        for listing in ("/v1/files", "/v1/batches"):
            listed = {each["id"] for each in self.run(caller.get(listing)).json()["data"]}
            assert listed <= own
        totals = self.run(caller.get("/v1/usage")).json()["totals"]
        assert totals["requests"] == self.requests.get(identity, 0)

    @invariant()
    def nothing_is_shown_to_deleted_tenants(self) -> None:
        """Also while the front still knows the key."""
        for identity in sorted(set(self.own) - set(self.living.values())):
            caller = self.caller(identity)
            for path in ("/v1/files", "/v1/batches", "/v1/usage"):
                assert self.run(caller.get(path)).status == 401


TestIdentities = IdentityMachine.TestCase
TestIdentities.settings = settings(max_examples=at_depth(40, 400), stateful_step_count=30, deadline=None)

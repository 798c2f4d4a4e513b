"""Any interleaving of decisions, lost appends, folds and snapshots: all shards of one log agree, to the last number."""

from __future__ import annotations

import json
from collections import Counter
from math import inf
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import (
    Accept,
    Cancel,
    Command,
    End,
    Gone,
    Leave,
    Plan,
    Present,
    Report,
    Retire,
    Return,
    Saved,
    Silent,
    Tick,
    call_id,
)
from dispatcher.model.facts import Entry
from dispatcher.model.fleet import GroupPlan, WorkerPlan
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.policies.throttling import ThrottleLimits
from dispatcher.shard.codec import decode_entry, encode_entry
from dispatcher.shard.settings import ShardSettings, TierFloors
from dispatcher.shard.shard import Shard
from dispatcher.shard.snapshot import dump, fields_of, load
from tests.support.world.lone_shard import swap_report

TENANTS = {"a": (1.0, 0.0, 0.0, "standard"), "b": (3.0, 5.0, 20.0, "premium"), "c": (0.5, 2.0, 0.0, "background")}
PROCESSES = ("p", "q", "r")
WORKERS = {"w0": ("m", 2), "w1": ("m", 1), "w2": ("n", 2)}
SWAPPING = ("s0", "s1")
"""Workers that load m, n and o, by name."""
TIERS = TierFloors({"premium": 0.5, "standard": 0.3, "background": 0.1}, slack=20.0)


def report(worker: str, *, slots: int | None = None, draining: bool = False, capacity: float = 10.0) -> Report:
    model, usual = WORKERS[worker]
    return Report(
        worker, f"http://{worker}", model, usual if slots is None else slots, 0, 1.0, capacity, draining, 0.95, 0, ()
    )


def seen(shard: Shard) -> Any:
    """Everything that the state holds, in an order that does not depend on how it came about."""
    fields = fields_of(dump(shard))
    for name in (
        "workers", "loads", "paid", "models_turned", "plan", "processes", "tenants", "unreached", "calls", "usage",
        "interactions",
    ):  # fmt: skip
        fields[name].sort(key=json.dumps)
    return fields


class ShardMachine(RuleBasedStateMachine):
    order = "bwfq"
    slack: Slack | None = None

    def __init__(self) -> None:
        super().__init__()
        limits = ThrottleLimits(user=6, app=8, window_s=30.0)
        self.settings = ShardSettings(
            order=self.order, tiers=TIERS, throttling=limits, lead_max=100.0, slack=self.slack
        )
        self.writer, self.reader = Shard(self.settings), Shard(self.settings)
        self.now = 1_000_000.0
        self.entries: list[Entry] = []
        self.sequences = dict.fromkeys(PROCESSES, 0)

    def write(self, commands: list[Command], lose: bool) -> None:
        before = seen(self.writer)
        outcomes, facts = self.writer.decide(commands, self.now)
        assert len(outcomes) == len(commands)
        if lose:
            self.writer.rollback()
            assert seen(self.writer) == before
            again, repeated = self.writer.decide(commands, self.now)
            assert (again, repeated) == (outcomes, facts)
        if not facts:
            self.writer.confirm()
            return
        entry = Entry(self.writer.position, self.writer.at, f"w{len(self.entries)}", "here", 1, facts)
        self.writer.confirm(entry)
        self.entries.append(decode_entry(encode_entry(entry)))
        assert self.entries[-1] == entry

    @initialize()
    def join(self) -> None:
        self.write([report(worker) for worker in WORKERS], lose=False)

    @rule(
        tenants=st.lists(st.sampled_from(sorted(TENANTS)), min_size=1, max_size=4),
        process=st.sampled_from(PROCESSES), model=st.sampled_from("mno"), cost=st.sampled_from([1.0, 7.0, 30.0]),
        lose=st.booleans(), kind=st.sampled_from(["plain", "durable", "launched"]), wait_s=st.sampled_from([2.0, 50.0]),
        due=st.sampled_from([("", 0.0, False), ("now", 1.0, False), ("soon", 20.0, False), ("batch", 30.0, True)]),
    )  # fmt: skip
    def accept(
        self,
        tenants: list[str],
        process: str,
        model: str,
        cost: float,
        lose: bool,
        kind: str,
        wait_s: float,
        due: tuple[str, float, bool],
    ) -> None:
        slo_class, due_s, deferred = due
        when, until = (self.now + due_s if slo_class else 0.0, deferred), self.now + wait_s
        commands: list[Command] = []
        for tenant in tenants:
            self.sequences[process] += 1
            name = call_id(process, self.sequences[process])
            floor = max(0, self.sequences[process] - 3)
            weight, rate, burst, tier = TENANTS[tenant]
            commands.append(
                Accept(
                    name,
                    floor,
                    "" if kind == "launched" else process,
                    CallTerms(tenant, model, cost, until, kind != "plain", "app", "chat", slo_class, *when, 9),
                    TenantConfig(1, weight, rate, burst, tier, 5),
                )
            )
        self.write(commands, lose)

    @rule(data=st.data(), lose=st.booleans(), process=st.sampled_from(["", *PROCESSES]))
    def hold(self, data: st.DataObject, lose: bool, process: str) -> None:
        """A process takes a durable call, or lets it go."""
        durable = sorted(call.id for call in self.writer.state.calls.values() if call.terms.durable)
        if durable:
            call = self.writer.state.calls[data.draw(st.sampled_from(durable))]
            terms = CallTerms(*call.terms[:5], "", "")
            self.write([Accept(call.id, 0, process, terms, TenantConfig(1, 1.0, 0.0, 0.0, "standard", 5))], lose)

    @rule(data=st.data(), lose=st.booleans(), tokens=st.integers(0, 20))
    def end(self, data: st.DataObject, lose: bool, tokens: int) -> None:
        running = sorted(call.id for call in self.writer.state.calls.values() if call.worker)
        if running:
            call = self.writer.state.calls[data.draw(st.sampled_from(running))]
            outcome = data.draw(st.sampled_from(["done", "failed", "cancelled"]))
            self.write([End(call.id, call.attempt, outcome, tokens, tokens)], lose)

    @rule(
        data=st.data(), lose=st.booleans(),
        reason=st.sampled_from(["not_begun", "refused", "failed", "declined", "unreachable"]),
    )  # fmt: skip
    def give_back(self, data: st.DataObject, lose: bool, reason: str) -> None:
        running = sorted(call.id for call in self.writer.state.calls.values() if call.worker)
        if running:
            call = self.writer.state.calls[data.draw(st.sampled_from(running))]
            self.write([Return(call.id, call.attempt, reason, call.worker)], lose)

    @rule(data=st.data(), lose=st.booleans())
    def cancel(self, data: st.DataObject, lose: bool) -> None:
        if self.writer.state.calls:
            name = data.draw(st.sampled_from(sorted(self.writer.state.calls)))
            self.write([Cancel(name, "cancelled")], lose)

    @rule(process=st.sampled_from(PROCESSES), lose=st.booleans(), kind=st.sampled_from(["silent", "present", "gone"]))
    def process_changes(self, process: str, lose: bool, kind: str) -> None:
        commands: dict[str, Command] = {
            "silent": Silent(process, False),
            "present": Present(process),
            "gone": Gone(process, False),
        }
        self.write([commands[kind]], lose)

    @rule(
        worker=st.sampled_from(sorted(WORKERS)), lose=st.booleans(), slots=st.integers(0, 3), draining=st.booleans(),
        kind=st.sampled_from(["report", "leave", "silent", "gone", "retire", "stay"]),
        capacity=st.sampled_from([0.0, 10.0, 20.0]),
    )  # fmt: skip
    def worker_changes(self, worker: str, lose: bool, slots: int, draining: bool, kind: str, capacity: float) -> None:
        commands: dict[str, Command] = {
            "report": report(worker, slots=slots, draining=draining, capacity=capacity),
            "leave": Leave(worker),
            "gone": Gone(worker, True),
            "silent": Silent(worker, True),
            "retire": Retire(worker),
            "stay": Retire(worker, is_over=True),
        }
        self.write([commands[kind]], lose)

    @rule(
        worker=st.sampled_from(SWAPPING), model=st.sampled_from("mno"), obeys=st.booleans(), draining=st.booleans(),
        lose=st.booleans(), swap_s=st.sampled_from([0.0, 1.0, 3.0]),
    )  # fmt: skip
    def worker_swaps(self, worker: str, model: str, obeys: bool, draining: bool, lose: bool, swap_s: float) -> None:
        """A worker of several models reports the model that it was ordered to load, or any other one."""
        known = self.writer.state.workers.get(worker)
        has = known.target if known is not None and obeys else model
        self.write([swap_report(worker, has, dict.fromkeys("mno", swap_s), draining=draining)], lose)

    @rule(
        workers=st.lists(st.tuples(st.sampled_from(["gone", "w0", *SWAPPING]), st.sampled_from("mnox")), max_size=4),
        age_s=st.sampled_from([-9.0, 0.0, 1.0, 20.0]), lose=st.booleans(),
    )  # fmt: skip
    def plan(self, workers: list[tuple[str, str]], age_s: float, lose: bool) -> None:
        """Any plan, also one with unknown workers and models, an old one, and one from the future."""
        order = tuple(WorkerPlan(worker, model, (0, 1, 7)) for worker, model in workers)
        groups = tuple(GroupPlan("a", model, "", 0, 1, self.now, self.now, True) for _, model in workers)
        self.write([Plan(self.now - age_s, order, groups)], lose)

    @rule(worker=st.sampled_from(SWAPPING), lose=st.booleans(), kind=st.sampled_from(["leave", "silent", "gone"]))
    def swapping_worker_goes(self, worker: str, lose: bool, kind: str) -> None:
        goes: dict[str, Command] = {"leave": Leave(worker), "gone": Gone(worker, True), "silent": Silent(worker, True)}
        self.write([goes[kind]], lose)

    @rule(seconds=st.sampled_from([0.1, 3.0, 70.0, 700.0]), lose=st.booleans())
    def time_passes(self, seconds: float, lose: bool) -> None:
        self.now += seconds
        self.write([Tick()], lose)

    @rule(back=st.integers(0, 20), lose=st.booleans())
    def project(self, back: int, lose: bool) -> None:
        before = dict(self.writer.state.usage)
        self.write([Saved(max(0, self.writer.position - back))], lose)
        kept = self.writer.state.usage_saved
        assert all(key in self.writer.state.usage for key, usage in before.items() if usage.position >= kept)

    @rule()
    def read(self) -> None:
        """The reader catches up: it equals the writer."""
        for entry in self.entries[self.reader.position :]:
            self.reader.fold(entry)
        assert seen(self.reader) == {**seen(self.writer), "at": self.reader.at}

    @rule()
    def restart(self) -> None:
        """The reader begins anew, at a snapshot."""
        self.reader = load(dump(self.writer), self.settings)
        assert seen(self.reader) == seen(self.writer)
        for call in [call for call in self.writer.state.calls.values() if call.worker]:
            end = [End(call.id, call.attempt, "done", 1, 1)]
            assert self.reader.decide(end, self.now) == self.writer.decide(end, self.now)
            self.reader.rollback()
            self.writer.rollback()

    @invariant()
    def slots_are_kept(self) -> None:
        state = self.writer.state
        for call in state.calls.values():
            silent = state.processes[call.process].silent
            assert call.queued == (not call.worker and not silent)
        for tenant in state.tenants.values():
            calls = [call for call in state.calls.values() if call.tenant is tenant]
            assert tenant.running == sum(bool(call.worker) for call in calls)
            assert tenant.waiting == sum(call.queued for call in calls)
            assert tenant.suspended == len(calls) - tenant.running - tenant.waiting

    @invariant()
    def ordered_workers_can_load_their_model_and_get_no_calls(self) -> None:
        for worker in self.writer.state.workers.values():
            if worker.load:
                assert worker.load in worker.swap_s
                assert worker.load != worker.model
                assert worker.free == 0

    @invariant()
    def waiting_models_are_those_of_the_queues(self) -> None:
        state = self.writer.state
        assert state.waiting_models == Counter(call.model for call in state.calls.values() if call.queued)
        assert state.changing == {name: each for name, each in state.workers.items() if each.changes_at < inf}

    @invariant()
    def no_slot_is_free_while_a_call_waits(self) -> None:
        state = self.writer.state
        if not state.order.is_conserving:
            return
        for call in state.calls.values():
            if call.queued:
                assert not [w for w in state.workers.values() if w.config.model == call.model and w.free > 0]


SLACK = Slack(window=20.0, urgent_s=10.0)


@pytest.mark.parametrize(
    ("order", "slack"),
    [("bwfq", SLACK), *((order, None) for order in ("bwfq", "sfq", "fcfs", "ratio", "ratio+wake", "virtual-clock"))],
)
def test_all_shards_of_a_log_agree(order: str, slack: Slack | None) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    machine = type("Machine", (ShardMachine,), {"order": order, "slack": slack})
    run_state_machine_as_test(machine, settings=settings(max_examples=30, stateful_step_count=40, deadline=None))

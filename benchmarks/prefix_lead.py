"""Chats of several turns over four workers: `python -m benchmarks.prefix_lead`.

Time is virtual: no figure is of a clock. The gate is the production's shard (shard/alone.py). Eight tenants hold
chats: a first prompt of 2,000 tokens on average, 5 turns on average, each with 200 further tokens, and 10 s between
an answer and the next message. A ninth tenant sends single requests. A worker has 32 slots and keeps the prompts of
the last 200 chats. A request takes its prompt's uncached tokens at 5,000 a second, and 100 output tokens of 20 ms,
which become up to twice as long as the worker's slots fill. So a preference that fills one worker more than the
others is paid for.

`met`: the part of the later turns that go to a worker that has the chat's prompt. `wait`: in the gate's queue.
`fuller`: how much fuller the chosen worker is than the least loaded one, as a part of its slots.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from random import Random

from rich.console import Console
from rich.table import Table

from dispatcher.model.commands import Report
from dispatcher.model.facts import Dispatched
from dispatcher.model.prefixes import prefix_keys
from dispatcher.model.requests import Endpoint, Request
from dispatcher.shard.alone import LoneGate
from dispatcher.shard.settings import ShardSettings

WORKERS, SLOTS, CHATS_KEPT = 4, 32, 200
TENANTS, TURNS, THINK_S = 8, 5, 10.0
FIRST_TOKENS, TURN_TOKENS, OUTPUT_TOKENS = 2000, 200, 100
PREFILL_PER_S, DECODE_S, SINGLES = 5000.0, 0.02, 0.1
SECONDS = 120.0
LEADS = (0.0, 0.125, 0.25, 0.5, 1.0)
LOADS = (0.5, 0.9, 1.1)


@dataclass
class Chat:
    tenant: str
    tokens: int
    turns_left: int
    messages: list[dict[str, str]] = field(default_factory=list)
    is_later: bool = False


@dataclass
class Figures:
    later: int = 0
    met: int = 0
    fuller: list[float] = field(default_factory=list)
    waits: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    latencies: list[float] = field(default_factory=list)


class Fleet:
    """`load`: the part of all slots that would be in use if every prompt were computed in a half-full worker."""

    def __init__(self, lead: float, load: float, seed: int) -> None:
        self.chance, self.figures = Random(seed), Figures()
        workers = (
            Report(f"w{number}", f"http://w{number}", "m", SLOTS, 0, 4.0, 0.0, False, 0.0, 0, ())
            for number in range(WORKERS)
        )
        self.gate = LoneGate(ShardSettings(prefix_lead=lead), *workers)
        self.began = self.gate.now
        self.kept: dict[str, OrderedDict[int, None]] = {f"w{number}": OrderedDict() for number in range(WORKERS)}
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.sent: dict[str, tuple[Chat, float]] = {}
        seconds = (FIRST_TOKENS + TURNS * TURN_TOKENS) / PREFILL_PER_S + OUTPUT_TOKENS * DECODE_S * 1.5
        self.requests_per_s = load * WORKERS * SLOTS / seconds
        self._number = 0

    def run(self) -> Figures:
        chats_per_s = self.requests_per_s * (1 - SINGLES) / TURNS
        self._arrive(chats_per_s, single=False)
        self._arrive(self.requests_per_s * SINGLES, single=True)
        while self.events:
            now, _, what = heappop(self.events)
            what(now)
        return self.figures

    def _at(self, now: float, what: Callable[[float], None]) -> None:
        self._number += 1
        heappush(self.events, (now, self._number, what))

    def _arrive(self, per_s: float, *, single: bool) -> None:
        now = self.began
        while (now := now + self.chance.expovariate(per_s)) < self.began + SECONDS:
            turns = 1 if single else 1 + int(self.chance.expovariate(1 / (TURNS - 1)))
            tenant = "single" if single else f"t{self.chance.randrange(TENANTS)}"
            tokens = int(self.chance.expovariate(1 / FIRST_TOKENS)) + 50
            self._at(now, partial(self._send, Chat(tenant, tokens, turns)))

    def _send(self, chat: Chat, now: float) -> None:
        self._number += 1
        chat.messages.append({"role": "user", "content": f"message {self._number}"})
        request = Request("m", Endpoint.CHAT, {"messages": chat.messages}, OUTPUT_TOKENS)
        cost = chat.tokens + 2.0 * OUTPUT_TOKENS
        call = self.gate.new_call(chat.tenant, cost, prefix=prefix_keys(request, chat.tenant))
        self.sent[call.id] = (chat, now)
        self._follow(self.gate.decide(call, now=now).dispatched, now)

    def _follow(self, dispatched: list[Dispatched], now: float) -> None:
        for fact in dispatched:
            chat, sent_at = self.sent[fact.id]
            worker, kept, figures = self.gate.shard.state.workers[fact.worker], self.kept[fact.worker], self.figures
            load = len(worker.running) / SLOTS
            loads = [len(each.running) / SLOTS for each in self.gate.shard.state.workers.values()]
            figures.fuller.append(max(0.0, load - 1 / SLOTS - min(loads)))
            figures.waits[chat.tenant == "single"].append(now - sent_at)
            has_prompt = id(chat) in kept
            figures.later += chat.is_later
            figures.met += chat.is_later and has_prompt
            kept[id(chat)] = None
            kept.move_to_end(id(chat))
            if len(kept) > CHATS_KEPT:
                kept.popitem(last=False)
            computed = TURN_TOKENS if has_prompt else chat.tokens
            takes_s = computed / PREFILL_PER_S + OUTPUT_TOKENS * DECODE_S * (1 + load)
            self._at(now + takes_s, partial(self._end, fact.id))

    def _end(self, name: str, now: float) -> None:
        chat, sent_at = self.sent[name]
        self.figures.latencies.append(now - sent_at)
        self._follow(self.gate.finish(name, chat.tokens, OUTPUT_TOKENS, now=now).dispatched, now)
        chat.turns_left -= 1
        if chat.turns_left:
            chat.messages.append({"role": "assistant", "content": f"answer {name}"})
            chat.tokens += TURN_TOKENS
            chat.is_later = True
            self._at(now + self.chance.expovariate(1 / THINK_S), partial(self._send, chat))


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    table = Table()
    for heading in ("load", "lead", "met", "fuller, mean", "wait p99 s, chats", "single", "latency p50 s", "p99"):
        table.add_column(heading, justify="right")
    for load in LOADS:
        for lead in LEADS:
            found = Fleet(lead, load, options.seed).run()
            fuller = sum(found.fuller) / len(found.fuller)
            waits = (f"{p99(found.waits[single]):.2f}" for single in (False, True))
            middle = sorted(found.latencies)[len(found.latencies) // 2]
            cells = (f"{load:g}", f"{lead:g}", f"{found.met / found.later:.0%}", f"{fuller:.3f}", *waits)
            table.add_row(*cells, f"{middle:.2f}", f"{p99(found.latencies):.2f}")
        table.add_section()
    Console(width=110).print(table)


if __name__ == "__main__":
    main()

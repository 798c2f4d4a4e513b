"""The golden files of the gate: a log with every kind of fact, the snapshot at its end, and a frame of each message."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, get_args

from dispatcher.model.call import CallTerms, TenantConfig
from dispatcher.model.commands import (
    Accept,
    Attempts,
    Cancel,
    Command,
    Done,
    End,
    Gone,
    Leave,
    Offer,
    Outcome,
    Over,
    Plan,
    Present,
    Refused,
    Report,
    Retire,
    Return,
    Saved,
    Silent,
    Status,
    Tick,
    Unknown,
    UseFormat,
    Waiting,
)
from dispatcher.model.facts import Entry, Fact, OrderSet
from dispatcher.model.fleet import GroupPlan, LoadableModel, WorkerPlan
from dispatcher.model.formats import NEWEST
from dispatcher.policies.orders.slack_index import Slack
from dispatcher.service.frames import (
    Ask,
    Do,
    Heartbeat,
    Heir,
    Hello,
    Launch,
    Message,
    News,
    NotLeader,
    ReadsFormat,
    Receipt,
    Reply,
    Result,
    encode_message,
    encode_news,
)
from dispatcher.shard.alone import LoneGate, with_fields
from dispatcher.shard.codec import PLAIN, decode_entry, encode_entry
from dispatcher.shard.settings import ShardSettings
from dispatcher.shard.shard import Shard
from dispatcher.shard.snapshot import dump, load

T0 = 1_790_000_000.0
SETTINGS = ShardSettings(slack=Slack())
MODELS = (
    LoadableModel("m", 0.0, 32768, 4.0, 2000.0, ("tools",)),
    LoadableModel("n", 8.5, 16384, 3.5, 1500.0, ()),
)


def accept(number: str, tenant: str, at: float, **fields: Any) -> Accept:
    """Return a call of the process "p", or of the one that its number names."""
    process = number.partition("-")[0]
    made = Accept(
        number,
        1,
        process,
        CallTerms(tenant, "m", 300.0, T0 + at + 60.0, False, "app", ""),
        TenantConfig(1, 1.0, 0.0, 0.0, "standard", 100),
    )
    return with_fields(made, **fields)


def report(worker: str, *live: str, **fields: Any) -> Report:
    made = Report(worker, f"http://{worker}:8000", "m", 2, 32768, 4.0, 2000.0, False, 0.25, 1, live, ("tools",))
    return made._replace(**fields)


def story(changes: bool) -> Iterator[tuple[float, list[Command]]]:
    """Yield the commands of each entry, with its time in seconds after T0. `changes`: the format, to the newest."""
    yield -2000.0, [report("w1"), report("w2", models=MODELS), Present("p"), Present("q")]
    yield (
        1.0,
        [
            accept("p-1", "zoë", 1.0),
            accept(
                "p-2", "b", 1.0, weight=2.0, rate_per_s=50.0, burst=500.0, tier="premium", version=3, input_tokens=120
            ),
            accept("q-1", "b", 1.0, durable=True, weight=2.0, rate_per_s=50.0, burst=500.0, tier="premium", version=3),
            accept("q-2", "zoë", 1.0, durable=True, process=""),
            accept("q-3", "zoë", 1.0, slo_class="interactive", due_at=T0 + 4.0, interaction="talk"),
            accept("q-4", "c", 1.0, slo_class="batch", due_at=T0 + 3600.0, deferred=True, cost=12.5),
            accept("q-5", "c", 1.0, model="n", deadline_at=T0 + 9.0),
        ],
    )
    yield 2.0, [End("p-1", 1, "done", 100, 50, "zoë", "", 0.25), Return("p-2", 1, "failed", "w1")]
    yield 3.0, [Cancel("q-3", "cancelled"), accept("q-1", "b", 3.0, durable=True, process="p", version=3)]
    yield (
        3.5,
        [Plan(T0 + 3.4, (WorkerPlan("w2", "n", (0,)),), (GroupPlan("c", "n", "", 3, 1, T0 + 9.0, T0 + 12.0, True),))],
    )
    yield 4.0, [Tick()]
    yield 5.0, [Silent("q", False), Silent("w1", True), Saved(4)]
    yield 6.0, [Gone("w1", True), Tick()]
    yield 8.0, [report("w2", model="n", models=(MODELS[0]._replace(swap_s=8.0), MODELS[1]._replace(swap_s=0.0)))]
    yield 12.0, [Tick(), report("w3")]
    yield 13.0, [Gone("q", False), Retire("w2")]
    if changes:
        yield 13.5, [UseFormat(NEWEST)]
    yield 14.0, [accept("p-3", "zoë", 14.0), accept("p-4", "zoë", 14.0), Tick()]
    yield 15.0, [End("p-3", 1, "done", 100, 7, "zoë", "", 0.5, cached_tokens=64), Cancel("p-4", "cancelled")]
    yield 16.0, [Leave("w2"), accept("p-5", "d", 16.0, waiting_max=0)]


def entries(of_format: int, changes: bool) -> tuple[Shard, list[bytes]]:
    """Return the shard after the story, and its log."""
    gate, log = LoneGate(SETTINGS, leader="g:1", epoch=1), list[bytes]()
    if of_format < NEWEST:
        first = Entry(0, T0 - 3000.0, "g:1/x:0", "g:1", 1, (OrderSet("bwfq"),))
        log.append(encode_entry(first, of_format))
        gate.shard.fold(first)
    for at, commands in story(changes):
        entry = gate.decide(*commands, now=T0 + at).entry
        if entry is not None:
            entry = entry._replace(writer=f"g:1/x:{len(log)}")
            log.append(encode_entry(entry, gate.shard.state.format, checked=True))
    return gate.shard, log


def make_log(of_format: int, changes: bool = False) -> str:
    _, log = entries(of_format, changes)
    kinds = {type(fact).__name__ for data in log for fact in decode_entry(data).facts}
    missing = {kind.__name__ for kind in get_args(Fact)} - kinds
    if missing:
        raise AssertionError(f"the story has no {', '.join(sorted(missing))}")
    return "".join(f"{_text(data)}\n" for data in log)


def read_log(text: str) -> str:
    """Return the snapshot of a shard that folded the log."""
    shard = Shard(SETTINGS)
    for line in text.splitlines():
        shard.fold(decode_entry(PLAIN + line.encode()))
    return _text(dump(shard))


def make_snapshot(of_format: int, changes: bool = False) -> str:
    return _text(dump(entries(of_format, changes)[0]))


def read_snapshot(text: str) -> str:
    """Return the snapshot of a shard that was loaded from this one."""
    return _text(dump(load(PLAIN + text.encode(), SETTINGS)))


def _text(data: bytes) -> str:
    return (data[1:] if data[:1] == PLAIN else zlib.decompress(data[1:])).decode()


def make_frames(of_format: int) -> str:
    """Return each message as a process that reads this format gets it, then the news as a mailbox has them."""
    lines = [encode_message(message, of_format).decode() for message in messages()]
    return "\n".join([*lines, *(encode_news(news).decode() for news in NEWS)]) + "\n"


NEWS: tuple[Offer | Over, ...] = (Offer("p-1", 2, "w1", "http://w1:8000", 7), Over("p-1", 2, "done", 100, 50))


def messages() -> Iterator[Message]:
    """Yield each kind of message, with each kind of command and of outcome."""
    yield from (
        Hello(6, "p", "front", ""),
        ReadsFormat(6),
        Ask(1, "usage", ("a", "0", "9")),
        Heartbeat(),
        Receipt(3, True),
    )
    commands = {type(command): command for _, commands in story(changes=True) for command in commands}
    commands[Status] = Status("p-1")
    missing = set(get_args(Command)) - set(commands)
    if missing:
        raise AssertionError(f"the story has no {missing}")
    for number, command in enumerate(commands.values()):
        yield Do(number, T0 + 0.5, command)
    for number, outcome in enumerate(OUTCOMES):
        yield Result(number, outcome)
    yield from (Reply(1, '{"rows":[]}'), Launch("q-2", 1), NotLeader("g:2", 4), Heir(-1))
    yield from (News(news) for news in NEWS)


OUTCOMES: tuple[Outcome, ...] = (
    Waiting("p-1", 3, 1.5, 4.25), Waiting("p-1", 3), *NEWS, Unknown("p-9"), Attempts("w1", 8, ("p-1#1",), "n"), Done(),
    Refused("p-1", "queue_full", "The queue of the tenant ‘zoë’ is full.", 1.5),
)  # fmt: skip

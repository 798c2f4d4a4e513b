"""Two versions of the code on one log: what each writes, and when the log's format changes."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from dispatcher.model.commands import Accept, End, Offer, Over, Refused, UseFormat
from dispatcher.model.errors import ConfigurationError
from dispatcher.model.facts import Ended
from dispatcher.model.formats import NEWEST, OLDEST
from dispatcher.service.frames import COMMANDS, Do, Hello, ReadsFormat, decode_frame, encode_frames, encode_message
from dispatcher.service.gate.questions import answer, read_usage
from dispatcher.service.link.finder import connect
from dispatcher.service.link.link import Link
from dispatcher.service.log_keeper import LogKeeper, use_format
from dispatcher.shard.codec import decode_entry
from dispatcher.shard.snapshot import dump, fields_of, load
from tests.support.world.lone_shard import LoneShard
from tests.support.world.processes import SHARD, World, accept, start_gates, start_worker

CACHED = 80


@pytest.fixture
def older_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let logs begin in the older format, as a log of an earlier version did."""
    monkeypatch.setattr("dispatcher.shard.fold.NEWEST", OLDEST)


async def running(world: World) -> tuple[Link, Link]:
    await start_gates(world, "g1")
    return world.link("front"), await start_worker(world, 4)


async def served(world: World, front: Link, worker: Link) -> Over:
    """Serve a call with 100 input tokens, of which CACHED are cached, and 10 output tokens."""
    call: Accept = accept(front.new_id(), front.process, world.clock.now())
    offer = await world.on("front", front.do(call))
    assert isinstance(offer, Offer)
    ended = End(call.id, offer.attempt, "done", 100, 10, call.terms.tenant, cached_tokens=CACHED)
    over = await world.on("worker", worker.do(ended))
    assert isinstance(over, Over)
    return over


async def change(world: World, front: Link, wanted: int) -> None:
    """Let an operator confirm the format."""
    store = world.store("operator")
    keeper = LogKeeper(store.log(SHARD), store, world.settings, SHARD, world.clock, world.ids)
    await world.on("front", use_format(front, [keeper], wanted))


async def entries(world: World) -> list[list[Any]]:
    """Return the fields of the log's entries, as they are written."""
    found = await world.store("reader").log(SHARD).read(0, 1000)
    texts = [data[1:] if data[:1] == b"j" else zlib.decompress(data[1:]) for data in found]
    return [json.loads(text) for text in texts]


async def charges(world: World) -> list[tuple[int, float]]:
    """Return the cached tokens and the charge of each end in the log."""
    found = await world.store("reader").log(SHARD).read(0, 1000)
    facts = [fact for data in found for fact in decode_entry(data).facts]
    return [(fact.cached_tokens, fact.served) for fact in facts if isinstance(fact, Ended)]


async def test_a_new_log_has_the_newest_format_and_charges_cached_tokens_a_tenth(world: World) -> None:
    front, worker = await running(world)
    await served(world, front, worker)
    assert {fields[0] for fields in await entries(world) if fields[6]} == {NEWEST}
    assert await charges(world) == [(CACHED, 20 + 0.1 * CACHED + 2 * 10)]


@pytest.mark.usefixtures("older_log")
async def test_an_older_log_keeps_its_format_until_an_operator_confirms_the_newer_one(world: World) -> None:
    front, worker = await running(world)
    await served(world, front, worker)
    ended = next(fact for fields in await entries(world) for fact in fields[6] if fact[0] == "e")
    assert {fields[0] for fields in await entries(world)} == {OLDEST}
    assert len(ended) == 10  # the letter, and the fields that an older version reads
    await change(world, front, NEWEST)
    await served(world, front, worker)
    assert (await entries(world))[-1][0] == NEWEST
    assert await charges(world) == [(0, 120.0), (CACHED, 48.0)]
    await change(world, front, NEWEST)  # nothing changes


@pytest.mark.usefixtures("older_log")
async def test_the_leader_refuses_a_format_that_a_connected_process_does_not_read(world: World) -> None:
    front, worker = await running(world)
    await served(world, front, worker)
    older = await world.on("old", connect(world.fleet("old"), world.gates["g1"].address))
    older.send(next(encode_frames([encode_message(Hello(1, "old-front", "client", ""))])))
    received = decode_frame(await older.receive())
    assert not any(isinstance(message, ReadsFormat) for message in received)  # it would not know this message
    with pytest.raises(ConfigurationError, match=r"do not read format 6: old-front\. Update them"):
        await change(world, front, NEWEST)
    readers = await world.on("front", front.readers())
    assert readers is not None
    assert ("old-front", "client", OLDEST) in readers
    older.close()
    await world.clock.sleep(1.0)
    await change(world, front, NEWEST)
    assert (await entries(world))[-1][0] == NEWEST


@pytest.mark.usefixtures("older_log")
async def test_the_log_goes_back_to_the_older_format_with_a_snapshot_that_older_processes_read(world: World) -> None:
    front, worker = await running(world)
    await served(world, front, worker)
    await change(world, front, NEWEST)
    await served(world, front, worker)
    await change(world, front, OLDEST)
    await served(world, front, worker)
    found = await entries(world)
    changed = max(place for place, fields in enumerate(found) if ["O", "bwfq"] in fields[6])
    assert {fields[0] for fields in found[changed:]} == {OLDEST}
    saved = await world.store("reader").log(SHARD).load_snapshot()
    assert saved is not None, "an older process begins with it"
    assert saved[0] > changed
    assert fields_of(saved[1])["format"] == OLDEST
    shard = (await world.folded()).shard
    fields = fields_of(dump(shard))
    assert fields["format"] == OLDEST
    assert {len(row) for row in fields["usage"]} == {8}  # tenant, application, hour, and the five totals of before
    assert load(dump(shard), world.settings).state.tenants.keys() == shard.state.tenants.keys()


async def test_a_format_that_this_version_does_not_write_is_refused(world: World) -> None:
    front, _ = await running(world)
    for wanted in (OLDEST - 1, NEWEST + 1):
        outcome = await world.on("front", front.do(UseFormat(wanted)))
        assert isinstance(outcome, Refused)
        assert outcome.code in ("unknown_format", "older_readers")


def test_a_command_for_an_older_leader_has_no_later_fields() -> None:
    command = End("p-1", 1, "done", 100, 10, cached_tokens=CACHED)
    (frame,) = encode_frames([encode_message(Do(1, 0.0, command), OLDEST)])
    assert len(json.loads(frame)[0][3]) == 11  # the letter, and ten fields
    (read,) = decode_frame(frame)
    assert read == Do(1, 0.0, command._replace(cached_tokens=0))


async def test_a_leader_of_an_older_version_gets_no_later_fields(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not say what it reads, also if it follows a newer one. (Here a newer leader keeps silent.)"""
    await start_gates(world, "g1", "g2")
    front, worker = world.link("front"), await start_worker(world, 4)
    await served(world, front, worker)
    monkeypatch.setattr("dispatcher.service.gate.leader.OLDEST", NEWEST)  # g2 greets as an older leader does
    world.network.hosts["g1"].kill()
    await world.clock.sleep(5.0)
    assert world.leaders == ["g2"]
    await served(world, front, worker)
    await served(world, front, worker)
    assert await charges(world) == [(CACHED, 48.0), (0, 120.0), (0, 120.0)]


def test_a_client_of_an_older_version_gets_rows_of_usage_that_it_knows() -> None:
    shard = LoneShard()
    shard.end(shard.call("a"))
    for reads, fields in ((OLDEST, 8), (NEWEST, 9)):
        ((*row,),) = json.loads(answer(shard.shard, "usage", ("", "0", "999999"), reads))
        assert len(row) == fields
        assert [found.tenant for found in read_usage(json.dumps([[*row, "later"]]))] == ["a"]


def test_what_a_later_version_adds_to_a_message_is_left_out() -> None:
    command = End("p-1", 1, "done", 100, 10)
    assert COMMANDS.unpack([*COMMANDS.pack(command), "later", 7]) == command


async def test_an_invented_next_version_that_only_adds_is_read(world: World) -> None:
    """Further fields of a fact, of an entry's head, of a snapshot's rows; further names; facts that may be skipped."""
    front, worker = await running(world)
    await served(world, front, worker)
    shard = (await world.folded()).shard
    position, at = shard.position, shard.at
    fact = ["T", "later", 1, 1.0, 0.0, 0.0, "standard", 10, [0.0, 0.0], "a further field"]
    entry = [NEWEST, position, at, "later:1", shard.leader, shard.epoch, [["?new", 1], fact], "of the head"]
    read = decode_entry(b"j" + json.dumps(entry).encode())
    assert [type(fact).__name__ for fact in read.facts] == ["TenantSet"]
    shard.fold(read)
    assert shard.state.tenants["later"].config.waiting_max == 10
    fields = fields_of(dump(shard))
    rows = {name: value for name, value in fields.items() if isinstance(value, list)}
    lines = [[name, [[*row, "further"] for row in value]] for name, value in rows.items()]
    values = {name: value for name, value in fields.items() if name not in rows} | {"new": 1}
    text = "\n".join(map(json.dumps, [values, *lines, ["new_rows", [[1]]]]))
    loaded = load(b"j" + text.encode(), world.settings)
    assert dump(loaded) == dump(shard)

"""The outbox: every report reaches the log, however long the gate is away and whoever is killed."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from dispatcher.model.commands import Command, Done, End, Outcome, Refused, Return
from dispatcher.model.errors import StoreUnavailable
from gpu_worker.service.executions.outbox import PAUSE_FIRST_S, PAUSE_MAX_S, TRY_S, Outbox
from gpu_worker.service.executions.outbox_journal import Journal
from tests.support.worker.harness import WorkerHarness, order
from tests.support.worker.outbox_process import PENDING
from tests.support.world.virtual_time import START, LoopClock, run

pytestmark = pytest.mark.virtual_time

END = End("i", 1, "done", 5, 3)
RETURN = Return("j", 2, "refused", "w")


@dataclass
class Gate:
    """Answers in turn; then it acknowledges everything."""

    answers: list[Outcome | Exception | float]
    """A float: no answer for so many seconds."""
    at: list[float] = field(default_factory=list)

    async def do(self, command: Command) -> Outcome:
        self.at.append(asyncio.get_running_loop().time() - START)
        answer = self.answers.pop(0) if self.answers else Done()
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            await asyncio.sleep(answer)
            return Done()
        return answer


def records(folder: Path) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in folder.iterdir())


def outbox(gate: Gate, journal: Journal | None = None) -> Outbox:
    return Outbox(gate, LoopClock(), Random(1), journal)


async def test_a_report_is_repeated_with_pauses_that_grow_to_a_bound() -> None:
    gate = Gate([StoreUnavailable()] * 100)
    assert await outbox(gate).post(END) == Done()
    pauses = [after - before for before, after in pairwise(gate.at)]
    assert len(gate.at) == 101
    assert PAUSE_FIRST_S / 2 <= pauses[0] <= PAUSE_FIRST_S
    assert all(PAUSE_MAX_S / 2 <= pause <= PAUSE_MAX_S for pause in pauses[10:])
    assert len({round(pause, 6) for pause in pauses[10:]}) > 50, "they are jittered"


async def test_a_refusal_is_no_acknowledgement_and_its_wait_is_kept() -> None:
    gate = Gate([Refused("i", "overloaded", "later", 30.0)])
    assert await outbox(gate).post(END) == Done()
    assert gate.at == [0.0, 30.0]


async def test_an_answer_that_does_not_come_is_waited_for_no_longer_than_stated() -> None:
    gate = Gate([10_000.0])
    assert await outbox(gate).post(END) == Done()
    assert TRY_S <= gate.at[1] <= TRY_S + PAUSE_FIRST_S


async def test_a_bug_of_the_link_loses_nothing_and_its_message_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert await outbox(Gate([RuntimeError("canary")])).post(END) == Done()
    assert "RuntimeError" in caplog.text
    assert "canary" not in caplog.text


async def test_attempts_are_live_until_the_log_has_them() -> None:
    box = outbox(Gate([StoreUnavailable()]))
    box.post(END)
    box.post(RETURN)
    assert box.live() == {"i#1", "j#2"}
    await box.flushed()
    assert box.live() == frozenset()


async def test_a_waiter_that_gives_up_does_not_end_the_delivery() -> None:
    gate = Gate([StoreUnavailable()])
    box = outbox(gate)
    waiter = asyncio.ensure_future(asyncio.wait({box.post(END)}))
    await asyncio.sleep(0.01)
    waiter.cancel()
    await box.flushed()
    assert len(gate.at) == 2


async def test_the_report_is_on_disk_before_the_gate_is_asked_and_gone_after(tmp_path: Path) -> None:
    seen: list[int] = []

    class Looking(Gate):
        async def do(self, command: Command) -> Outcome:
            seen.append(records(tmp_path))
            return await super().do(command)

    box = outbox(Looking([]), Journal(tmp_path, "w"))
    box.recover()
    await box.post(END)
    await asyncio.sleep(0)
    assert (seen, records(tmp_path)) == ([1], 0)


async def test_without_a_thread_for_the_sync_the_report_is_delivered_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "to_thread", fails)
    gate = Gate([StoreUnavailable()])
    box = outbox(gate, Journal(tmp_path, "w"))
    box.recover()
    assert await box.post(END) == Done()
    assert len(gate.at) == 2


async def test_a_report_is_synced_after_the_first_try_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[float] = []

    async def sync(_: Journal) -> None:
        syncs.append(asyncio.get_running_loop().time() - START)

    monkeypatch.setattr(Journal, "sync", sync)
    box = outbox(Gate([Done(), StoreUnavailable()]), Journal(tmp_path, "w"))
    box.recover()
    await box.post(END)
    assert not syncs
    await box.post(RETURN)
    assert syncs == [0.0]


def test_what_is_not_acknowledged_at_the_end_is_delivered_by_the_next_process(tmp_path: Path) -> None:
    async def before() -> None:
        box = outbox(Gate([StoreUnavailable()] * 1000), Journal(tmp_path, "w"))
        box.recover()
        box.post(END)
        await asyncio.sleep(10)
        await box.close()

    async def after() -> WorkerHarness:
        harness = WorkerHarness(journal=Journal(tmp_path, "w"))
        harness.gate.offer("i")
        harness.executions.recover()
        assert harness.executions.live() == {"i#1"}
        reply = await harness.call(order()).finished()
        assert reply.status == 409, "the recovered attempt does not begin again"
        await harness.executions.idle()
        await harness.outbox.close()
        return harness

    run(before())
    assert run(after()).gate.ended == [END]
    assert list(tmp_path.iterdir()) == []


def test_a_process_killed_between_write_and_acknowledgement_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.worker.outbox_process", str(tmp_path)]
    with subprocess.Popen([*command, "away"], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "posted\n"
        killed.send_signal(signal.SIGKILL)
    delivered = subprocess.run([*command, "back"], check=True, capture_output=True, text=True).stdout
    assert [End(*json.loads(line)) for line in delivered.splitlines()] == [PENDING]
    assert list(tmp_path.iterdir()) == []

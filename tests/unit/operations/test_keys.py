"""A key whose call ended with a retryable error is tried again as often as its caller asks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatcher.model.answers import Collected, error_body
from dispatcher.model.errors import AnsweredError, Preempted, Refused, TenantError, WorkerFailed
from dispatcher.model.kept import StoredAnswer
from dispatcher.operations.calls import results
from dispatcher.operations.calls.results import is_retryable, last_try, numbered
from tests.support.world.memory_gate import Gate
from tests.support.world.story import answered_again, followed
from tests.support.world.worker_client import SHED


async def shed(gate: Gate, times: int) -> None:
    gate.workers.acts.extend([SHED] * times)
    for _ in range(times):
        assert isinstance(await followed(gate, "a", "k"), Refused)


async def test_a_key_that_was_refused_often_is_served_once_there_is_room(gate: Gate) -> None:
    await shed(gate, 40)
    assert isinstance(await followed(gate, "a", "k"), Collected)
    number, last = await last_try(gate.context, "a", "k")
    assert number == 40
    assert last is not None
    assert last.answer is not None
    assert last.answer.outcome == "done"


async def test_one_key_cannot_be_shed_without_end(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "TRIES_PER_KEY_MAX", 5)
    await shed(gate, 5)
    with pytest.raises(TenantError) as caught:
        await answered_again(gate, "a", "k")
    assert (caught.value.status, caught.value.retry_after_s) == (429, 7.0)


async def test_the_last_try_is_found_with_few_reads(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    await shed(gate, 1)
    first = await gate.context.store.find("a", "k")
    assert first is not None
    tries = {"k": first}
    reads: list[str] = []

    async def find(_tenant: str, key: str) -> object:
        reads.append(key)
        return tries.get(key)

    monkeypatch.setattr(gate.context.store, "find", find, raising=False)
    for number in range(1, 300):
        reads.clear()
        assert (await last_try(gate.context, "a", "k"))[0] == number - 1
        assert len(reads) <= 2 * number.bit_length() + 2
        tries[numbered("k", number)] = replace(first, id=f"a-{number}")
    running = tries[numbered("k", 299)] = replace(first, answer=None)
    assert await last_try(gate.context, "a", "k") == (299, running)


@pytest.mark.parametrize(("error", "expected"), [(Preempted("later", "preempted", 1.0), True), (WorkerFailed(), False)])
def test_an_error_with_a_time_to_wait_invites_a_new_try(error: AnsweredError, expected: bool) -> None:
    assert is_retryable(StoredAnswer("failed", 1, 0, 0, error_body(error), 0.0)) is expected


def test_an_end_without_a_kept_answer_invites_no_new_try() -> None:
    assert not is_retryable(StoredAnswer("failed", 1, 0, 0, "", 0.0))

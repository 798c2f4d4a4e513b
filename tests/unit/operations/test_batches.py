"""Batches: every line gets one result, a bad line fails alone, and the lines leave other requests their places."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from dispatcher.model.batches import Batch, UnknownFile
from dispatcher.model.commands import Accept
from dispatcher.model.errors import InvalidRequest, Refused, RequestTooLarge
from dispatcher.operations.batches import answer_line as answering
from dispatcher.operations.batches import create as creating
from dispatcher.operations.batches import lines as reading
from dispatcher.operations.batches.answer_line import due_at_of
from dispatcher.operations.batches.create import cancel, create
from dispatcher.operations.files import delete, file_of, upload
from dispatcher.operations.responses import read_response
from dispatcher.responses.request import UnknownResponse
from tests.support.world.memory_gate import CHAT, Gate
from tests.support.world.story import (
    RESPONSES,
    batch_gate,
    batch_process,
    begun,
    ended,
    errors,
    followed,
    jsonl,
    line,
    output,
    parts_of,
    played,
    response_line,
    runner,
    started,
)
from tests.support.world.worker_client import Act

HOUR_S = 3600.0


@pytest.fixture
async def gate() -> Any:
    made = await batch_gate()
    yield made
    await made.at_rest()


def ids(found: list[dict[str, Any]]) -> list[str | None]:
    return [each["custom_id"] for each in found]


def accepts(gate: Gate) -> list[Accept]:
    return [command for command in gate.shard.commands if isinstance(command, Accept)]


async def test_each_line_is_answered_in_the_order_of_the_file(gate: Gate) -> None:
    over = await played(gate, *(line(f"r{number}") for number in range(150)))
    assert (over.status, over.total, over.completed, over.failed) == ("completed", 150, 150, 0)
    assert (over.input_tokens, over.output_tokens, over.error_file_id) == (1500, 450, "")
    found = await output(gate, over)
    assert ids(found) == [f"r{number}" for number in range(150)]
    first = found[0]
    assert first["error"] is None
    assert first["response"]["status_code"] == 200
    assert first["response"]["body"]["choices"][0]["message"]["content"] == "xxx"
    assert first["response"]["body"]["id"] == f"chatcmpl-{first['response']['request_id']}"
    assert set(over.times) == {"in_progress", "finalizing", "completed"}
    assert gate.spent("a") == 150 * (10 + 2 * 3)
    assert len(gate.context.files.blobs) == 2, "the parts are deleted"  # type: ignore[union-attr]


async def test_a_bad_line_fails_alone(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LINE_BYTES_MAX", 2_500)
    bad = [
        b"{not json",
        {"method": "POST", "url": CHAT, "body": line("x")["body"]},
        {**line("wrong url"), "url": "/v1/completions"},
        {**line("get"), "method": "GET"},
        {**line("no object"), "body": 7},
        line("stream", stream=True),
        line("unknown field", surprise=1),
        line("unknown model", model="other"),
        line("own class", metadata={"headgate_slo_class": "normal"}),
        line("x" * 3_000),
        b'["a list"]',
        {**line("extra"), "priority": 1},
    ]
    over = await played(gate, line("first"), *bad, b"", b"  \r", line("last", metadata={"headgate_slo_class": "night"}))
    assert (over.status, over.total, over.completed, over.failed) == ("completed", 14, 2, 12)
    assert ids(await output(gate, over)) == ["first", "last"]
    wrong = await errors(gate, over)
    assert ids(wrong) == [
        None, None, "wrong url", "get", "no object", "stream", "unknown field", "unknown model", "own class", None,
        None, "extra",
    ]  # fmt: skip
    told = [each["response"]["body"]["error"] for each in wrong]
    assert [each["response"]["status_code"] for each in wrong] == [400] * 7 + [404, 400, 413, 400, 400]
    assert told[0]["message"].startswith("Line 2: ")
    assert [each["param"] for each in told[1:4]] == ["custom_id", "url", "method"]
    assert told[7]["code"] == "model_not_found"


async def test_lines_may_be_requests_for_responses(gate: Gate) -> None:
    over = await played(gate, response_line("kept"), response_line("not kept", store=False), endpoint=RESPONSES)
    assert (over.completed, over.failed, over.input_tokens, over.output_tokens) == (2, 0, 20, 6)
    kept, passed = [each["response"]["body"] for each in await output(gate, over)]
    for body in (kept, passed):
        assert (body["object"], body["status"]) == ("response", "incomplete"), "max_output_tokens was reached"
        assert body["output"][0]["content"][0]["text"] == "xxx"
    assert (kept["store"], passed["store"]) == (True, False)
    assert (await read_response(gate.context, "a", kept["id"])).response == kept
    with pytest.raises(UnknownResponse):
        await read_response(gate.context, "a", passed["id"])
    over = await played(gate, response_line("more", previous_response_id=kept["id"]), endpoint=RESPONSES)
    assert (await output(gate, over))[0]["response"]["body"]["previous_response_id"] == kept["id"]
    messages = gate.workers.orders[-1][1].body["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant", "user"]
    assert gate.spent("a") == 3 * (10 + 2 * 3)


async def test_a_bad_response_fails_alone_and_names_its_own_fields(gate: Gate) -> None:
    bad = [
        response_line("stream", stream=True),
        response_line("unknown", previous_response_id="resp_" + "0" * 32),
        response_line("tools", tools=[{"type": "web_search"}]),
        response_line("long", max_output_tokens=10**9),
        line("a chat"),
    ]
    over = await played(gate, *bad, response_line("good"), endpoint=RESPONSES)
    assert (over.completed, over.failed) == (1, 5)
    told = [each["response"]["body"]["error"] for each in await errors(gate, over)]
    assert [each["param"] for each in told] == [
        "stream", "previous_response_id", "tools.0.type", "max_output_tokens", "url",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "code", "at"),
    [
        (b"", "empty_file", None),
        (b"\n \n\r\n", "empty_file", None),
        (jsonl(line("a"), line("b"), line("a")), "duplicate_custom_id", 3),
        (jsonl(*[line(str(number)) for number in range(5)]), "too_many_requests", None),
    ],
)
async def test_a_file_that_cannot_be_a_batch_fails_as_a_whole(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, content: bytes, code: str, at: int | None
) -> None:
    monkeypatch.setattr(reading, "LINES_MAX", 4)
    over = await played(gate, content.removesuffix(b"\n"))
    assert (over.status, over.output_file_id, over.error_file_id) == ("failed", "", "")
    assert [(each["code"], each["line"]) for each in over.errors] == [(code, at)]
    assert over.body()["errors"]["data"][0]["message"]
    assert accepts(gate) == []


async def test_lines_are_deferred_and_due_in_the_second_half_of_the_window(gate: Gate) -> None:
    batch = await started(gate, line("a"), line("b"), line("c"), line("d"), window="8h")
    async with runner(gate):
        await ended(gate, batch)
    found = [each.terms for each in accepts(gate)]
    assert [(each.deferred, each.slo_class, each.durable) for each in found] == [(True, "night", True)] * 4
    due = [each.due_at - batch.created_at for each in found]
    assert due == pytest.approx([5 * HOUR_S, 6 * HOUR_S, 7 * HOUR_S, 8 * HOUR_S])
    assert all(order.terms.deferred for _, order in gate.workers.orders)


async def test_a_chat_goes_before_all_lines_that_wait(gate: Gate) -> None:
    batch = await started(gate, *(line(f"r{number}", 100) for number in range(40)))
    async with runner(gate):
        await gate.clock.sleep(30.0)
        answered = sum(not order.terms.deferred for _, order in gate.workers.orders)
        assert answered == 0
        before = len(gate.workers.orders)
        await followed(gate, "b")
        later = [order for _, order in gate.workers.orders[before:]]
        assert not later[0].terms.deferred, "the next slot that was free"
        await ended(gate, batch)


async def test_lines_wait_for_a_worker_longer_than_a_request_may(gate: Gate) -> None:
    """The two slots are taken for an hour; the deadline of a call is 300 s."""
    gate.workers.acts.extend([Act(token_s=100.0)] * 2)
    batch_process(gate, deadline_s=7200.0)
    busy = [begun(gate, "b", context=gate.contexts[1], max_tokens=36, deadline_s=7200.0) for _ in range(2)]
    batch = await started(gate, line("a"), line("b"))
    async with runner(gate):
        await gate.clock.sleep(1800.0)
        found = await gate.store.batch("a", batch.id)
        assert found is not None
        assert (found.status, found.completed) == ("in_progress", 0)
        over = await ended(gate, batch)
    await asyncio.gather(*busy)
    assert (over.status, over.completed) == ("completed", 2)
    assert gate.spent("a") == 2 * (10 + 2 * 3)


async def test_an_answer_that_takes_longer_than_the_deadline_fails_its_line(gate: Gate) -> None:
    gate.workers.acts.extend([Act(token_s=200.0)] * 3)
    over = await played(gate, line("slow"))
    assert (over.status, over.completed, over.failed) == ("completed", 0, 1)
    assert (await errors(gate, over))[0]["response"]["body"]["error"]["code"] == "deadline_exceeded"


async def test_a_cancelled_batch_keeps_the_answers_that_it_has(gate: Gate) -> None:
    batch = await started(gate, *(line(f"r{number}", 100) for number in range(80)))
    async with runner(gate):
        await gate.clock.sleep(35.0)
        assert (await cancel(gate.context, "a", batch.id)).status == "cancelling"
        assert (await cancel(gate.context, "a", batch.id)).status == "cancelling"
        over = await ended(gate, batch)
    with pytest.raises(InvalidRequest, match="has ended: it is cancelled"):
        await cancel(gate.context, "a", batch.id)
    found, left = await output(gate, over), await errors(gate, over)
    assert (over.status, over.completed, over.failed) == ("cancelled", len(found), 0)
    assert 4 <= len(found) <= 10
    assert ids(found) + ids(left) == [f"r{number}" for number in range(80)]
    assert {each["error"]["code"] for each in left} == {"batch_cancelled"}
    assert {"cancelling", "cancelled"} <= set(over.times)
    assert gate.spent("a") == len(found) * (10 + 2 * 100)


async def test_a_batch_that_waits_is_cancelled_at_once(gate: Gate) -> None:
    batch = await started(gate, line("a"))
    assert (await cancel(gate.context, "a", batch.id)).status == "cancelled"
    async with runner(gate):
        assert (await ended(gate, batch)).status == "cancelled"
    assert accepts(gate) == []


async def test_a_batch_expires_with_the_answers_that_it_has(gate: Gate) -> None:
    gate.workers.acts.extend([Act(token_s=12.0)] * 500)
    batch = await started(gate, *(line(f"r{number}", 10) for number in range(80)), window="1h")
    async with runner(gate):
        over = await ended(gate, batch)
    found, left = await output(gate, over), await errors(gate, over)
    assert (over.status, over.completed) == ("expired", len(found))
    assert 58 <= len(found) <= 62, "two slots, 120 s for each line"
    assert sorted(map(str, ids(found) + ids(left))) == sorted(f"r{number}" for number in range(80))
    assert {each["error"]["code"] for each in left} == {"batch_expired"}
    assert over.times["expired"] - batch.created_at < HOUR_S + 400.0


async def test_another_process_continues_after_the_first_one_stops(gate: Gate) -> None:
    other = batch_process(gate)
    batch = await started(gate, *(line(f"r{number}", 20) for number in range(120)))
    for context in (gate.context, other, gate.context, other):
        async with runner(gate, context):
            await gate.clock.sleep(24.0)
    async with runner(gate):
        over = await ended(gate, batch)
    assert (over.status, over.completed) == ("completed", 120)
    assert ids(await output(gate, over)) == [f"r{number}" for number in range(120)]
    assert gate.spent("a") == 120 * (10 + 2 * 20), "each line is charged once"


async def test_two_runners_share_the_batches_and_never_run_one_together(gate: Gate) -> None:
    other = batch_process(gate)
    own = await started(gate, *(line(f"r{number}") for number in range(60)))
    others = await started(gate, *(line(f"r{number}") for number in range(60)), tenant="b")
    async with runner(gate), runner(gate, other):
        over = [await ended(gate, batch) for batch in (own, others)]
    assert [(each.status, each.completed) for each in over] == [("completed", 60)] * 2
    assert Counter(each.terms.tenant for each in accepts(gate)) == {"a": 60, "b": 60}


async def test_the_batches_of_a_tenant_run_one_after_another(gate: Gate) -> None:
    first, second = [await started(gate, *(line(f"r{number}") for number in range(20))) for _ in range(2)]
    async with runner(gate):
        over = [await ended(gate, batch) for batch in (first, second)]
    assert over[0].times["completed"] <= over[1].times["in_progress"]


async def test_a_batch_without_its_file_fails(gate: Gate) -> None:
    lost = await started(gate, line("a"))
    await delete(gate.context, "a", lost.input_file_id)
    async with runner(gate):
        over = await ended(gate, lost)
    assert (over.status, over.errors[0]["code"]) == ("failed", "not_found")


async def test_a_batch_without_its_tenant_ends_with_all_that_is_kept_for_it(gate: Gate) -> None:
    orphan = await started(gate, line("a"), tenant="b")
    await gate.store.delete_tenant("b")
    other = batch_process(gate)  # its memory of tenants is empty
    async with runner(gate, other):
        await gate.clock.sleep(5.0)
    assert await gate.store.batch("b", orphan.id) is None
    assert await gate.store.files("b") == []
    assert list(await gate.store.open_batches(gate.context.batch_queue)) == []
    assert not [name for name in gate.context.files.blobs if name.startswith("b/")]  # type: ignore[union-attr]
    assert not accepts(gate)


async def test_a_batch_of_a_deleted_tenant_ends_its_running_lines_whole(gate: Gate) -> None:
    batch = await started(gate, *(line(f"r{number}", 100) for number in range(200)))
    async with runner(gate):
        await gate.clock.sleep(5.0)
        await gate.store.delete_tenant("a")
        await gate.clock.sleep(60.0)
        assert await gate.store.batch("a", batch.id) is None
    assert gate.context.files.blobs == {}  # type: ignore[union-attr]
    assert 0 < len(gate.ends("done")) < 200
    assert not gate.ends("failed"), "no running line was cut off"
    assert gate.spent("a") == len(gate.ends("done")) * (10 + 2 * 100)


async def test_a_tenant_that_changes_meanwhile_changes_its_batch(gate: Gate) -> None:
    batch = await started(gate, *(line(f"r{number}", 100) for number in range(60)))
    tenant = await gate.store.get_tenant("a")
    assert tenant is not None
    async with runner(gate):
        await gate.clock.sleep(30.0)
        await gate.store.put_tenant(replace(tenant, max_tokens_max=50, version=2), expected_version=1)
        over = await ended(gate, batch)
    assert over.status == "completed"
    assert over.completed + over.failed == 60
    assert 6 <= over.completed <= 40
    refused = {each["response"]["body"]["error"]["param"] for each in await errors(gate, over)}
    assert refused == {"max_tokens"}


async def test_an_error_of_ours_fails_one_line_only(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(batch: Batch, number: int) -> float:
        if number == 1:
            raise RuntimeError("not to be told")
        return due_at_of(batch, number)

    monkeypatch.setattr(answering, "due_at_of", broken)
    over = await played(gate, line("a"), line("b"), line("c"))
    assert (over.status, ids(await output(gate, over))) == ("completed", ["a", "c"])
    (wrong,) = await errors(gate, over)
    assert (wrong["custom_id"], wrong["response"]["status_code"]) == ("b", 500)
    assert "not to be told" not in str(wrong)


async def test_a_batch_needs_a_file_of_its_tenant(gate: Gate) -> None:
    a, b = [await gate.store.get_tenant(name) for name in ("a", "b")]
    assert a is not None
    assert b is not None
    record = await upload(gate.context, "a", "f", parts_of(jsonl(line("a"))))
    body: dict[str, Any] = {"input_file_id": record.id, "endpoint": CHAT, "completion_window": "24h"}
    with pytest.raises(UnknownFile):
        await create(gate.context, b, body)
    for wrong in ({"endpoint": "/v1/images"}, {"completion_window": "25h"}, {"completion_window": "0h"}, {"x": 1}):
        with pytest.raises(InvalidRequest):
            await create(gate.context, a, body | wrong)
    batch = await create(gate.context, a, body | {"metadata": {"k": "v"}})
    async with runner(gate):
        over = await ended(gate, batch)
    assert over.body()["metadata"] == {"k": "v"}
    with pytest.raises(InvalidRequest, match="purpose batch_output"):
        await create(gate.context, a, body | {"input_file_id": over.output_file_id})


async def test_files_and_batches_are_bounded(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    small = batch_process(gate, file_bytes_max=10, files_bytes_max=25)
    with pytest.raises(RequestTooLarge, match="at most 10 bytes"):
        await upload(small, "a", "f", parts_of(b"x" * 11))
    for _ in range(2):
        await upload(small, "a", "f", parts_of(b"x" * 10))
    with pytest.raises(RequestTooLarge, match="5 bytes more"):
        await upload(small, "a", "f", parts_of(b"x" * 6))
    await upload(small, "b", "f", parts_of(b"x" * 10))
    monkeypatch.setattr(creating, "OPEN_MAX", 1)
    await started(gate, line("a"), tenant="b")
    with pytest.raises(Refused, match="that is the most"):
        await started(gate, line("a"), tenant="b")
    with pytest.raises(UnknownFile):
        await file_of(gate.context, "a", "file-unknown")

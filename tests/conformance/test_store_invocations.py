"""Durable invocations: created once under a key, answered once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from dispatcher.model.errors import RequestTooLarge
from dispatcher.model.requests import Endpoint
from dispatcher.ports import Store
from dispatcher.stores.layout import INVOCATION_KEEP_S, TEXT_BYTES_MAX
from tests.conformance.store_world import FakeClock, answer, invocation

LONG_KEY = "#é\n\U0001f600" * 5000


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"endpoint": Endpoint.COMPLETION, "body": ""},
        {"created_at": 0.1, "deadline_at": 1e9 / 3 + 1e9},
        {"trace": "00-a"},
    ],
)
async def test_an_invocation_is_read_as_it_was_written(store: Store, more: dict[str, Any]) -> None:
    new = invocation(**more)
    assert await store.create(new) == new
    assert await store.get(new.id) == new
    assert await store.find(new.tenant, new.key) == new


async def test_unknown_names_are_none(store: Store) -> None:
    assert await store.get("p-0") is None
    assert await store.find("a", "k") is None
    assert await store.answer("p-0", answer()) is None


async def test_a_second_invocation_under_a_key_is_the_first(store: Store) -> None:
    first = await store.create(invocation("p-0"))
    assert await store.create(invocation("p-1", body="other", fingerprint="other")) == first
    assert await store.create(first) == first
    assert await store.get("p-1") is None
    answered = await store.answer("p-0", answer())
    assert await store.create(invocation("p-2")) == replace(first, body=None, answer=answered)


async def test_another_tenants_key_is_not_found(store: Store) -> None:
    first = await store.create(invocation("p-0", "a", "k"))
    assert await store.find("b", "k") is None
    assert await store.find("a", "K") is None
    second = invocation("p-1", "b", "k")
    assert await store.create(second) == second
    assert await store.find("a", "k") == first


@pytest.mark.parametrize("key", [LONG_KEY, " ", "a#b", "\0"])
async def test_a_key_may_be_any_text(store: Store, key: str) -> None:
    new = await store.create(invocation(key=key))
    assert await store.create(invocation("p-1", key=key)) == new
    assert await store.find("a", key) == new


async def test_invocations_without_a_key_are_not_each_others(store: Store) -> None:
    for name in ("p-0", "p-1"):
        assert await store.create(invocation(name, key="")) == invocation(name, key="")
    assert await store.find("a", "") is None


async def test_an_invocation_is_answered_once(store: Store) -> None:
    await store.create(invocation())
    first = answer("é", output_tokens=7)
    assert await store.answer("p-0", first) == first
    assert await store.answer("p-0", answer("second", outcome="failed", attempt=2)) == first
    assert await store.answer("p-0", first) == first
    assert await store.get("p-0") == replace(invocation(), body=None, answer=first)
    assert await store.find("a", "k") == replace(invocation(), body=None, answer=first)


async def test_a_refusal_is_kept_unless_the_invocation_is_shared_or_answered(store: Store) -> None:
    refusal, done = answer("refused", outcome="failed", attempt=0), answer("done")
    for name in ("p-0", "p-1", "p-2"):
        await store.create(invocation(name, key=name))
    assert await store.refuse("p-0", refusal) == refusal
    assert await store.answer("p-0", done) == refusal
    assert await store.answer("p-1", done) == done
    assert await store.refuse("p-1", refusal) == done
    shared = await store.share("p-2")
    assert shared == replace(invocation("p-2", key="p-2"), shared=True)
    assert await store.share("p-2") == shared
    assert await store.refuse("p-2", refusal) is None
    assert await store.get("p-2") == await store.find("a", "p-2") == shared
    assert await store.create(invocation("p-3", key="p-2")) == shared
    assert await store.answer("p-2", done) == done
    assert await store.refuse("p-2", refusal) == done
    assert await store.get("p-2") == replace(shared, body=None, answer=done)


async def test_an_answered_invocation_is_not_shared_any_more(store: Store) -> None:
    new = await store.create(invocation())
    refusal = await store.refuse("p-0", answer("refused", outcome="failed", attempt=0))
    assert await store.share("p-0") == await store.get("p-0") == replace(new, body=None, answer=refusal)
    assert await store.share("p-1") is None
    assert await store.refuse("p-1", answer()) is None


async def test_one_of_many_creators_wins(stores: list[Store]) -> None:
    calls = [stores[number % 3].create(invocation(f"p-{number}", body=f"{number}")) for number in range(12)]
    outcomes = await asyncio.gather(*calls)
    assert len(set(outcomes)) == 1
    assert await stores[0].get(outcomes[0].id) == outcomes[0]
    assert await stores[0].find("a", "k") == outcomes[0]
    answers = [stores[number % 3].answer(outcomes[0].id, answer(f"{number}")) for number in range(12)]
    assert len(set(await asyncio.gather(*answers))) == 1


async def test_a_body_at_the_limit_is_kept_and_one_above_it_refused(store: Store) -> None:
    largest = invocation(body="é" * (TEXT_BYTES_MAX // 2))
    assert await store.create(largest) == largest
    assert await store.get("p-0") == largest
    with pytest.raises(RequestTooLarge, match=f"at most {TEXT_BYTES_MAX} bytes"):
        await store.create(invocation("p-1", key="k1", body="é" * (TEXT_BYTES_MAX // 2) + "x"))
    assert await store.find("a", "k1") is None


async def test_an_answer_above_the_limit_becomes_an_error_that_says_so(store: Store) -> None:
    for name, size in (("p-0", TEXT_BYTES_MAX), ("p-1", TEXT_BYTES_MAX + 1)):
        await store.create(invocation(name, key=name, body="x" * TEXT_BYTES_MAX))
        await store.answer(name, answer("x" * size))
    kept, replaced = await store.get("p-0"), await store.get("p-1")
    assert kept is not None
    assert kept.answer == answer("x" * TEXT_BYTES_MAX)
    assert replaced is not None
    assert replaced.answer is not None
    assert replaced.answer.outcome == "failed"
    assert "result_too_large" in replaced.answer.body
    assert replaced.answer.output_tokens == answer().output_tokens


async def test_an_invocation_and_its_key_are_forgotten_together(store: Store, clock: FakeClock) -> None:
    new = await store.create(invocation())
    await store.answer("p-0", answer())
    clock.time = new.deadline_at + INVOCATION_KEEP_S - 1
    assert await store.find("a", "k") is not None
    clock.time += 1
    assert await store.get("p-0") is None
    assert await store.find("a", "k") is None
    assert await store.answer("p-0", answer()) is None
    assert await store.share("p-0") is None
    assert await store.refuse("p-0", answer()) is None
    again = invocation("p-1", deadline_at=clock.time + 100)
    assert await store.create(again) == again
    assert await store.find("a", "k") == again

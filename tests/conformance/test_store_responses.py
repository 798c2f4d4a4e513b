"""Kept responses: each belongs to one tenant, expires, and counts towards the tenant's limit."""

from __future__ import annotations

import pytest

from dispatcher.model.kept import CONTENT_BYTES_MAX
from dispatcher.model.usage import HOUR_S
from dispatcher.ports import Store
from tests.conformance.store_world import START, FakeClock, kept_response

PLENTY = 10 * CONTENT_BYTES_MAX
HUNDRED = b"x" * 100


@pytest.mark.parametrize("size", [0, 1, 350_000, 350_001, CONTENT_BYTES_MAX])
async def test_a_response_is_read_as_it_was_kept(store: Store, size: int) -> None:
    new = kept_response(content=(b"\x00\xff\n" * size)[:size])
    assert await store.keep_response(new, PLENTY)
    assert await store.response("a", new.id) == new


async def test_a_response_belongs_to_its_tenant(store: Store) -> None:
    await store.keep_response(kept_response(), PLENTY)
    for tenant, response_id in (("b", "resp_p-0"), ("a", "resp_p-1"), ("a", ""), ("a", "resp_p-0#0000"), ("", "a")):
        assert await store.response(tenant, response_id) is None
        assert not await store.delete_response(tenant, response_id)
    own = kept_response(tenant="b", content=b"of b")
    assert await store.keep_response(own, PLENTY)
    assert await store.response("b", own.id) == own
    assert await store.response("a", own.id) == kept_response()


@pytest.mark.parametrize("size", [10, 900_000])
async def test_a_response_is_replaced_as_a_whole(store: Store, size: int) -> None:
    await store.keep_response(kept_response(content=b"x" * 800_000), PLENTY)
    new = kept_response(content=b"y" * size, expires_at=kept_response().expires_at + 1)
    assert await store.keep_response(new, PLENTY)
    assert await store.response("a", new.id) == new


@pytest.mark.parametrize("size", [10, 800_000])
async def test_a_deleted_response_is_gone_and_can_be_kept_again(store: Store, size: int) -> None:
    new = kept_response(content=b"x" * size)
    await store.keep_response(new, PLENTY)
    assert await store.delete_response("a", new.id)
    assert await store.response("a", new.id) is None
    assert not await store.delete_response("a", new.id)
    assert await store.keep_response(new, PLENTY)
    assert await store.response("a", new.id) == new


async def test_a_response_expires(store: Store, clock: FakeClock) -> None:
    new = kept_response()
    await store.keep_response(new, PLENTY)
    clock.time = new.expires_at - 1
    assert await store.response("a", new.id) == new
    clock.time += 1
    assert await store.response("a", new.id) is None
    assert not await store.delete_response("a", new.id)


async def test_a_tenant_keeps_no_more_than_its_limit(store: Store, clock: FakeClock) -> None:
    responses = [kept_response(f"resp_p-{number}", content=HUNDRED) for number in range(4)]
    assert [await store.keep_response(each, 250) for each in responses] == [True, True, False, False]
    assert await store.response("a", "resp_p-2") is None
    assert await store.keep_response(kept_response(tenant="b", content=HUNDRED), 250)
    await store.delete_response("a", "resp_p-0")
    assert [await store.keep_response(each, 250) for each in responses[2:]] == [True, False]
    clock.time = START + HOUR_S
    later = [kept_response(f"resp_q-{number}", content=HUNDRED, expires_at=clock.time + 50) for number in range(3)]
    assert [await store.keep_response(each, 250) for each in later] == [True, True, False]


async def test_a_response_of_the_whole_limit_is_kept_and_a_byte_more_is_not(store: Store) -> None:
    assert not await store.keep_response(kept_response(content=HUNDRED), 99)
    assert await store.keep_response(kept_response(content=HUNDRED), 100)


async def test_a_replaced_response_gives_its_space_back(store: Store) -> None:
    for size in (100, 60, 100):
        assert await store.keep_response(kept_response(content=b"x" * size), 200)
    assert await store.keep_response(kept_response("resp_p-1", content=HUNDRED), 200)
    assert not await store.keep_response(kept_response("resp_p-2", content=b"x"), 200)

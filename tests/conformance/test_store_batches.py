"""Records of files and batches: each belongs to one tenant and expires, and no change of a batch is lost."""

from __future__ import annotations

from dataclasses import replace

from dispatcher.model.batches import IN_PROGRESS
from dispatcher.ports import Store
from tests.conformance.store_world import EXPIRES_AT, START, FakeClock, batch, file


async def test_records_are_read_as_they_were_written(store: Store) -> None:
    await store.put_file(file())
    assert await store.file("a", "file-0") == file()
    full = replace(
        batch(), status=IN_PROGRESS, runner="r", claimed_until=START + 1 / 3, total=7, completed=3, failed=1,
        input_tokens=11, output_tokens=12, next_line=4, next_byte=4096, parts=("a/p-0", "a/p-1"),
        output_file_id="file-2", error_file_id="file-3", errors=({"code": "c", "param": None, "line": 2},),
        times={"in_progress": START + 2 / 3},
    )  # fmt: skip
    await store.create_batch(full)
    assert await store.batch("a", "batch_0") == full


async def test_records_belong_to_their_tenant(store: Store) -> None:
    await store.put_file(file())
    await store.create_batch(batch())
    for tenant in ("b", "", "a#"):
        assert await store.file(tenant, "file-0") is None
        assert await store.files(tenant) == []
        assert not await store.delete_file(tenant, "file-0")
        assert await store.batch(tenant, "batch_0") is None
        assert await store.batches(tenant) == []
        assert not await store.replace_batch(replace(batch(tenant=tenant or "x"), version=2), 1)
    assert await store.file("a", "") is None
    assert await store.batch("a", "") is None
    assert await store.file("a", "file-0") == file()
    assert await store.batch("a", "batch_0") == batch()


async def test_lists_begin_with_the_newest(store: Store) -> None:
    for number in (1, 0, 2):
        await store.put_file(file(number))
        await store.create_batch(batch(number))
    assert await store.files("a") == [file(2), file(1), file(0)]
    assert await store.batches("a") == [batch(2), batch(1), batch(0)]


async def test_a_deleted_file_is_gone(store: Store) -> None:
    await store.put_file(file())
    assert await store.delete_file("a", "file-0")
    assert await store.file("a", "file-0") is None
    assert await store.files("a") == []
    assert not await store.delete_file("a", "file-0")


async def test_records_expire(store: Store, clock: FakeClock) -> None:
    await store.put_file(file())
    await store.create_batch(batch())
    clock.time = EXPIRES_AT - 1
    assert await store.file("a", "file-0") == file()
    assert await store.batch("a", "batch_0") == batch()
    clock.time = EXPIRES_AT
    assert await store.file("a", "file-0") is None
    assert await store.files("a") == []
    assert not await store.delete_file("a", "file-0")
    assert await store.batch("a", "batch_0") is None
    assert await store.batches("a") == []
    assert not await store.replace_batch(replace(batch(), version=2), 1)


async def test_a_change_of_an_old_version_is_refused(store: Store) -> None:
    await store.create_batch(batch())
    first, second = replace(batch(), version=2, runner="x"), replace(batch(), version=2, runner="y")
    assert await store.replace_batch(first, 1)
    assert not await store.replace_batch(second, 1)
    assert await store.batch("a", "batch_0") == first
    assert await store.replace_batch(replace(second, version=3), 2)
    assert not await store.replace_batch(replace(batch(5), version=2), 1), "a batch that does not exist"


async def test_a_batch_is_open_until_it_is_retired(store: Store) -> None:
    for each in (batch(2), batch(1, tenant="b"), batch(3, pool="other")):
        await store.create_batch(each)
    assert await store.open_batches("default") == [("b", "batch_1"), ("a", "batch_2")]
    assert await store.replace_batch(replace(batch(2), version=2, status="completed"), 1)
    assert await store.open_batches("default") == [("b", "batch_1"), ("a", "batch_2")]
    await store.retire_batch(batch(2))
    await store.retire_batch(batch(2))
    assert await store.open_batches("default") == [("b", "batch_1")]
    assert await store.open_batches("other") == [("a", "batch_3")]
    assert await store.batch("a", "batch_2") == replace(batch(2), version=2, status="completed")

"""Mailboxes: news above a position, oldest first, none lost and none twice."""

from __future__ import annotations

from dispatcher.ports import Store
from dispatcher.stores.layout import MAILBOX_KEEP_S
from tests.conformance.store_world import FakeClock


async def test_news_is_read_above_a_position_and_oldest_first(store: Store) -> None:
    box = store.mailboxes
    for position in (10, 9, 100):
        await box.put("p", position, [b"%d" % position])
    assert list(await box.read("p", -1)) == [(9, b"9"), (10, b"10"), (100, b"100")]
    assert list(await box.read("p", 9)) == [(10, b"10"), (100, b"100")]
    assert list(await box.read("p", 100)) == []


async def test_a_mailbox_belongs_to_one_process(store: Store) -> None:
    await store.mailboxes.put("p", 0, [b"x"])
    assert list(await store.mailboxes.read("p0", -1)) == []
    assert list(await store.mailboxes.read("P", -1)) == []


async def test_repeated_news_is_there_once_and_other_news_of_the_position_too(store: Store) -> None:
    box = store.mailboxes
    await box.put("p", 5, [b"a", b"b"])
    await box.put("p", 5, [b"a", b"b"])
    await box.put("p", 5, [b"c"])
    await box.put("p", 6, [])
    news = list(await box.read("p", 4))
    assert sorted(news) == [(5, b"a"), (5, b"b"), (5, b"c")]
    assert news.index((5, b"a")) < news.index((5, b"b"))


async def test_much_news_at_once_is_read_whole(store: Store) -> None:
    news = [b"%06d" % number + b"x" * 994 for number in range(900)]
    await store.mailboxes.put("p", 1, news)
    assert sorted(await store.mailboxes.read("p", 0)) == [(1, each) for each in news]


async def test_old_news_expires(store: Store, clock: FakeClock) -> None:
    await store.mailboxes.put("p", 1, [b"old"])
    clock.time += MAILBOX_KEEP_S - 1
    await store.mailboxes.put("p", 2, [b"young"])
    assert len(await store.mailboxes.read("p", 0)) == 2
    clock.time += 1
    assert list(await store.mailboxes.read("p", 0)) == [(2, b"young")]

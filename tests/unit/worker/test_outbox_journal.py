"""The outbox's files: what is recovered after crashes, torn writes, full disks, and beside living processes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.model.commands import End, Return
from gpu_worker.service.executions import outbox_journal
from gpu_worker.service.executions.outbox_journal import (
    AttemptReport,
    Journal,
    acknowledged_record,
    command_record,
    unacknowledged,
)

ENDS = [End(f"i-{number}", 1, "done", 5, number, "tenant", '{"text":"\\n é"}', 0.5) for number in range(9)]
RETURN = Return("j", 2, "not_begun", "w")


def opened(folder: Path, name: str = "w") -> tuple[Journal, list[AttemptReport]]:
    journal = Journal(folder, name)
    return journal, list(journal.recover().values())


def crash(journal: Journal) -> None:
    """Do what the kernel does for a process that is killed: close its files."""
    assert journal._fd is not None
    os.close(journal._fd)
    journal._fd = None


def test_what_was_not_acknowledged_is_recovered_oldest_first(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    reports: list[AttemptReport] = [*ENDS[:3], RETURN]
    numbers = [journal.put(report) for report in reports]
    journal.acknowledge(numbers[1])
    crash(journal)
    again, found = opened(tmp_path)
    assert found == [ENDS[0], ENDS[2], RETURN]
    crash(again)
    assert opened(tmp_path)[1] == found, "and again, if this process dies too"


def test_nothing_pending_leaves_an_empty_file_and_none_after_a_clean_end(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    for report in ENDS:
        journal.acknowledge(journal.put(report))
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size == 0
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    living, _ = opened(tmp_path, "w-1")
    living.put(ENDS[0])
    other, found = opened(tmp_path, "w-2")
    assert found == []
    other.put(ENDS[1])
    crash(living)
    assert opened(tmp_path, "w-3")[1] == [ENDS[0]]


def test_two_workers_of_one_name_write_two_files(tmp_path: Path) -> None:
    one, other = opened(tmp_path)[0], opened(tmp_path)[0]
    one.put(ENDS[0])
    other.put(ENDS[1])
    assert len(list(tmp_path.iterdir())) == 2


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    opened(tmp_path)[0].put(ENDS[0])
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@given(st.lists(st.sampled_from(["put", "acknowledge", "crash", "last"]), max_size=60), st.integers(0, 4))
@settings(deadline=None, max_examples=100)
def test_every_history_is_recovered(actions: list[str], dead_records_max: int) -> None:
    limit, outbox_journal.DEAD_RECORDS_MAX = outbox_journal.DEAD_RECORDS_MAX, dead_records_max
    try:
        with tempfile.TemporaryDirectory() as folder:
            _replay(Path(folder), actions)
    finally:
        outbox_journal.DEAD_RECORDS_MAX = limit


def _replay(folder: Path, actions: list[str]) -> None:
    journal, _ = opened(folder)
    pending: dict[int, AttemptReport] = {}
    for count, action in enumerate(actions):
        if action == "put":
            report = End(f"i-{count}", 1, "done", 0, 0)
            pending[journal.put(report)] = report
        elif action == "crash":
            crash(journal)
            journal = Journal(folder, "w")
            found = journal.recover()
            assert list(found.values()) == list(pending.values())
            pending = found
        elif pending:
            number = next(iter(pending)) if action == "acknowledge" else list(pending)[-1]
            journal.acknowledge(number)
            del pending[number]
        assert len(list(folder.iterdir())) == 1
    crash(journal)


RAW = b"".join(
    [command_record(1, ENDS[0]), command_record(2, RETURN), acknowledged_record(1), command_record(3, ENDS[1])]
)


@given(st.integers(0, len(RAW)))
def test_a_write_that_was_cut_short_loses_only_itself(size: int) -> None:
    found, damaged = unacknowledged(RAW[:size])
    whole = RAW[:size].count(b"\n")
    assert found == [[], [ENDS[0]], [ENDS[0], RETURN], [RETURN], [RETURN, ENDS[1]]][whole]
    assert damaged == 0


@given(st.integers(0, len(RAW) * 8 - 1))
def test_a_flipped_bit_damages_one_record_or_two(bit: int) -> None:
    """Two if it joins two lines. The others are recovered."""
    raw = bytearray(RAW)
    raw[bit // 8] ^= 1 << bit % 8
    found, damaged = unacknowledged(bytes(raw))
    assert all(report in (ENDS[0], RETURN, ENDS[1]) for report in found)
    assert len(found) >= 1
    assert damaged <= 2


@given(st.binary(max_size=300))
def test_no_bytes_break_it(raw: bytes) -> None:
    assert unacknowledged(raw)[0] == []


def test_damage_is_logged_and_the_rest_is_recovered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "old-0.outbox").write_bytes(b"garbage\n" + RAW)
    assert opened(tmp_path)[1] == [RETURN, ENDS[1]]
    assert "1 damaged records" in caplog.text


def test_a_newer_versions_field_is_ignored_and_its_new_kind_is_not_guessed() -> None:
    def line(fields: dict[str, object]) -> bytes:
        raw = json.dumps(fields).encode()
        return b"%08x %s\n" % (zlib.crc32(raw), raw)

    newer = line({"put": 1, "kind": "End", **ENDS[0]._asdict(), "newer": 1}) + line({"put": 2, "kind": "Newer"})
    assert unacknowledged(newer) == ([ENDS[0]], 1)


def test_a_full_disk_is_logged_once_and_all_is_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal, _ = opened(tmp_path)
    journal.put(ENDS[0])
    write = os.write

    def full(fd: int, record: bytes) -> int:
        if len(record) > 10:
            return write(fd, bytes(record[:10]))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    numbers = [journal.put(report) for report in ENDS[1:4]]
    journal.acknowledge(numbers[0])
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "No space left on device" in caplog.text
    assert str(tmp_path) in caplog.text
    monkeypatch.setattr(os, "write", write)
    journal.put(ENDS[4])
    assert "on disk again" in caplog.text
    crash(journal)
    assert opened(tmp_path)[1] == [ENDS[0], ENDS[2], ENDS[3], ENDS[4]]


def test_a_folder_that_cannot_be_made_leaves_the_work_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    journal, found = opened(tmp_path / "file" / "outbox")
    assert found == []
    assert "Not a directory" in caplog.text
    journal.acknowledge(journal.put(ENDS[0]))
    journal.put(ENDS[1])
    journal.close()
    assert len(caplog.records) == 1


def test_a_file_that_cannot_be_opened_is_named_and_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "odd.outbox").mkdir()
    journal, found = opened(tmp_path)
    assert found == []
    assert "odd.outbox cannot be opened" in caplog.text
    journal.put(ENDS[0])
    crash(journal)
    assert opened(tmp_path)[1] == [ENDS[0]]


def test_while_its_commands_cannot_be_written_again_an_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, _ = opened(tmp_path)
    before.put(ENDS[0])
    crash(before)

    def fails(fd: int, record: bytes) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", fails)
        assert opened(tmp_path)[1] == [ENDS[0]], "delivered from memory"
    assert opened(tmp_path)[1] == [ENDS[0]]


@pytest.mark.parametrize("holds", [True, False])
def test_a_worker_that_starts_at_the_same_time_does_not_take_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, holds: bool
) -> None:
    """Between the creation of the file and its lock, the other one locks it, and deletes it unless it `holds`."""
    lock, others = fcntl.flock, []

    def late(fd: int, operation: int) -> None:
        monkeypatch.undo()
        (new,) = tmp_path.iterdir()
        others.append(os.open(new, os.O_RDWR))
        lock(others[0], operation)
        if not holds:
            new.unlink()
            os.close(others[0])
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    journal, _ = opened(tmp_path)
    journal.put(ENDS[0])
    crash(journal)
    assert opened(tmp_path)[1] == [ENDS[0]]
    assert not caplog.text
    if holds:
        os.close(others[0])


async def test_a_sync_that_fails_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal, _ = opened(tmp_path)
    journal.put(ENDS[0])

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fails)
    await journal.sync()
    assert "Input/output error" in caplog.text
    monkeypatch.undo()
    journal.put(ENDS[1])
    await journal.sync()
    crash(journal)
    assert opened(tmp_path)[1] == ENDS[:2]

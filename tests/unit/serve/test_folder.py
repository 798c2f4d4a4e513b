"""The data folder: private, its secret kept, held by one server at a time."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from dispatcher.model.errors import ConfigurationError
from headgate.serve import folder as folder_module
from headgate.serve.folder import DataFolder


def test_the_secret_is_made_once_and_private(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    first = folder.secret()
    folder.prepare()
    assert folder.secret() == first
    assert len(first) >= 32
    assert stat.S_IMODE((folder.path / "worker-secret").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_a_secret_that_was_not_written_to_its_end_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "worker-secret.part").write_text("to")
    folder = DataFolder(tmp_path)
    folder.prepare()
    assert len(folder.secret()) >= 32
    assert not (tmp_path / "worker-secret.part").exists()


@pytest.mark.parametrize("secret", ["", "short"])
def test_a_damaged_secret_is_made_again(tmp_path: Path, secret: str) -> None:
    (tmp_path / "worker-secret").write_text(secret)
    folder = DataFolder(tmp_path)
    folder.prepare()
    assert len(folder.secret()) >= 32


@pytest.mark.parametrize("text", ["{nonsense", "", "[]", '{"HEADGATE_ORDER": 7}', "\x00\xff"])
def test_damaged_settings_are_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "gate.json").write_bytes(text.encode("latin-1"))
    folder = DataFolder(tmp_path)
    for read in (folder.settings, lambda: folder.keep_settings({"HEADGATE_ORDER": "bwfq"})):
        with pytest.raises(ConfigurationError, match=r"gate.json is damaged: write the order .* --data"):
            read()


def test_settings_are_kept_for_readers_and_the_order_stays(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    assert folder.settings() == {}
    folder.keep_settings({"HEADGATE_ORDER": "sfq"})
    folder.keep_settings({"HEADGATE_ORDER": "sfq", "HEADGATE_TIERS": "{}"})
    assert folder.settings() == {"HEADGATE_ORDER": "sfq", "HEADGATE_TIERS": "{}"}
    with pytest.raises(ConfigurationError, match="--order sfq"):
        folder.keep_settings({"HEADGATE_ORDER": "bwfq"})


def test_only_one_server_holds_it(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    held = folder.lock()
    with pytest.raises(ConfigurationError, match="in use by another"):
        folder.lock()
    os.close(held)
    os.close(folder.lock())


def test_a_folder_without_a_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="headgate serve --data"):
        DataFolder(tmp_path).existing()
    (tmp_path / "headgate.sqlite").touch()
    assert DataFolder(tmp_path).existing().store == f"sqlite:{tmp_path}/headgate.sqlite"


def test_a_large_log_is_moved_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "LOG_BYTES_MAX", 3)
    folder = DataFolder(tmp_path)
    folder.logs.mkdir()
    (folder.logs / "a.log").write_text("1234")
    (folder.logs / "b.log").write_text("123")
    folder.prepare()
    assert sorted(path.name for path in folder.logs.iterdir()) == ["a.log.1", "b.log"]


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")  # as the system raises it: without the file's name

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigurationError, match=r"worker-secret cannot be written: No space left on device"):
        DataFolder(tmp_path).prepare()

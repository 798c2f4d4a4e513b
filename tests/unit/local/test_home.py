"""The folder of a command: a temporary one never outlives it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher.model.errors import ConfigurationError
from headgate.machine.places import home_folder


def end_by(error: BaseException, log: str, folders: list[Path]) -> None:
    """Make a temporary folder with a file and leave it by this error. Append the folder's path to `folders`."""
    with home_folder(None) as folder:
        folders.append(folder)
        (folder / log).touch()
        raise error


def test_a_folder_that_the_user_names_stays(tmp_path: Path) -> None:
    with home_folder(tmp_path) as folder:
        (folder / "kept").touch()
    assert (tmp_path / "kept").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ConfigurationError("no"), RuntimeError()])
def test_a_temporary_folder_is_removed_however_the_command_ends(error: BaseException) -> None:
    folders: list[Path] = []
    with pytest.raises(type(error)):
        end_by(error, "worker-0.log", folders)
    assert not folders[0].exists()


def test_an_error_says_how_to_keep_the_logs_if_there_are_any() -> None:
    with pytest.raises(ConfigurationError, match=r"no worker is left \(--home FOLDER keeps the logs\)"):
        end_by(ConfigurationError("no worker is left"), "worker-0.log", [])
    with pytest.raises(ConfigurationError) as found:
        end_by(ConfigurationError("--port is too high"), "other", [])
    assert str(found.value) == "--port is too high"

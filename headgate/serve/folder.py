"""The data folder of `headgate serve`.

headgate.sqlite     the gate's log, invocations, tenants (with SQLite's files -wal and -shm beside it)
                    (headgate.sqlite.layout-4 is a copy of it before its layout changed)
worker-secret       the secret that signs work orders; readable by its owner only
operator-token      the token of the page for operators; readable by its owner only
gate.json           the settings of the gate that belong to the log, such as its order
lock                locked while `headgate serve` runs
files/              the files of the batch API, by tenant
logs/               a text log for each process; at a start, one above LOG_BYTES_MAX is moved to <name>.log.1
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dispatcher.model.errors import ConfigurationError
from headgate.machine.options import LOG_BYTES_MAX

DEFAULT_FOLDER = Path("headgate-data")
_DATABASE, _SETTINGS, _LOCK = "headgate.sqlite", "gate.json", "lock"
_SECRET, TOKEN = "worker-secret", "operator-token"
_FILES, _LOGS = "files", "logs"
ORDER = "HEADGATE_ORDER"
_SECRET_BYTES = 33


@dataclass(frozen=True, slots=True)
class DataFolder:
    path: Path

    @property
    def database(self) -> Path:
        return self.path / _DATABASE

    @property
    def store(self) -> str:
        """The value of HEADGATE_STORE for this folder's database."""
        return f"sqlite:{self.database.absolute()}"

    @property
    def files(self) -> str:
        """The value of HEADGATE_FILES for this folder's files."""
        return f"folder:{(self.path / _FILES).absolute()}"

    @property
    def logs(self) -> Path:
        return self.path / _LOGS

    def prepare(self) -> None:
        """Create the folder, readable by its owner only, and its secrets. Move large log files aside."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.logs.mkdir(exist_ok=True)
        for name in (_SECRET, TOKEN):
            self._make_secret(name)
        for log in self.logs.glob("*.log"):
            if log.stat().st_size > LOG_BYTES_MAX:
                log.replace(log.with_suffix(".log.1"))

    def secret(self) -> str:
        return (self.path / _SECRET).read_text()

    def operator_token(self) -> str:
        return (self.path / TOKEN).read_text().strip()

    def settings(self) -> dict[str, str]:
        """Return the variables that `keep_settings` stored last; none for a new folder. Raises ConfigurationError if
        the file is damaged."""
        path = self.path / _SETTINGS
        try:
            kept = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError:
            kept = None
        if not isinstance(kept, dict) or not all(isinstance(value, str) for value in kept.values()):
            raise ConfigurationError(
                f"{path} is damaged: write the order of this folder's log into it, for example "
                f'{{"{ORDER}": "bwfq"}}, or give another folder with --data'
            )
        return kept

    def keep_settings(self, variables: Mapping[str, str]) -> None:
        """Store the variables. Raises ConfigurationError if the order changed, because a log has one order only."""
        before = self.settings().get(ORDER, variables[ORDER])
        if before != variables[ORDER]:
            raise ConfigurationError(
                f"{self.path} was made with --order {before}: give it, or another folder with --data"
            )
        self._write(_SETTINGS, json.dumps(dict(variables)))

    def lock(self) -> int:
        """Hold the folder until this process ends. Raises ConfigurationError if another process holds it."""
        lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ConfigurationError(
                f"{self.path} is in use by another `headgate serve`: stop it, or give another folder with --data"
            ) from None
        return lock

    def existing(self) -> DataFolder:
        """Return the folder. Raises ConfigurationError if it has no database."""
        if not self.database.is_file():
            raise ConfigurationError(f"{self.path} has no {_DATABASE}: start `headgate serve --data {self.path}` first")
        return self

    def _make_secret(self, name: str) -> None:
        path = self.path / name
        if not path.exists() or len(path.read_bytes()) < _SECRET_BYTES:
            self._write(name, secrets.token_urlsafe(_SECRET_BYTES))

    def _write(self, name: str, text: str) -> None:
        """Write a file that only its owner can read. After a crash it has the new content or the old one, never a part.

        Raises ConfigurationError, for example if the disk is full.
        """
        part = self.path / f"{name}.part"
        try:
            part.unlink(missing_ok=True)
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path / name)
        except OSError as error:
            raise ConfigurationError(f"{self.path / name} cannot be written: {error.strerror}") from None

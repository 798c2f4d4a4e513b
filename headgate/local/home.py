"""The folder of a command's processes: one that the user names, or a temporary one that ends with the command."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dispatcher.model.errors import ConfigurationError

PREFIX = "headgate-"


@contextmanager
def home_folder(home: Path | None) -> Iterator[Path]:
    """Yield the folder; for None a new temporary one, which is removed at the end, with its logs.

    If the block raises ConfigurationError and there are logs, the error says how to keep them.
    """
    if home is not None:
        yield home
        return
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as made:
        try:
            yield Path(made)
        except ConfigurationError as error:
            if any(Path(made).rglob("*.log")):
                raise ConfigurationError(f"{error} (--home FOLDER keeps the logs)") from None
            raise

"""Syncs commits to the disk shortly after they are acknowledged, many at once."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

SYNC_AFTER_S = 0.1


class LateSync:
    """Syncs a file within about SYNC_AFTER_S of each request. Its thread runs only while there is something to sync."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def request(self) -> None:
        """Sync all writes so far within about SYNC_AFTER_S."""
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._run, name="headgate-sync", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Finish the requested syncs."""
        self._closing.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        self._closing.wait(SYNC_AFTER_S)
        with self._lock:
            self._thread = None  # later writes request another sync
        try:
            sync(self._path)
        except OSError as error:
            logging.getLogger("headgate.store").error("the store's file is not synced: %s", error)


def sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)

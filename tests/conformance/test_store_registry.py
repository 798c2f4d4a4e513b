"""No backend is without its tests."""

from __future__ import annotations

from pathlib import Path

import dispatcher.stores
from tests.conformance.store_backends import BACKENDS


def test_every_store_is_in_the_registry() -> None:
    folders = {path.parent.name for path in Path(dispatcher.stores.__path__[0]).glob("*/store.py")}
    assert folders == {backend.folder for backend in BACKENDS.values()}

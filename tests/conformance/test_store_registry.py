"""No backend is without its tests."""

from __future__ import annotations

from pathlib import Path

import dispatcher.stores
from tests.conformance.store_backends import BACKENDS


def test_every_store_is_in_the_registry() -> None:
    stores = Path(dispatcher.stores.__path__[0])
    modules = [path for path in stores.rglob("*.py") if "(RecordStore):" in path.read_text()]
    found = {path.relative_to(stores).with_suffix("").parts[0] for path in modules}
    assert found | {"memory"} == {backend.folder for backend in BACKENDS.values()}  # the tests' own one

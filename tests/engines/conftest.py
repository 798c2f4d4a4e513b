from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where built models are kept: built once for all tests."""
    return tmp_path_factory.mktemp("models")

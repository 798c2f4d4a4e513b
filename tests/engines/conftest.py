from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_worker.engines.interface import Engine
from gpu_worker.policies.fairness.registry import make_policy
from tests.engines.engine_kinds import KINDS, engine_of


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where built models are kept: built once for all tests."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each engine of the conformance suite."""
    return str(request.param)


@pytest.fixture
async def engine(kind: str, home: Path) -> AsyncIterator[Engine]:
    async with engine_of(kind, make_policy("vtc"), home) as started:
        yield started

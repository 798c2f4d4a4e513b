from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.local.aws import moto_server
from tests.support.local.stack import Running, start, stop


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture(scope="module")
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """`headgate local` with the modelled engine, and the options that the test's module names in STACK."""
    options = getattr(request.module, "STACK", ())
    started = start(tmp_path_factory.mktemp("stack"), "--engine", "modelled", *options)
    yield started
    stop(started)

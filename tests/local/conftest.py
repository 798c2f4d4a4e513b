from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.local.aws import moto_server


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    with moto_server() as url:
        yield url

"""The local stack is reached without a proxy, whatever the environment says."""

from __future__ import annotations

import pytest

from headgate.local.seed import session
from headgate.local.stack import base_environment

DEAD = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, DEAD)
    monkeypatch.setenv("NO_PROXY", "intra.example")
    monkeypatch.delenv("no_proxy", raising=False)


def test_the_stacks_own_clients_use_none() -> None:
    client = session().client("sqs", endpoint_url="http://gate.example:1")
    assert client.meta.config.proxies == {}  # type: ignore[attr-defined]


def test_its_processes_use_none_for_this_machine_and_keep_it_for_others() -> None:
    environment = base_environment()
    assert environment["NO_PROXY"] == environment["no_proxy"] == "intra.example,localhost,127.0.0.1,::1"
    assert environment["HTTPS_PROXY"] == DEAD

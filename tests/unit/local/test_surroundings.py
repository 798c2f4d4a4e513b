"""What surrounds local processes: their options, their folder, their ports, and no proxy before them."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import get_args

import pytest

from dispatcher.model.errors import ConfigurationError
from dispatcher.policies.orders.registry import ORDERS
from dispatcher.settings.config import Config
from headgate.local.seed import session
from headgate.local.stack import base_environment
from headgate.machine.options import FleetOptions, stack_options
from headgate.machine.places import front_ports, home_folder, usable

HOME = Path("home")
CONFIGURED = get_args(Config.model_fields["order"].annotation)


@pytest.mark.parametrize("order", CONFIGURED)
def test_every_configured_order_can_be_chosen(order: str) -> None:
    assert order in ORDERS
    assert stack_options(home=HOME, order=order).order == order


def test_no_other_order_can() -> None:
    assert set(get_args(FleetOptions.model_fields["order"].annotation)) == set(CONFIGURED)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "steam"}, "--order"),
        ({"fronts": 0}, "--fronts"),
        ({"workers": 99}, "--workers"),
        ({"start_timeout_s": 0}, "--start-timeout"),
        ({"swap_gib": -1}, "--swap-gib"),
        ({"sleep_memory_gb": -1}, "--sleep-memory-gb"),
    ],
)
def test_a_mistake_names_its_option(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        stack_options(home=HOME, **options)


def end_by(error: BaseException, log: str, folders: list[Path]) -> None:
    """Make a temporary folder with a file and leave it by this error. Append the folder's path to `folders`."""
    with home_folder(None) as folder:
        folders.append(folder)
        (folder / log).touch()
        raise error


def test_a_folder_that_the_user_names_stays(tmp_path: Path) -> None:
    with home_folder(tmp_path) as folder:
        (folder / "kept").touch()
    assert (tmp_path / "kept").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ConfigurationError("no"), RuntimeError()])
def test_a_temporary_folder_is_removed_however_the_command_ends(error: BaseException) -> None:
    folders: list[Path] = []
    with pytest.raises(type(error)):
        end_by(error, "worker-0.log", folders)
    assert not folders[0].exists()


def test_an_error_says_how_to_keep_the_logs_if_there_are_any() -> None:
    with pytest.raises(ConfigurationError, match=r"no worker is left \(--home FOLDER keeps the logs\)"):
        end_by(ConfigurationError("no worker is left"), "worker-0.log", [])
    with pytest.raises(ConfigurationError) as found:
        end_by(ConfigurationError("--port is too high"), "other", [])
    assert str(found.value) == "--port is too high"


HOST = "127.0.0.1"


def test_each_front_has_a_port_of_its_own() -> None:
    assert len(set(front_ports(HOST, 0, 16))) == 16
    first = usable(HOST, 0)
    assert front_ports(HOST, first, 1) == [first]


def test_a_port_in_use_is_named() -> None:
    with socket.create_server((HOST, 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} on {HOST} cannot be used"):
            front_ports(HOST, port, 1)


def test_the_following_ports_are_checked_too() -> None:
    with socket.create_server((HOST, 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(ConfigurationError, match="cannot be used"):
            front_ports(HOST, port - 1, 2)


def test_ports_beyond_the_last_one() -> None:
    with pytest.raises(ConfigurationError, match="--fronts 3"):
        front_ports(HOST, 65534, 3)


def test_an_address_of_ip_version_6() -> None:
    try:
        listening = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IP version 6")
    with listening, pytest.raises(ConfigurationError, match="in use"):
        usable("::1", listening.getsockname()[1])
    assert usable("::1", 0) > 0


DEAD = "http://127.0.0.1:9"


@pytest.fixture
def proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, DEAD)
    monkeypatch.setenv("NO_PROXY", "intra.example")
    monkeypatch.delenv("no_proxy", raising=False)


def test_the_stacks_own_clients_use_none(proxies: None) -> None:
    client = session().client("sqs", endpoint_url="http://gate.example:1")
    assert client.meta.config.proxies == {}  # type: ignore[attr-defined]


def test_its_processes_use_none_for_this_machine_and_keep_it_for_others(proxies: None) -> None:
    environment = base_environment()
    assert environment["NO_PROXY"] == environment["no_proxy"] == "intra.example,localhost,127.0.0.1,::1"
    assert environment["HTTPS_PROXY"] == DEAD

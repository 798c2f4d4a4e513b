"""Ports of fronts that are about to start."""

from __future__ import annotations

import socket

import pytest

from dispatcher.model.errors import ConfigurationError
from headgate.machine.places import front_ports, usable

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

"""Chooses the TCP ports of processes that are about to start."""

from __future__ import annotations

import socket
from contextlib import suppress

from dispatcher.model.errors import ConfigurationError
from dispatcher.processes.bootstrap import real_random
from headgate.local.options import PORT_MAX

FREE_FROM, FREE_TO = 20_000, 32_000
"""Free ports are taken from below the range from which operating systems choose. Otherwise a process on a port that the
system chooses could get the port that was reserved for another process."""
TRIES = 50


def usable(host: str, port: int) -> int:
    """Return the port, or a free one for 0. Raises ConfigurationError if it is in use."""
    if port:
        return _probe_port(host, port)
    *earlier, last = real_random().sample(range(FREE_FROM, FREE_TO), TRIES)
    for each in earlier:
        with suppress(ConfigurationError):
            return _probe_port(host, each)
    return _probe_port(host, last)


def _probe_port(host: str, port: int) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigurationError(
                f"port {port} on {host} cannot be used: {error.strerror}; choose another"
            ) from None
        return port


def front_ports(host: str, port: int, fronts: int) -> list[int]:
    """Return a port for each front: `port` and those after it, or free ones for 0. Raises ConfigurationError."""
    if port + fronts - 1 > PORT_MAX:
        raise ConfigurationError(f"--fronts {fronts} from --port {port} on goes beyond port {PORT_MAX}")
    ports: list[int] = []
    while len(ports) < fronts:
        found = usable(host, port and port + len(ports))
        if found not in ports:  # the same free port may be found again: no process listens there yet
            ports.append(found)
    return ports

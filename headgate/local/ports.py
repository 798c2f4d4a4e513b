"""TCP ports of processes that are about to start."""

from __future__ import annotations

import socket

from dispatcher.model.errors import ConfigurationError
from headgate.local.options import PORT_MAX


def usable(host: str, port: int) -> int:
    """Return the port, or a free one for 0. Raises ConfigurationError if it is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigurationError(
                f"port {port} on {host} cannot be used: {error.strerror}; choose another"
            ) from None
        return int(probe.getsockname()[1])


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

"""The folder and the TCP ports of processes that are about to start on this machine.

The folder is one that the user names, or a temporary one that ends with the command.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dispatcher.model.errors import ConfigurationError
from dispatcher.processes.bootstrap import real_random
from headgate.machine.options import PORT_MAX

_PREFIX = "headgate-"


@contextmanager
def home_folder(home: Path | None) -> Iterator[Path]:
    """Yield the folder; for None a new temporary one, which is removed at the end, with its logs.

    If the block raises ConfigurationError and there are logs, the error says how to keep them.
    """
    if home is not None:
        yield home
        return
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as made:
        try:
            yield Path(made)
        except ConfigurationError as error:
            if any(Path(made).rglob("*.log")):
                raise ConfigurationError(f"{error} (--home FOLDER keeps the logs)") from None
            raise


_FREE_FROM, _FREE_TO = 20_000, 32_000
"""Free ports are taken from below the range from which operating systems choose. Otherwise a process on a port that the
system chooses could get the port that was reserved for another process."""
_TRIES = 50


def usable(host: str, port: int) -> int:
    """Return the port, or a free one for 0. Raises ConfigurationError if it is in use."""
    if port:
        return _probe_port(host, port)
    *earlier, last = real_random().sample(range(_FREE_FROM, _FREE_TO), _TRIES)
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

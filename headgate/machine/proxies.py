"""Proxies of the environment: this machine's own addresses are never reached through one."""

from __future__ import annotations

from collections.abc import MutableMapping

_HERE = ("localhost", "127.0.0.1", "::1")
_NAMES = ("no_proxy", "NO_PROXY")


def bypass_proxies(environment: MutableMapping[str, str]) -> None:
    """Add this machine to the hosts that HTTP_PROXY and the like do not apply to, for this process and its children.

    Some programs read the small name first and some the capital one, so both get the hosts of both.
    """
    given = [host.strip() for name in _NAMES for host in environment.get(name, "").split(",")]
    hosts = ",".join(dict.fromkeys(host for host in (*given, *_HERE) if host))
    environment.update(dict.fromkeys(_NAMES, hosts))

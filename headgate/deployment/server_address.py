"""The address of a server that runs already. On AWS a worker on Fargate reaches it in the stack's VPC; `headgate local
--file` also serves one of this machine."""

from __future__ import annotations

import re
from ipaddress import IPv4Address

from pydantic_core import PydanticCustomError

HOST_CHARS_MAX = 253
_ADDRESS = re.compile(r"https?://(?P<host>[A-Za-z0-9.-]+)(:(?P<port>[0-9]{1,5}))?(?P<path>(/[A-Za-z0-9._~-]*)*)")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_NUMBERS = re.compile(r"[0-9.]+")


def check_address(address: str) -> str:
    """Return the address. Raises PydanticCustomError with a sentence about what is wrong with it."""
    if problem := _problem(address):
        raise PydanticCustomError("address", "{problem}", {"problem": problem})
    return address


def _problem(address: str) -> str | None:
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return (
            "should look like http://vllm.internal:8000/v1: http or https, a host's name or IPv4 address, its port, "
            "and the path before /chat/completions, without a user, a query or spaces"
        )
    if found["port"] is not None and not 1 <= int(found["port"]) <= 65_535:
        return "should have a port of 1 to 65535"
    if {".", ".."} & set(found["path"].split("/")):
        return "should have a path without . and .. as its parts"
    return _host_problem(found["host"])


def _host_problem(host: str) -> str | None:
    labels = host.removesuffix(".").split(".")
    if len(host) > HOST_CHARS_MAX or not all(_LABEL.fullmatch(label) for label in labels):
        return "should have a host's name of letters, digits and hyphens between its dots"
    if _NUMBERS.fullmatch(host):
        try:
            address = IPv4Address(host)
        except ValueError:
            return "should have an IPv4 address of four numbers from 0 to 255, or a host's name"
        if address.is_unspecified or address.is_link_local or address.is_multicast:
            return "should be the address of a server: this one belongs to no other machine"
    return None


def is_own_machine(address: str) -> bool:
    """Return whether the address names the machine that asks, which on AWS is the worker's own task."""
    found = _ADDRESS.fullmatch(address)
    host = found["host"].removesuffix(".") if found is not None else ""
    if _NUMBERS.fullmatch(host):
        return IPv4Address(host).is_loopback
    return host.split(".")[-1].lower() == "localhost"

"""The address of a server that runs already, as a worker on Fargate in the stack's VPC reaches it."""

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
    is_own = labels[-1].lower() == "localhost"
    if _NUMBERS.fullmatch(host):
        try:
            address = IPv4Address(host)
        except ValueError:
            return "should have an IPv4 address of four numbers from 0 to 255, or a host's name"
        is_own = address.is_loopback or address.is_unspecified or address.is_link_local or address.is_multicast
    return (
        "should be an address that the VPC reaches: this one is the worker's own machine or network" if is_own else None
    )

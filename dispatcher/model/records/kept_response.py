"""A kept response of POST /v1/responses, and the part of the store that keeps it. Pure.

A tenant reads it by its id, and later requests of the same tenant refer to it or to its items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

CONTENT_BYTES_MAX = 1_500_000
"""The longest content of one kept response. A longer one is not kept."""


@dataclass(frozen=True, slots=True)
class KeptResponse:
    tenant: str
    id: str
    """`resp_` and the id of its call."""
    content: bytes
    """The response and its input items (dispatcher/responses/record.py). The store does not read them."""
    expires_at: float
    """Unix seconds. From this time on the response cannot be read."""


class ResponseStore(Protocol):
    """A part of dispatcher.ports.Store. Each response belongs to one tenant, and no other tenant can read it."""

    async def keep_response(self, response: KeptResponse, bytes_max: int) -> bool:
        """Store the response, also in place of one with the same id. Return whether it was stored.

        It is not stored if the contents of the tenant's responses are then longer than `bytes_max` together. A response
        counts until the end of the hour in which it expires, and a replaced one until the new one is stored. Concurrent
        calls may exceed the limit by their own contents.
        """
        ...

    async def response(self, tenant: str, response_id: str) -> KeptResponse | None:
        """Return the tenant's response with this id, or None."""
        ...

    async def delete_response(self, tenant: str, response_id: str) -> bool:
        """Delete the tenant's response with this id. Return whether there was one."""
        ...

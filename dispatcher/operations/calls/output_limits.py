"""How long a request's answer may get, and how long the gate expects it to get. Pure.

A chat without `max_tokens` ends when the model ends it. Its limit is what the tenant may have, and the engine shortens
the limit to what fits into the context beside the prompt. The gate does not know such an answer's length. So its cost
is estimated with `expected_tokens`, and corrected to the true length at the end, as every cost is.

A completion without `max_tokens` gets `expected_tokens`: a bare text often has no natural end, and OpenAI's own default
for it is only 16.
"""

from __future__ import annotations

from typing import NamedTuple

from dispatcher.model.requests import Endpoint, Request
from dispatcher.model.tenants import Tenant


class OutputLimit(NamedTuple):
    """The limit of an output, in tokens of each choice. `expected_tokens`: None if the client set the limit."""

    max_tokens: int
    expected_tokens: int | None = None

    @property
    def likely_tokens(self) -> int:
        """The tokens that the estimate of the cost counts."""
        return self.max_tokens if self.expected_tokens is None else self.expected_tokens


def output_limit(request: Request, tenant: Tenant, expected_tokens: int) -> OutputLimit:
    """Return the limit of a request: 0 for embeddings, which have no output.

    The limit is 0 too if the tenant's limit has no token for each of the request's choices.
    """
    if request.endpoint is Endpoint.EMBEDDINGS:
        return OutputLimit(0)
    if request.max_tokens is not None:
        return OutputLimit(request.max_tokens)
    most = tenant.max_tokens_max // request.choices
    expected = min(expected_tokens, most)
    return OutputLimit(expected) if request.endpoint is Endpoint.COMPLETION else OutputLimit(most, expected)

"""Reads GET /v1/models: the model, its context length, and the kind of server. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from dispatcher.model.fleet import TEXT, Capability
from gpu_worker.engines.interface import EngineFacts
from gpu_worker.engines.openai.counts import is_count
from gpu_worker.engines.openai.options import ServerOptions

CONTEXT_MAX = 100_000_000
USUAL = TEXT | {Capability.SAMPLING, Capability.TOOLS, Capability.STRUCTURED}
"""What all of today's servers for chat models support."""
ALL_TEXT = USUAL | {Capability.CHOICES, Capability.LOGPROBS, Capability.REASONING}
BY_OWNER: dict[str, frozenset[str]] = {"vllm": ALL_TEXT | {Capability.VLLM}, "sglang": ALL_TEXT | {Capability.LENGTH}}
"""The capabilities of a server by the `owned_by` of its models. The `continuous_usage_stats` of both servers are the
tokens of each choice."""
NAMES_MAX = 10


class ServerFacts(NamedTuple):
    facts: EngineFacts
    continuous_usage: bool


def server_facts(answer: dict[str, Any], options: ServerOptions) -> ServerFacts:
    """Return the facts of the chosen model. Raises ValueError, whose message says what to do.

    If the options have the name and the context length, the list need not have the model: some servers list others than
    those that they load.
    """
    data = answer.get("data")
    models = [each for each in data if isinstance(each, dict)] if isinstance(data, list) else []
    name = options.model or _only_name(models)
    card = next((each for each in models if each.get("id") == name), {})
    if not card and options.context_tokens is None:
        raise ValueError(f"the server has no model {name!r}; it has {_names(models)}: choose one with --model")
    owner = card.get("owned_by")
    known = BY_OWNER.get(owner) if isinstance(owner, str) else None
    capabilities = options.capabilities or known or USUAL
    facts = EngineFacts(name, _context(card, options), options.bytes_per_token, frozenset(map(str, capabilities)))
    continuous = options.continuous_usage
    return ServerFacts(facts, known is not None if continuous is None else continuous)


def _only_name(models: list[dict[str, Any]]) -> str:
    names = [each["id"] for each in models if isinstance(each.get("id"), str)]
    if len(names) != 1:
        raise ValueError(f"the server has {_names(models)}: choose one with --model")
    return str(names[0])


def _names(models: list[dict[str, Any]]) -> str:
    names = sorted(str(each.get("id"))[:100] for each in models)
    shown = ", ".join(names[:NAMES_MAX]) + (", …" if len(names) > NAMES_MAX else "")
    return f"{len(names)} models ({shown})" if names else "no models"


def _context(card: dict[str, Any], options: ServerOptions) -> int:
    """Return the context length: the option, or `max_model_len` (vLLM, SGLang), or `meta.n_ctx` (llama.cpp)."""
    if options.context_tokens is not None:
        return options.context_tokens
    meta = card.get("meta")
    for found in (card.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None):
        if is_count(found, CONTEXT_MAX) and found:
            return found
    raise ValueError("the server does not report its context length: set it with --context-tokens")

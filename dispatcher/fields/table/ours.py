"""Fields that headgate sets, labels, and refused fields: the same for every endpoint. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.fields.kinds import Field, Kind
from dispatcher.fields.shapes.scalars import Anything

_ANY = Anything()


def _ours(note: str = "") -> Field:
    return Field(Kind.OURS, _ANY, note)


def label(note: str) -> Field:
    return Field(Kind.LABEL, _ANY, note)


def refused(note: str, *neutral: object) -> Field:
    return Field(Kind.REFUSED, _ANY, note, neutral)


ANTHROPIC = label("It configures Anthropic's cache; some clients send it to every server.")
LITELLM = label("LiteLLM adds it to answers; the model does not read it.")

_TENANT = "The key of the request names the tenant, and the tenant's configuration has this value."
_ENGINE = "The engine gets it from the gate."
_DEADLINE = "To end a request earlier, close its connection."

OURS: Mapping[str, Field] = {
    "tenant": _ours(_TENANT),
    "tier": _ours(_TENANT),
    "weight": _ours(_TENANT),
    "priority": _ours(_TENANT),
    "deadline_at": _ours(_DEADLINE),
    "timeout_s": _ours(_DEADLINE),
    "slo_class": _ours("Send `metadata.headgate_slo_class`."),
    "app": _ours("Send `metadata.headgate_application`."),
    "stage": _ours("Send `metadata.headgate_stage`."),
    "interaction": _ours("Send `metadata.headgate_interaction`."),
    "request_id": _ours("Send the header `Idempotency-Key` to repeat a request safely."),
    "session_id": _ours("Send `metadata.headgate_interaction`."),
    "cache_salt": _ours(_ENGINE),
    "vllm_xargs": _ours(_ENGINE),
    "kv_transfer_params": _ours(_ENGINE),
    "ec_transfer_params": _ours(_ENGINE),
}
"""Each of them decides about other tenants' shares, caches or answers."""

LABELS: Mapping[str, Field] = {
    "user": label("The tenant's own name of its user."),
    "safety_identifier": label("The tenant's own name of its user."),
    "prompt_cache_key": label("It tells OpenAI's servers which requests share a prefix. The worker finds that itself."),
    "prompt_cache_options": label("It configures OpenAI's cache."),
    "prompt_cache_retention": label("It configures OpenAI's cache."),
}

REFUSED: Mapping[str, Field] = {
    "prompt_embeds": refused("It would pass unchecked tensors to the engine; send the text."),
    "logits_processors": refused("It names code that the engine would run."),
    "chat_template": refused("It is code that the engine would run; the operator configures the model's template."),
    "media_io_kwargs": refused("It configures how the engine decodes media; only the operator may."),
    "mm_processor_kwargs": refused("It configures how the engine decodes media; only the operator may."),
    "guided_json": refused("Use `response_format` or `structured_outputs`."),
    "guided_regex": refused("Use `structured_outputs`."),
    "guided_choice": refused("Use `structured_outputs`."),
    "guided_grammar": refused("Use `structured_outputs`."),
    "guided_decoding_backend": refused("The operator configures the engine."),
    "guided_whitespace_pattern": refused("Use `structured_outputs`."),
    "mm_payload": refused("It belongs to vLLM's render endpoints.", "tensors"),
    "return_mm_kwargs": refused("It belongs to vLLM's render endpoints.", False, True),
}
"""Fields of vLLM, of this version or of earlier ones."""

SERVED_BY_OPENAI: Mapping[str, Field] = {
    "service_tier": refused(
        "The tenant's configuration has the tier; `metadata.headgate_slo_class` may name a laxer SLO class.",
        "auto",
        "default",
    ),
    "moderation": refused("The gate has no moderation."),
}

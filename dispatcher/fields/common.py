"""Fields that endpoints share. Pure.

headgate sets some, some are labels, some are refused: these are the same for every endpoint. The others change which
tokens are sampled, and how many: chats and completions have them.
"""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.fields.kinds import Field, FieldTable, Kind
from dispatcher.fields.limits import (
    BAD_WORD_CHARS_MAX,
    BAD_WORDS_MAX,
    CHOICES_MAX,
    LOGPROBS_MAX,
    MODEL_CHARS_MAX,
    SEED_MAX,
    STOP_CHARS_MAX,
    STOPS_MAX,
    TOKEN_ID_MAX,
    TOKEN_IDS_MAX,
    TOKENS_MAX,
)
from dispatcher.fields.shapes import Anything, Either, Entries, Flag, Items, Number, Record, Text, TokenIds, Whole, Word
from dispatcher.model.fleet import Capability

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


_SAMPLING = (Capability.SAMPLING,)
VLLM = (Capability.VLLM,)
_THINKING = (Capability.VLLM, Capability.REASONING)
LOGPROBS = (Capability.LOGPROBS,)
_LENGTH = (Capability.VLLM, Capability.LENGTH)
_TOKEN_IDS = TokenIds(TOKEN_IDS_MAX)

STREAM_OPTIONS = FieldTable(
    "stream_options",
    {
        "include_usage": Field(Kind.READ, Flag(), "The last chunk has the usage."),
        "include_obfuscation": label("It adds random characters to OpenAI's chunks; the gate adds none."),
        "continuous_usage_stats": label(
            "It asks for the usage in every chunk. With `include_usage` the last chunk has it."
        ),
    },
)

REPETITION_DETECTION = FieldTable(
    "repetition_detection",
    {
        "max_pattern_size": Field(Kind.BOUNDED, Whole(0, TOKEN_IDS_MAX)),
        "min_pattern_size": Field(Kind.BOUNDED, Whole(0, TOKEN_IDS_MAX)),
        "min_count": Field(Kind.BOUNDED, Whole(0, TOKEN_IDS_MAX)),
    },
)

COMMON: Mapping[str, Field] = {
    "model": Field(Kind.READ, Text(MODEL_CHARS_MAX, 1), required=True),
    "stream": Field(Kind.READ, Flag(), neutral=(False,)),
    "stream_options": Field(Kind.READ, Record(STREAM_OPTIONS), neutral=({},)),
    "max_tokens": Field(
        Kind.READ,
        Whole(1),
        "`n` times this number is at most the tenant's limit, and it fits the model's context. A chat without it ends "
        "when the model ends it; a completion without it after 256 tokens.",
    ),
    "n": Field(Kind.READ, Whole(1, CHOICES_MAX), "All choices count as service. Above 1 it needs `n`.", neutral=(1,)),
    "metadata": Field(
        Kind.READ,
        Anything(),
        "An object of texts. The gate reads the keys with the prefix `headgate_`, and drops the others.",
    ),
    "stop": Field(
        Kind.BOUNDED,
        Either({str: Text(STOP_CHARS_MAX, 1), list: Items(Text(STOP_CHARS_MAX, 1), STOPS_MAX)}),
        neutral=([],),
    ),
    "seed": Field(Kind.PASSED, Whole(-SEED_MAX, SEED_MAX)),
    "temperature": Field(Kind.PASSED, Number(0, 2)),
    "top_p": Field(Kind.PASSED, Number(0, 1, above=True), usual=(1,), capability=_SAMPLING),
    "top_k": Field(Kind.PASSED, Whole(-1, TOKEN_ID_MAX), usual=(-1, 0), capability=_SAMPLING),
    "min_p": Field(Kind.PASSED, Number(0, 1), usual=(0,), capability=_SAMPLING),
    "presence_penalty": Field(Kind.PASSED, Number(-2, 2), neutral=(0,), capability=_SAMPLING),
    "frequency_penalty": Field(Kind.PASSED, Number(-2, 2), neutral=(0,), capability=_SAMPLING),
    "repetition_penalty": Field(Kind.PASSED, Number(0, 10, above=True), usual=(1,), capability=_SAMPLING),
    "logit_bias": Field(
        Kind.BOUNDED,
        Entries(Number(-100, 100), TOKEN_IDS_MAX, Text(10, 1, r"[0-9]+", "a token id")),
        neutral=({},),
        capability=_SAMPLING,
    ),
}

VLLM_SAMPLING: Mapping[str, Field] = {
    "ignore_eos": Field(Kind.PASSED, Flag(), neutral=(False,), capability=_LENGTH),
    "min_tokens": Field(Kind.PASSED, Whole(0, TOKENS_MAX), neutral=(0,), capability=_LENGTH),
    "stop_token_ids": Field(Kind.BOUNDED, _TOKEN_IDS, neutral=([],), capability=VLLM),
    "allowed_token_ids": Field(Kind.BOUNDED, _TOKEN_IDS, neutral=([],), capability=VLLM),
    "logprob_token_ids": Field(Kind.BOUNDED, TokenIds(LOGPROBS_MAX), neutral=([],), capability=VLLM),
    "bad_words": Field(Kind.BOUNDED, Items(Text(BAD_WORD_CHARS_MAX, 1), BAD_WORDS_MAX), neutral=([],), capability=VLLM),
    "include_stop_str_in_output": Field(Kind.PASSED, Flag(), neutral=(False,), capability=VLLM),
    "skip_special_tokens": Field(Kind.PASSED, Flag(), neutral=(True,), capability=VLLM),
    "spaces_between_special_tokens": Field(Kind.PASSED, Flag(), neutral=(True,), capability=VLLM),
    "return_tokens_as_token_ids": Field(Kind.PASSED, Flag(), neutral=(False,), capability=VLLM),
    "watermarking": Field(Kind.PASSED, Flag(), neutral=(False,), capability=VLLM),
    "repetition_detection": Field(
        Kind.BOUNDED,
        Record(REPETITION_DETECTION),
        capability=VLLM,
    ),
    "thinking_token_budget": Field(Kind.PASSED, Whole(-1, TOKENS_MAX), neutral=(-1,), capability=_THINKING),
    "stream_interval": label("It makes chunks larger. The gate forwards each piece when it arrives."),
    "use_beam_search": refused("Beam search is not scheduled by the gate; use `n`.", False),
    "length_penalty": refused("It belongs to beam search.", 1),
    "early_stopping": refused("It belongs to beam search.", False),
    "best_of": refused("Use `n`.", 1),
}

_NO_PLACE = "The gate's answer has no place for its result."
RESULTS: Mapping[str, Field] = {
    "prompt_logprobs": refused(_NO_PLACE),
    "return_token_ids": refused(_NO_PLACE, False),
    "return_token_offsets": refused(_NO_PLACE, False),
    "return_prompt_text": refused(_NO_PLACE, False),
    "routed_experts_prompt_start": refused(_NO_PLACE, 0),
}

_TRUNCATION = "-1 stands for the model's context. Without `vllm`, an input beyond the context is refused, not cut."
PROMPT_TOKENS: Mapping[str, Field] = {
    "truncate_prompt_tokens": Field(Kind.PASSED, Whole(-1, TOKENS_MAX), _TRUNCATION, usual=(-1,), capability=VLLM),
    "truncation_side": Field(Kind.PASSED, Word(("left", "right")), capability=VLLM),
}

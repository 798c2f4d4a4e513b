"""The table of `POST /v1/completions`. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.fields.kinds import Field, Kind, merged
from dispatcher.fields.limits import LOGPROBS_MAX, PROMPT_TOKENS_MAX, TEXT_CHARS_MAX
from dispatcher.fields.shapes.containers import ByFirst, Either, Items
from dispatcher.fields.shapes.scalars import Flag, Text, Whole
from dispatcher.fields.shapes.token_ids import TokenIds
from dispatcher.fields.table.formats import FORMATS
from dispatcher.fields.table.ours import LABELS, OURS, REFUSED, SERVED_BY_OPENAI, refused
from dispatcher.fields.table.sampling import COMMON, LOGPROBS, PROMPT_TOKENS, RESULTS, VLLM, VLLM_SAMPLING
from dispatcher.model.fleet import Capability

TOKEN_IDS = (Capability.VLLM, Capability.TOKEN_IDS)
_ONE_PROMPT = "send one request for each prompt"

COMPLETION_ONLY: Mapping[str, Field] = {
    "prompt": Field(
        Kind.BOUNDED,
        Either(
            {
                str: Text(TEXT_CHARS_MAX),
                list: ByFirst(
                    {
                        str: (Items(Text(TEXT_CHARS_MAX), 1, 1, _ONE_PROMPT), ()),
                        int: (TokenIds(PROMPT_TOKENS_MAX, 1), TOKEN_IDS),
                        list: (Items(TokenIds(PROMPT_TOKENS_MAX, 1), 1, 1, _ONE_PROMPT), TOKEN_IDS),
                    }
                ),
            }
        ),
        "One prompt. Send one request for each prompt, so that each has its own turn.",
        required=True,
    ),
    "logprobs": Field(Kind.BOUNDED, Whole(0, LOGPROBS_MAX), neutral=(False,), capability=LOGPROBS),
    "echo": Field(Kind.PASSED, Flag(), neutral=(False,), capability=VLLM),
    "suffix": refused("Put the text after the gap into the prompt, as the model's documentation describes.", ""),
    "add_special_tokens": Field(Kind.PASSED, Flag(), neutral=(True,), capability=VLLM),
}

COMPLETION: Mapping[str, Field] = merged(
    OURS, COMMON, COMPLETION_ONLY, FORMATS, VLLM_SAMPLING, PROMPT_TOKENS, RESULTS, LABELS, SERVED_BY_OPENAI, REFUSED
)

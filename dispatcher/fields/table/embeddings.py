"""The table of `POST /v1/embeddings`. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.fields.kinds import Field, Kind, merged
from dispatcher.fields.limits import DIMENSIONS_MAX, INPUTS_MAX, PROMPT_TOKENS_MAX, TEXT_CHARS_MAX
from dispatcher.fields.shapes.containers import ByFirst, Either, Items
from dispatcher.fields.shapes.scalars import Flag, Text, Whole, Word
from dispatcher.fields.shapes.token_ids import TokenIds
from dispatcher.fields.table.ours import LABELS, OURS, REFUSED, SERVED_BY_OPENAI, refused
from dispatcher.fields.table.sampling import COMMON, PROMPT_TOKENS, VLLM

_CHAT_INPUT = "Send the text in `input`."

EMBEDDINGS_ONLY: Mapping[str, Field] = {
    "model": COMMON["model"],
    "metadata": COMMON["metadata"],
    "input": Field(
        Kind.BOUNDED,
        Either(
            {
                str: Text(TEXT_CHARS_MAX, 1),
                list: ByFirst(
                    {
                        str: (Items(Text(TEXT_CHARS_MAX, 1), INPUTS_MAX, 1), ()),
                        int: (TokenIds(PROMPT_TOKENS_MAX, 1), ()),
                        list: (Items(TokenIds(PROMPT_TOKENS_MAX, 1), INPUTS_MAX, 1), ()),
                    }
                ),
            }
        ),
        required=True,
    ),
    "dimensions": Field(Kind.BOUNDED, Whole(1, DIMENSIONS_MAX)),
    "encoding_format": Field(Kind.PASSED, Word(("float", "base64"))),
    "embed_dtype": refused("The gate's answers have 32-bit floats.", "float32"),
    "endianness": refused("The gate's answers have 32-bit floats in little-endian order.", "native", "little"),
    "use_activation": Field(Kind.PASSED, Flag(), capability=VLLM),
    "padding": Field(Kind.PASSED, Word(("max_length", "do_not_pad")), capability=VLLM),
    "add_special_tokens": Field(Kind.PASSED, Flag(), neutral=(True,), capability=VLLM),
    "messages": refused(_CHAT_INPUT),
    "add_generation_prompt": refused(_CHAT_INPUT, False, True),
    "continue_final_message": refused(_CHAT_INPUT, False),
    "chat_template_kwargs": refused(_CHAT_INPUT, {}),
}

EMBEDDINGS: Mapping[str, Field] = merged(OURS, EMBEDDINGS_ONLY, PROMPT_TOKENS, LABELS, SERVED_BY_OPENAI, REFUSED)

"""The tables of all endpoints: chats, completions, embeddings, responses, batches and the lines of a batch. Pure.

The front translates a response to a chat, and the chat's table checks the result.
"""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.fields.chat_objects import FORMATS, MESSAGES, TOOLS, TOOLS_NEED
from dispatcher.fields.common import (
    COMMON,
    LABELS,
    LOGPROBS,
    OURS,
    PROMPT_TOKENS,
    REFUSED,
    RESULTS,
    SERVED_BY_OPENAI,
    VLLM,
    VLLM_SAMPLING,
    label,
    refused,
)
from dispatcher.fields.kinds import Field, FieldTable, Kind, merged
from dispatcher.fields.limits import (
    DESCRIPTION_CHARS_MAX,
    DIMENSIONS_MAX,
    DOCUMENTS_MAX,
    INPUTS_MAX,
    LOGPROBS_MAX,
    NAME_CHARS_MAX,
    PROMPT_TOKENS_MAX,
    TEXT_CHARS_MAX,
)
from dispatcher.fields.response_objects import INPUT, RESPONSE_TOOL_CHOICE, RESPONSE_TOOLS, TEXT_FORMAT
from dispatcher.fields.schemas import Free
from dispatcher.fields.shapes import (
    Anything,
    ByFirst,
    Either,
    Entries,
    Flag,
    Items,
    Record,
    Text,
    TokenIds,
    Whole,
    Word,
)
from dispatcher.model.fleet import Capability
from dispatcher.model.requests import Endpoint

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_REASONING = (Capability.REASONING,)

_TEMPLATE_KWARGS = Field(
    Kind.BOUNDED,
    Free(1_000, ("chat_template", "tokenize")),
    "Arguments of the model's chat template, such as `enable_thinking`.",
    neutral=({},),
    capability=VLLM,
)

_CHAT_ONLY: Mapping[str, Field] = {
    "messages": Field(Kind.BOUNDED, MESSAGES, required=True),
    "max_completion_tokens": Field(
        Kind.READ, Whole(1), "The new name of `max_tokens`. If a request has both, they must be equal."
    ),
    "logprobs": Field(Kind.PASSED, Flag(), neutral=(False,), capability=LOGPROBS),
    "top_logprobs": Field(
        Kind.BOUNDED, Whole(0, LOGPROBS_MAX), "It needs `logprobs`.", neutral=(0,), capability=LOGPROBS
    ),
    "reasoning_effort": Field(Kind.PASSED, Word(_EFFORTS), capability=_REASONING),
    "include_reasoning": Field(Kind.PASSED, Flag(), neutral=(True,), capability=_REASONING),
    "store": refused("The gate stores no chats; use `POST /v1/responses`.", False),
    "modalities": refused("The gate's answers are text.", ["text"]),
    "audio": refused("The gate's answers are text."),
    "prediction": label("It makes OpenAI's servers faster, and changes no answer."),
    "verbosity": refused("Say it in the prompt.", "medium"),
    "web_search_options": refused("The gate has no search; define a tool."),
    "chat_template_kwargs": _TEMPLATE_KWARGS,
    "documents": Field(Kind.BOUNDED, Items(Free(16), DOCUMENTS_MAX), neutral=([],), capability=VLLM),
    "echo": Field(Kind.PASSED, Flag(), neutral=(False,), capability=VLLM),
    "add_generation_prompt": Field(Kind.PASSED, Flag(), neutral=(True,), capability=VLLM),
    "continue_final_message": Field(Kind.PASSED, Flag(), neutral=(False,), capability=VLLM),
    "add_special_tokens": Field(Kind.PASSED, Flag(), neutral=(False,), capability=VLLM),
}

_CHAT: Mapping[str, Field] = merged(
    OURS, COMMON, _CHAT_ONLY, TOOLS, FORMATS, VLLM_SAMPLING, PROMPT_TOKENS, RESULTS, LABELS, SERVED_BY_OPENAI, REFUSED
)


_TOKEN_IDS = (Capability.VLLM, Capability.TOKEN_IDS)
_ONE_PROMPT = "send one request for each prompt"

_COMPLETION_ONLY: Mapping[str, Field] = {
    "prompt": Field(
        Kind.BOUNDED,
        Either(
            {
                str: Text(TEXT_CHARS_MAX),
                list: ByFirst(
                    {
                        str: (Items(Text(TEXT_CHARS_MAX), 1, 1, _ONE_PROMPT), ()),
                        int: (TokenIds(PROMPT_TOKENS_MAX, 1), _TOKEN_IDS),
                        list: (Items(TokenIds(PROMPT_TOKENS_MAX, 1), 1, 1, _ONE_PROMPT), _TOKEN_IDS),
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

_COMPLETION: Mapping[str, Field] = merged(
    OURS, COMMON, _COMPLETION_ONLY, FORMATS, VLLM_SAMPLING, PROMPT_TOKENS, RESULTS, LABELS, SERVED_BY_OPENAI, REFUSED
)


_CHAT_INPUT = "Send the text in `input`."

_EMBEDDINGS_ONLY: Mapping[str, Field] = {
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

_EMBEDDINGS: Mapping[str, Field] = merged(OURS, _EMBEDDINGS_ONLY, PROMPT_TOKENS, LABELS, SERVED_BY_OPENAI, REFUSED)


_INCLUDES = ("reasoning.encrypted_content", "message.output_text.logprobs")
_TRANSLATED = "Translated to a chat, and checked as one."
_AS_IN_A_CHAT = ("model", "stream", "metadata", "stop", "seed", "temperature", "top_p", "top_k", "min_p")
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias")
_OF_VLLM = (
    *("ignore_eos", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens", "watermarking"),
    *("structured_outputs",),
)

RESPONSE_STREAM_OPTIONS = FieldTable(
    "stream_options of a response",
    {"include_obfuscation": label("It adds random characters to OpenAI's events; the gate adds none.")},
)
REASONING_OPTIONS = FieldTable(
    "reasoning",
    {
        "effort": Field(Kind.READ, Word(_EFFORTS), "Passed as `reasoning_effort`.", capability=_REASONING),
        "summary": label("The gate sends the reasoning as the engine writes it."),
        "generate_summary": label("The old name of `summary`."),
        "context": refused("The gate passes the items of `input`.", "auto"),
        "mode": refused("It belongs to OpenAI's models.", "standard"),
    },
)
TEXT_OPTIONS = FieldTable(
    "text",
    {
        "format": Field(Kind.READ, TEXT_FORMAT, "Translated to `response_format`, and checked as it."),
        "verbosity": refused("Say it in the prompt.", "medium"),
    },
)

_RESPONSES_ONLY: Mapping[str, Field] = {
    "input": Field(Kind.READ, INPUT, _TRANSLATED),
    "instructions": Field(Kind.READ, Text(DESCRIPTION_CHARS_MAX), "Translated to a system message."),
    "max_output_tokens": Field(Kind.READ, Whole(1), "The name of `max_tokens` here."),
    "max_tool_calls": label("It limits the calls of OpenAI's built-in tools; the gate has none."),
    "previous_response_id": Field(Kind.READ, Text(NAME_CHARS_MAX, 1), "A stored response of the same tenant."),
    "store": Field(Kind.READ, Flag(), "Stored unless it is false."),
    "stream_options": Field(Kind.READ, Record(RESPONSE_STREAM_OPTIONS), neutral=({},)),
    "text": Field(Kind.READ, Record(TEXT_OPTIONS), neutral=({},)),
    "reasoning": Field(Kind.READ, Record(REASONING_OPTIONS), neutral=({},)),
    "tools": Field(Kind.READ, RESPONSE_TOOLS, _TRANSLATED, neutral=([],), capability=TOOLS_NEED),
    "tool_choice": Field(Kind.READ, RESPONSE_TOOL_CHOICE, _TRANSLATED),
    "parallel_tool_calls": Field(Kind.READ, Flag(), _TRANSLATED),
    "top_logprobs": Field(Kind.READ, Whole(0, LOGPROBS_MAX), neutral=(0,)),
    "include": Field(Kind.READ, Items(Word(_INCLUDES), 16), neutral=([],)),
    "truncation": refused("Shorten `input`.", "disabled"),
    "background": refused("Send the request with the header `Idempotency-Key`, and repeat it.", False),
    "background_options": refused("It belongs to `background`."),
    "context_management": refused("Shorten `input`.", []),
    "conversation": refused("Use `previous_response_id`, or send the items in `input`."),
    "prompt": refused("The gate stores no prompts; use `instructions` and `input`."),
    "image": refused("The gate's answers are text."),
    "access_programs": refused("It belongs to OpenAI's platform."),
    "include_reasoning": Field(Kind.PASSED, Flag(), neutral=(True,), capability=_REASONING),
    "chat_template_kwargs": _TEMPLATE_KWARGS,
    "enable_response_messages": refused("The gate's answer has no place for its result.", False),
    "previous_input_messages": refused("Send the items in `input`."),
}

_SHARED = {
    name: field
    for name, field in merged(COMMON, VLLM_SAMPLING, FORMATS).items()
    if name in (*_AS_IN_A_CHAT, *_PENALTIES, *_OF_VLLM)
}
_RESPONSES: Mapping[str, Field] = merged(OURS, _RESPONSES_ONLY, _SHARED, LABELS, SERVED_BY_OPENAI, REFUSED)


RESPONSES_PATH = "/v1/responses"
BATCH_ENDPOINTS: Mapping[str, Endpoint] = {
    "/v1/chat/completions": Endpoint.CHAT,
    "/v1/completions": Endpoint.COMPLETION,
    "/v1/embeddings": Endpoint.EMBEDDINGS,
    RESPONSES_PATH: Endpoint.CHAT,
}
"""The paths that the lines of a batch may have, and what a line is submitted as."""
_METADATA_MAX, _METADATA_KEY_CHARS_MAX, _METADATA_CHARS_MAX = 16, 64, 512
_WINDOW_HOURS_MAX = 24
CUSTOM_ID_CHARS_MAX = 512

_KEPT = "The service keeps all files for the same time, and each file object says until when."

_BATCH: Mapping[str, Field] = {
    "input_file_id": Field(Kind.READ, Text(128, 1), required=True),
    "endpoint": Field(Kind.READ, Word(tuple(BATCH_ENDPOINTS)), "The path of all lines.", required=True),
    "completion_window": Field(
        Kind.READ,
        Text(3, 2, r"([1-9]|1[0-9]|2[0-4])h", f"a number of hours from 1h to {_WINDOW_HOURS_MAX}h"),
        "OpenAI knows 24h only.",
        required=True,
    ),
    "metadata": Field(
        Kind.READ, Entries(Text(_METADATA_CHARS_MAX), _METADATA_MAX, Text(_METADATA_KEY_CHARS_MAX, 1)), neutral=({},)
    ),
    "output_expires_after": refused(_KEPT),
}

_LINE: Mapping[str, Field] = {
    "custom_id": Field(Kind.READ, Text(CUSTOM_ID_CHARS_MAX, 1), "Different in every line.", required=True),
    "method": Field(Kind.READ, Word(("POST",)), required=True),
    "url": Field(Kind.READ, Text(128), "The endpoint of the batch.", required=True),
    "body": Field(Kind.READ, Anything(), "The request's body, an object without `stream`.", required=True),
}


_INPUTS = frozenset({"messages", "prompt", "input"})


def _elsewhere(own: Mapping[str, Field], other: Mapping[str, Field]) -> dict[str, Field]:
    return {name: field for name, field in other.items() if name not in own and name not in _INPUTS}


CHAT_TABLE = FieldTable("POST /v1/chat/completions", _CHAT, _elsewhere(_CHAT, _COMPLETION))
COMPLETION_TABLE = FieldTable("POST /v1/completions", _COMPLETION, _elsewhere(_COMPLETION, _CHAT))
EMBEDDINGS_TABLE = FieldTable("POST /v1/embeddings", _EMBEDDINGS)
RESPONSES_TABLE = FieldTable("POST /v1/responses", _RESPONSES)
BATCH_TABLE = FieldTable("POST /v1/batches", _BATCH)
LINE_TABLE = FieldTable("A line of a batch's input file", _LINE)

TABLES: Mapping[Endpoint, FieldTable] = {
    Endpoint.CHAT: CHAT_TABLE,
    Endpoint.COMPLETION: COMPLETION_TABLE,
    Endpoint.EMBEDDINGS: EMBEDDINGS_TABLE,
}
ALL = (CHAT_TABLE, COMPLETION_TABLE, RESPONSES_TABLE, EMBEDDINGS_TABLE, BATCH_TABLE, LINE_TABLE)

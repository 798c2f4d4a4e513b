"""The table of `POST /v1/chat/completions`. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.fields.kinds import Field, Kind, merged
from dispatcher.fields.limits import DOCUMENTS_MAX, LOGPROBS_MAX
from dispatcher.fields.shapes.containers import Items
from dispatcher.fields.shapes.scalars import Flag, Whole, Word
from dispatcher.fields.shapes.schemas import Free
from dispatcher.fields.table.formats import FORMATS
from dispatcher.fields.table.messages import MESSAGES
from dispatcher.fields.table.ours import LABELS, OURS, REFUSED, SERVED_BY_OPENAI, label, refused
from dispatcher.fields.table.sampling import COMMON, LOGPROBS, PROMPT_TOKENS, RESULTS, VLLM, VLLM_SAMPLING
from dispatcher.fields.table.tools import TOOLS
from dispatcher.model.fleet import Capability

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
REASONING = (Capability.REASONING,)

TEMPLATE_KWARGS = Field(
    Kind.BOUNDED,
    Free(1_000, ("chat_template", "tokenize")),
    "Arguments of the model's chat template, such as `enable_thinking`.",
    neutral=({},),
    capability=VLLM,
)

CHAT_ONLY: Mapping[str, Field] = {
    "messages": Field(Kind.BOUNDED, MESSAGES, required=True),
    "max_completion_tokens": Field(
        Kind.READ, Whole(1), "The new name of `max_tokens`. If a request has both, they must be equal."
    ),
    "logprobs": Field(Kind.PASSED, Flag(), neutral=(False,), capability=LOGPROBS),
    "top_logprobs": Field(
        Kind.BOUNDED, Whole(0, LOGPROBS_MAX), "It needs `logprobs`.", neutral=(0,), capability=LOGPROBS
    ),
    "reasoning_effort": Field(Kind.PASSED, Word(EFFORTS), capability=REASONING),
    "include_reasoning": Field(Kind.PASSED, Flag(), neutral=(True,), capability=REASONING),
    "store": refused("The gate stores no chats; use `POST /v1/responses`.", False),
    "modalities": refused("The gate's answers are text.", ["text"]),
    "audio": refused("The gate's answers are text."),
    "prediction": label("It makes OpenAI's servers faster, and changes no answer."),
    "verbosity": refused("Say it in the prompt.", "medium"),
    "web_search_options": refused("The gate has no search; define a tool."),
    "chat_template_kwargs": TEMPLATE_KWARGS,
    "documents": Field(Kind.BOUNDED, Items(Free(16), DOCUMENTS_MAX), neutral=([],), capability=VLLM),
    "echo": Field(Kind.PASSED, Flag(), neutral=(False,), capability=VLLM),
    "add_generation_prompt": Field(Kind.PASSED, Flag(), neutral=(True,), capability=VLLM),
    "continue_final_message": Field(Kind.PASSED, Flag(), neutral=(False,), capability=VLLM),
    "add_special_tokens": Field(Kind.PASSED, Flag(), neutral=(False,), capability=VLLM),
}

CHAT: Mapping[str, Field] = merged(
    OURS, COMMON, CHAT_ONLY, TOOLS, FORMATS, VLLM_SAMPLING, PROMPT_TOKENS, RESULTS, LABELS, SERVED_BY_OPENAI, REFUSED
)

"""All limits of the table, in one place. Pure.

The size of a body bounds them together (dispatcher/strict_json.py). These limits are for what a small body can make
expensive behind the gate: templates, tokenizers, grammars, samplers, image decoders.
"""

from __future__ import annotations

MODEL_CHARS_MAX = 200
MESSAGES_MAX = 4_096
PARTS_MAX = 1_024
"""Content parts of one message."""
TEXT_CHARS_MAX = 1_000_000
TOOLS_MAX = 1_024
TOOL_CALLS_MAX = 1_024
"""Tool calls of one message."""
NAME_CHARS_MAX = 256
"""The most characters in a name of a tool, a function or a schema, and in the id of a tool call."""
DESCRIPTION_CHARS_MAX = 100_000
DOCUMENTS_MAX = 256

SEED_MAX = 2**63 - 1
CHOICES_MAX = 128
"""OpenAI's limit of `n`. The tenant's limit of tokens bounds `n` times `max_tokens`."""
STOPS_MAX = 16
STOP_CHARS_MAX = 1_000
LOGPROBS_MAX = 20
"""OpenAI's and vLLM's limit of `top_logprobs`."""
TOKENS_MAX = 10_000_000
"""The greatest value of a field that counts tokens. The model's context is far below it."""
TOKEN_ID_MAX = 2**31 - 1
TOKEN_IDS_MAX = 1_024
"""The most tokens that a field such as `stop_token_ids` may name."""
PROMPT_TOKENS_MAX = 1_000_000
BAD_WORDS_MAX = 256
BAD_WORD_CHARS_MAX = 200
INPUTS_MAX = 2_048
"""OpenAI's limit of the texts of one embeddings request."""
DIMENSIONS_MAX = 65_536

DEPTH_MAX = 32
"""Levels of a JSON schema, and of other JSON objects that the gate does not read."""
NODES_MAX = 20_000
"""Values of a JSON schema, with each `$ref` replaced by its target."""
ALL_NODES_MAX = 100_000
"""Values of all schemas of one request together."""
ALTERNATIVES_MAX = 256
ENUM_MAX = 1_000
ALL_PATTERN_CHARS_MAX = 50_000
"""Characters of all regular expressions in the schemas of one request together."""
GRAMMAR_CHARS_MAX = 20_000
PATTERN_CHARS_MAX = 2_000
PATTERN_SIZE_MAX = 10_000
"""Characters of a regular expression after its repetitions are written out."""
INTEGER_MAX = 2**64
"""The greatest whole number in JSON that the gate does not read. Other JSON parsers accept no larger ones."""

IMAGES_MAX = 32
IMAGE_PIXELS_MAX = 20_000_000
PIXELS_MAX = 80_000_000
"""The most pixels of all images of one request together. They take 240 MB after decompression, at 3 bytes a pixel."""

"""The table of kinds: what servers send that is not OpenAI's form, and what becomes of it. Data only.

| kind | what becomes of it | where |
| --- | --- | --- |
| a finish reason of another API | OpenAI's (REASONS), compared by its letters and digits alone | answer.py |
| an unknown finish reason | `length` if its name says so, `tool_calls` if there are calls, else `stop` | answer.py |
| no finish reason, and then `[DONE]` or the usage | `tool_calls` if there are calls, else `stop` | answer.py |
| no finish reason, and the end of a body of known length | the same, unless a call is cut off | events.py |
| no finish reason, and any other end | the answer was broken off: the request's error | events.py |
| a reason that says that the server gave up (FAILURES) | the request's error | answer.py |
| an error object or text, wherever it is | the request's error, with the status of its code (STATUSES) | faults.py |
| an error's text for a tenant | without keys, addresses, paths and tracebacks | faults.py |
| tool calls without, with a null or with a reused index or id | an index and an id for each | tool_calls.py |
| arguments as an object; no arguments | a JSON text; `{}` | tool_calls.py |
| a name in pieces, or repeated | the name, once | tool_calls.py |
| `function_call` | a tool call | answer.py |
| content as a list of parts (TEXT_PARTS, REASONING_PARTS) | text, and `reasoning_content` | values.py |
| a text, or arguments, of more than an event between worker and gate | several pieces | events.py |
| a surrogate pair in two pieces | one character; a half alone is U+FFFD | values.py |
| `NaN`, `Infinity`, numbers beyond a float | null; in log probabilities -9999.0 | values.py |
| `-Infinity` | -9999.0, as OpenAI writes it | values.py |
| usage as floats, under other names or in other places | whole numbers under OpenAI's names | usage.py |
| usage of zero for an answer with text | the count of its pieces | usage.py |
| an unknown field of a delta or of a call | `provider_specific_fields`, which can be sent back | answer.py |
| a field that is nested too deeply to send back | left out | answer.py |

What is guessed or left out is counted, and logged once for each kind (answer.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def word(text: str) -> str:
    """Return the letters and digits of a name in lower case: `END_TURN`, `end-turn` and `endTurn` are one word."""
    return "".join(each for each in text.lower() if each.isalnum())


def _each(value: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(map(word, names.split()), value)


REASONS: Mapping[str, str] = {
    **_each("stop", "stop eos eos_token end_turn stop_sequence stop_string stop_word end_of_text end_of_turn"),
    **_each("stop", "end_of_sequence finish finished complete completed done success repetition pause_turn"),
    **_each("length", "length max_tokens max_length model_length max_output_tokens max_new_tokens length_capped"),
    **_each("length", "max_completion_tokens token_limit model_context_window_exceeded context_length_exceeded"),
    **_each("length", "incomplete limit"),
    **_each("tool_calls", "tool_calls tool_call tool_use function_call function_calls"),
    **_each("content_filter", "content_filter content_filtered filtered safety image_safety recitation blocklist spii"),
    **_each("content_filter", "prohibited_content guardrail guardrail_intervened refusal sensitive moderation flagged"),
}
"""Finish reasons by their letters and digits in lower case (`word`): of OpenAI, TGI, vLLM, Anthropic, Gemini, Bedrock,
Mistral, Cohere, Zhipu and others."""

UNFINISHED = frozenset(_each(None, "null none unspecified finish_reason_unspecified in_progress not_finished"))
"""Words that some servers send instead of null while a choice goes on."""

FAILURES: Mapping[str, int] = {
    **_each(500, "error abort aborted cancelled canceled cancel failed failure server_error engine_error"),
    **_each(500, "network_error timeout malformed_function_call"),
    **_each(503, "insufficient_system_resource overloaded"),
}
"""Finish reasons after which an answer is not whole, and the status of the request's error."""

LENGTH_WORDS = ("length", "maxtoken", "tokenlimit", "outputlimit", "truncat", "contextwindow")
"""Parts of an unknown finish reason that say that the answer was cut at a limit."""

STATUSES: Mapping[str, int] = {
    **_each(400, "bad_request invalid_request invalid_argument invalid_parameter invalid_value invalid_type value"),
    **_each(400, "validation request_validation invalid_json invalid_prompt invalid_messages unknown_parameter"),
    **_each(400, "unsupported_parameter unsupported_value missing_required_parameter string_above_max_length"),
    **_each(400, "content_policy_violation content_filter"),
    **_each(400, "context_length_exceeded context_window_exceeded exceed_context_size"),
    **_each(401, "authentication unauthorized unauthenticated invalid_api_key incorrect_api_key"),
    **_each(402, "insufficient_quota billing payment_required"),
    **_each(403, "permission permission_denied forbidden"),
    **_each(404, "not_found model_not_found"),
    **_each(413, "request_too_large request_entity_too_large payload_too_large"),
    **_each(422, "unprocessable_entity"),
    **_each(429, "rate_limit rate_limit_exceeded too_many_requests resource_exhausted throttling throttled"),
    **_each(429, "quota_exceeded request_limit_exceeded"),
    **_each(503, "overloaded engine_overloaded model_overloaded service_unavailable unavailable"),
    **_each(503, "loading model_loading not_ready model_not_ready"),
}
"""The status of an error by the word of its code, type or status, without `error` or `exception` at its end."""

TOO_LONG = frozenset(_each(None, "context_length_exceeded context_window_exceeded exceed_context_size"))
"""The words that say that the prompt is too long, whatever the text says."""

CODE_NAMES = ("code", "status", "status_code", "statusCode", "http_status", "http_code", "error_code", "type", "kind")
"""Where an error object has its status, or a word for it. The first that is understood counts."""
TEXT_NAMES = ("message", "msg", "detail", "details", "error", "error_message", "errorMessage", "status_msg", "reason")
"""Where an error object has its text."""

TEXT_PARTS: Mapping[str, str] = {"text": "text", "output_text": "text", "": "text"}
"""The types of content parts with text of the answer, and the part's field that has it."""
REASONING_PARTS: Mapping[str, str] = {"thinking": "thinking", "reasoning": "reasoning", "reasoning_text": "text"}

INPUT_NAMES = ("prompt_tokens", "input_tokens", "promptTokens", "inputTokens", "prompt_eval_count")
OUTPUT_NAMES = ("completion_tokens", "output_tokens", "completionTokens", "outputTokens", "eval_count")
"""The names of the tokens in a usage object, OpenAI's first."""
CACHED_NAMES = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens", "cachedContentTokenCount")
REASONING_NAMES = ("reasoning_tokens",)
INPUT_DETAILS = ("prompt_tokens_details", "input_tokens_details")
OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details")
"""The names of parts of these tokens, and of the objects that may hold them."""

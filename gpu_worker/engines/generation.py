"""What engines that generate by themselves share: reading a request's body, tokens to text and back, stop strings, tool
calls, and log probabilities in OpenAI's forms.

Generated text reaches the caller in whole characters only, cut at the first stop string. A tool call in it has the form
`<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen and models trained like them write it; their chat
templates ask for it. A call is sent whole once its end is there. Text between the marks that is not a call is sent as
text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from dispatcher.model.requests import Endpoint
from gpu_worker.engines.calibration import TRAINING_TEXT
from gpu_worker.engines.interface import EngineError, EngineFacts, WorkOrder


@dataclass(frozen=True, slots=True)
class Generation:
    """What to generate, and how. One of `prompt`, `prompt_ids` and `messages` is not None. `body` has the fields beside
    these."""

    prompt: str | None
    messages: list[dict[str, Any]] | None
    temperature: float
    seed: int | None
    stop: tuple[str, ...]
    body: Mapping[str, Any]
    prompt_ids: tuple[int, ...] | None = None
    """A prompt as token ids."""


def generation_of(request: WorkOrder) -> Generation:
    """Return the request's generation. Raises EngineError if it has no text to begin with."""
    body, is_chat = request.body, request.endpoint is Endpoint.CHAT
    prompt, messages = body.get("prompt"), body.get("messages")
    prompt_ids = None if is_chat else _token_ids(prompt)
    if not (bool(messages) and isinstance(messages, list) if is_chat else prompt_ids or isinstance(prompt, str)):
        raise EngineError("invalid_request", "this engine needs `messages`, or `prompt` as one text or as token ids")
    temperature, stop = body.get("temperature"), body.get("stop") or ()
    return Generation(
        None if is_chat or prompt_ids else prompt,
        [{**message, "content": _text(message.get("content"))} for message in messages or ()] if is_chat else None,
        1.0 if temperature is None else float(temperature),
        body.get("seed"),
        (stop,) if isinstance(stop, str) else tuple(stop),
        body,
        prompt_ids,
    )


def _token_ids(prompt: Any) -> tuple[int, ...] | None:
    """Return the token ids of a prompt, None if it is not a list of these."""
    is_ids = isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt)
    return tuple(prompt) if is_ids else None


def _text(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    """Return the text of a message: of its only text, or of its text parts."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text", "") for part in content)


class StopMatcher:
    """Cuts text at the first stop string, however the text is split into pieces. Holds back text that may be the
    beginning of a stop string."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Return the text that can be sent now. After a stop string (`stopped`) there is none any more."""
        if self.stopped:
            return ""
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped = True
            sent, self._held = self._held[: min(found)], ""
            return sent
        keep = self._possible_beginning()
        sent, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return sent

    def flush(self) -> str:
        """Return the text held back; call it when no text follows."""
        sent, self._held = self._held, ""
        return sent

    def _possible_beginning(self) -> int:
        """Return the length of the longest suffix of the text that begins a stop string."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0


class Detokenizer:
    """Turns tokens into text. A character of several tokens is held back until it is complete.

    `decode` turns token ids into text and writes U+FFFD for bytes that are not a complete character. Two windows of the
    last tokens are decoded, so the cost of a token does not grow with the text, and a tokenizer that treats the first
    token of a text specially (it strips a space) sees the same beginning in both.
    """

    PENDING_MAX = 8
    """Tokens held back at most. No character has more bytes; longer sequences are invalid and are passed on."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._sent = 0

    def feed(self, token: int) -> str:
        self._tokens.append(token)
        text = self._pending()
        if text.endswith("\ufffd") and len(self._tokens) - self._sent < self.PENDING_MAX:
            return ""
        self._tokens = self._tokens[self._sent :]
        self._sent = len(self._tokens)
        return text

    def flush(self) -> str:
        """Return the rest of the text; an incomplete character becomes U+FFFD."""
        text = self._pending()
        self._sent = len(self._tokens)
        return text

    def _pending(self) -> str:
        return self._decode(self._tokens)[len(self._decode(self._tokens[: self._sent])) :]


_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"


@dataclass(frozen=True, slots=True)
class ParsedText:
    """New text, and new calls as OpenAI's delta has them."""

    text: str = ""
    calls: tuple[dict[str, Any], ...] = ()


class ToolCallParser:
    """Finds the tool calls in a model's text. `calls`: their number so far."""

    def __init__(self, answer_id: str) -> None:
        self._answer_id = answer_id
        self._held = ""
        self._inside = False
        self.calls = 0

    def feed(self, text: str) -> ParsedText:
        """Take new text. Text that may be part of a call is held back."""
        self._held += text
        texts: list[str] = []
        calls: list[dict[str, Any]] = []
        while True:
            mark = _CLOSE if self._inside else _OPEN
            before, found, after = self._held.partition(mark)
            if not found:
                break
            self._held = after
            if not self._inside:
                texts.append(self._visible(before))
            elif (call := self._call(before)) is not None:
                calls.append(call)
            else:
                texts.append(_OPEN + before + _CLOSE)
            self._inside = not self._inside
        if not self._inside:
            keep = _possible_mark(self._held)
            texts.append(self._visible(self._held[: len(self._held) - keep]))
            self._held = self._held[len(self._held) - keep :]
        return ParsedText("".join(texts), tuple(calls))

    def flush(self) -> ParsedText:
        """Return what is held back; call it when no text follows."""
        held, self._held = (_OPEN if self._inside else "") + self._held, ""
        self._inside = False
        return ParsedText(self._visible(held))

    def _visible(self, text: str) -> str:
        """Return the text without the white space between two calls."""
        return text if text.strip() or not self.calls else ""

    def _call(self, text: str) -> dict[str, Any] | None:
        try:
            written = json.loads(text)
            name, arguments = written["name"], written.get("arguments", {})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        index, self.calls = self.calls, self.calls + 1
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        return {"index": index, "id": f"call_{self._answer_id}_{index}", "type": "function", "function": function}


def _possible_mark(text: str) -> int:
    """Return the length of the longest suffix of the text that begins a mark."""
    return next((size for size in range(len(_OPEN) - 1, 0, -1) if text.endswith(_OPEN[:size])), 0)


_Ranked = Sequence[tuple[str, float]]
"""Texts of tokens and their natural log probabilities, the most likely first."""


def chat_form(text: str, logprob: float, top: _Ranked) -> dict[str, Any]:
    """Return the `logprobs` of a chat's choice."""
    alternatives = [_entry(each, value) for each, value in top]
    return {"content": [{**_entry(text, logprob), "top_logprobs": alternatives}], "refusal": None}


def completion_form(text: str, logprob: float, top: _Ranked, offset: int) -> dict[str, Any]:
    """Return the `logprobs` of a completion's choice. `offset`: characters of the answer before this token."""
    alternatives = {**dict(reversed(top)), text: logprob}
    return {"tokens": [text], "token_logprobs": [logprob], "top_logprobs": [alternatives], "text_offset": [offset]}


def _entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


_LONG_PROMPT_BYTES = 16_384
"""Longer prompts are tokenized in a thread, so that the event loop goes on streaming to other requests."""


class Tokenizing:
    """Text to tokens and back for a local Hugging Face model."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def facts(self, model: str, context_tokens: int) -> EngineFacts:
        tokens = len(self.tokenizer(TRAINING_TEXT)["input_ids"])
        return EngineFacts(model, context_tokens, len(TRAINING_TEXT.encode()) / tokens)

    @property
    def has_tools(self) -> bool:
        """Whether the chat template shows tools to the model, and asks for calls as ToolCallParser reads them."""
        template = self.tokenizer.chat_template
        return isinstance(template, str) and "tools" in template and _OPEN in template

    def prompt(self, generation: Generation, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return the text that the model reads. Raises EngineError for messages that the model's template refuses."""
        if generation.prompt is not None:
            return generation.prompt
        return self.render_chat([_parsed_calls(each) for each in generation.messages or ()], tools)

    def render_chat(self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Render by the model's own template. Raises EngineError for messages that it refuses."""
        if not self.tokenizer.chat_template:
            return "".join(f"{message['role']}: {message['content']}\n" for message in messages) + "assistant:"
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    messages, tools=[*tools] or None, tokenize=False, add_generation_prompt=True
                )
            )
        except Exception as error:  # a template may raise any exception
            message = f"the model's chat template refuses these messages: {error}"
            raise EngineError("invalid_messages", message) from None

    def decode_token(self, token: int) -> str:
        """Return the text of one token by itself."""
        return str(self.tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False))

    async def tokens(self, prompt: str) -> list[int]:
        if len(prompt) > _LONG_PROMPT_BYTES:
            return await asyncio.to_thread(self._token_ids, prompt)
        return self._token_ids(prompt)

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(partial(self.tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _token_ids(self, prompt: str) -> list[int]:
        """Tokenize. A rendered chat contains its begin-of-text token; for a bare prompt the tokenizer adds it."""
        begin = self.tokenizer.bos_token
        bare = not (begin and prompt.startswith(begin))
        ids: list[int] = self.tokenizer(prompt, add_special_tokens=bare)["input_ids"]
        return ids or [self.tokenizer.bos_token_id or 0]


def _parsed_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message with the arguments of its tool calls as objects, as templates need them, not as JSON text."""
    calls = [dict(call) for call in message.get("tool_calls") or ()]
    for call in calls:
        function = call.get("function") or {}
        with suppress(TypeError, ValueError):  # a model may have written invalid JSON: the template gets the text
            call["function"] = {**function, "arguments": json.loads(function.get("arguments", ""))}
    return {**message, "tool_calls": calls} if calls else dict(message)

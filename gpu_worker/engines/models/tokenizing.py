"""Text to tokens and back for a local Hugging Face model, for every engine that serves one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from gpu_worker.engines.generation import Generation
from gpu_worker.engines.interface import EngineError, EngineFacts
from gpu_worker.engines.models.tiny_text import TRAINING_TEXT
from gpu_worker.engines.text import Detokenizer
from gpu_worker.engines.tool_calls import OPEN

LONG_PROMPT_BYTES = 16_384
"""Longer prompts are tokenized in a thread, so that the event loop goes on streaming to other requests."""


class Tokenizing:
    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def facts(self, model: str, context_tokens: int) -> EngineFacts:
        tokens = len(self.tokenizer(TRAINING_TEXT)["input_ids"])
        return EngineFacts(model, context_tokens, len(TRAINING_TEXT.encode()) / tokens)

    @property
    def has_tools(self) -> bool:
        """Whether the chat template shows tools to the model, and asks for calls in the form of tool_calls.py."""
        template = self.tokenizer.chat_template
        return isinstance(template, str) and "tools" in template and OPEN in template

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
        if len(prompt) > LONG_PROMPT_BYTES:
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

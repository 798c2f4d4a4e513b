"""Text to tokens and back for a local Hugging Face model, for every engine that serves one."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from gpu_worker.engines.generation import Generation
from gpu_worker.engines.interface import EngineError, EngineFacts, PromptTooLong
from gpu_worker.engines.models.tiny_text import TRAINING_TEXT
from gpu_worker.engines.text import Detokenizer

LONG_PROMPT_BYTES = 16_384
"""Longer prompts are tokenized in a thread, so that the event loop goes on streaming to other requests."""


class Tokenizing:
    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def facts(self, model: str, context_tokens: int) -> EngineFacts:
        tokens = len(self.tokenizer(TRAINING_TEXT)["input_ids"])
        return EngineFacts(model, context_tokens, len(TRAINING_TEXT.encode()) / tokens)

    def prompt(self, generation: Generation) -> str:
        """Return the text that the model reads. Raises EngineError for messages that the model's template refuses."""
        return self.render_chat(generation.messages or []) if generation.prompt is None else generation.prompt

    def render_chat(self, messages: list[dict[str, Any]]) -> str:
        """Render by the model's own template. Raises EngineError for messages that it refuses."""
        if not self.tokenizer.chat_template:
            return "".join(f"{message['role']}: {message['content']}\n" for message in messages) + "assistant:"
        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template may raise any exception
            message = f"the model's chat template refuses these messages: {error}"
            raise EngineError("invalid_messages", message) from None

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


def check_length(input_tokens: int, max_tokens: int, limit: int) -> None:
    """Raises PromptTooLong."""
    if input_tokens + max_tokens > limit:
        sizes = f"the prompt has {input_tokens} tokens and max_tokens is {max_tokens}"
        raise PromptTooLong(f"{sizes}: together more than the {limit} that fit")

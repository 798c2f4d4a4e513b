"""Puts the recorded log probabilities of a token into the form of its endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatcher.model.requests import Endpoint
from gpu_worker.engines.generation import chat_form, completion_form
from gpu_worker.engines.transformers.logprob_recorder import LogprobRecorder
from gpu_worker.engines.transformers.sequences import Sequence


class LogprobForms:
    """`decode`: returns the text of one token. Use it in the engine thread only."""

    def __init__(self, recorder: LogprobRecorder, decode: Callable[[int], str]) -> None:
        self.recorder = recorder
        self._decode = decode

    def take(self, sequence: Sequence, token: int) -> dict[str, Any] | None:
        """Return the `logprobs` of the sequence's next token; None if the request does not have the field."""
        found = self.recorder.take(sequence.sequence_id)
        if found is None:
            return None
        text, offset = self._decode(token), sequence.chars
        sequence.chars += len(text)
        top = [(self._decode(each), logprob) for each, logprob in found.top]
        if sequence.request.endpoint is Endpoint.CHAT:
            return chat_form(text, found.logprob, top)
        return completion_form(text, found.logprob, top, offset)

    def forget(self, sequence_id: str) -> None:
        self.recorder.forget(sequence_id)

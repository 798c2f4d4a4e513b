"""A tenant's request after validation: one type for chat and completion. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

from dispatcher.model.bounds import Bounds

_NOT_IN_THE_FINGERPRINT = frozenset({"stream", "include_usage", "app", "stage", "interaction"})

Text = Annotated[str, Bounds(0, 1_000_000)]


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a chat, reduced to what the model reads."""

    role: Annotated[str, Bounds(0, 32)]
    content: Text


@dataclass(frozen=True, slots=True)
class Request:
    """A validated request. Either `prompt` (a completion) or `messages` (a chat) is not None.

    The client sets `app`, `stage` and `interaction`. They affect only the order of its tenant's own requests, and
    throttling.
    """

    model: str
    chat: bool
    prompt: str | None
    messages: tuple[Message, ...] | None
    max_tokens: int | None
    temperature: float
    seed: int | None
    stop: tuple[str, ...]
    stream: bool = False
    include_usage: bool = False
    app: str = ""
    stage: int = 0
    interaction: str = ""

    def prompt_bytes(self) -> int:
        """Return the UTF-8 bytes of all text that the model will read, without the chat template."""
        if self.prompt is not None:
            return len(self.prompt.encode())
        return sum(len(message.role.encode()) + len(message.content.encode()) for message in self.messages or ())

    def fingerprint(self) -> str:
        """Return the SHA-256 of the fields that decide the answer. It is the same with and without streaming."""
        deciding = {name: value for name, value in asdict(self).items() if name not in _NOT_IN_THE_FINGERPRINT}
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        # Without ensure_ascii: the store limits the bytes, and an escape turns two bytes into six.
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)


def request_from_json(text: str) -> Request:
    """Decode the text of `Request.to_json`. An older version, without some of today's optional fields, may have written
    it."""
    raw: dict[str, Any] = json.loads(text)
    raw["stop"] = tuple(raw["stop"])
    raw["messages"] = None if raw["messages"] is None else tuple(Message(**each) for each in raw["messages"])
    return Request(**{field.name: raw[field.name] for field in fields(Request) if field.name in raw})

"""What a tenant asks for, once validated: one form for chat and completion. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

_NOT_OF_THE_ANSWER = frozenset({"stream", "include_usage", "app", "stage", "interaction"})


@dataclass(frozen=True, slots=True)
class Request:
    """`app`, `stage`, `interaction`: what the tenant says of its own requests; it orders them among each other."""

    model: str
    chat: bool
    prompt: str | None
    messages: tuple[Mapping[str, str], ...] | None
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
        """UTF-8 bytes of all that the model will read, its template not counted."""
        if self.prompt is not None:
            return len(self.prompt.encode())
        return sum(len(part.encode()) for message in self.messages or () for part in message.values())

    def fingerprint(self) -> str:
        """SHA-256 over what decides the answer: streaming or not, the same question is the same invocation."""
        asked = {name: value for name, value in asdict(self).items() if name not in _NOT_OF_THE_ANSWER}
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        # As it is, not escaped: what is kept is bounded in bytes, and an escape makes two bytes six.
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)


def request_from_json(text: str) -> Request:
    """Back from `Request.to_json`, also where it was written before a field was there that has a default."""
    raw: dict[str, Any] = json.loads(text)
    raw["stop"] = tuple(raw["stop"])
    raw["messages"] = None if raw["messages"] is None else tuple(raw["messages"])
    return Request(**{field.name: raw[field.name] for field in fields(Request) if field.name in raw})

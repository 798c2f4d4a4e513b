"""Makes short keys of the beginnings of a prompt. By them the gate finds a worker that has one in its cache. Pure.

A chat grows by turns: its next request repeats its messages, and adds the answer and a new message. So a request has
these keys, the longest beginning first:

1. all its messages: the beginning of the next turn, or this request again;
2. its messages before the last answer: key 1 of the turn before;
3. its first message, if that is long: a system prompt that many chats share.

A completion has key 3 of the beginning of its text. A key is the hash of the beginning, under a salt of the tenant, or
of its prefix group: no tenant finds the prefixes of one outside of its group. The text cannot be
read from it, but a guess of a whole beginning can be checked, as with any hash.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from dispatcher.model.requests import Endpoint, Request

KEY_CHARS = 8
"""The characters of a key, of base64: 48 bits. With 100,000 remembered keys, one in 3 billion new ones equals another
beginning's, and its call meets no prefix."""
KEYS_MAX = 3
_SHARED_BYTES = 1024
"""A first message below this length is not worth a key; of a longer text, so much is hashed."""


def prefix_keys(request: Request, salt: str) -> str:
    """Return the keys of a request, KEY_CHARS each, without separators; empty if it has none."""
    value = request.body.get(request.endpoint.prompt_field)
    if request.endpoint is Endpoint.CHAT and isinstance(value, list) and value:
        return _keys_of_chat(value, salt)
    if request.endpoint is Endpoint.COMPLETION and isinstance(value, str) and len(value) >= _SHARED_BYTES:
        return _key(blake2b(value[:_SHARED_BYTES].encode(errors="replace"), key=_salt(salt), digest_size=6))
    return ""


def split_keys(keys: str) -> Sequence[str]:
    """Return the single keys, the longest beginning first."""
    return [keys[place : place + KEY_CHARS] for place in range(0, len(keys), KEY_CHARS)]


def _keys_of_chat(messages: list[Any], salt: str) -> str:
    answers = [place for place, message in enumerate(messages) if _role(message) == "assistant"]
    last_answer = answers[-1] if answers else 0
    found, first = blake2b(key=_salt(salt), digest_size=6), ""
    before_answer = ""
    for place, message in enumerate(messages):
        if place == last_answer and place:
            before_answer = _key(found)
        text = json.dumps(message, sort_keys=True, separators=(",", ":")).encode()
        found.update(text)
        if not place and len(text) >= _SHARED_BYTES:
            first = _key(found)
    whole = _key(found)
    return "".join(dict.fromkeys(key for key in (whole, before_answer, first) if key))


def _role(message: Any) -> object:
    return message.get("role") if isinstance(message, dict) else None


def _key(hashed: Any) -> str:
    return urlsafe_b64encode(hashed.copy().digest()).decode()


def _salt(salt: str) -> bytes:
    return blake2b(salt.encode(), digest_size=32).digest()

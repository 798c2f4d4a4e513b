"""Messages of a chat: their roles, fields and content parts. Pure."""

from __future__ import annotations

from dispatcher.fields.kinds import Field, FieldTable, Kind
from dispatcher.fields.limits import MESSAGES_MAX, NAME_CHARS_MAX, PARTS_MAX, TEXT_CHARS_MAX
from dispatcher.fields.shapes.containers import Either, Form, Items, Record, Tagged
from dispatcher.fields.shapes.image_url import ImageUrl
from dispatcher.fields.shapes.scalars import Text, Word
from dispatcher.fields.table.ours import ANTHROPIC, label, refused
from dispatcher.fields.table.tools import NO_FIELDS, TOOL_CALLS, TOOLS_NEED
from dispatcher.model.fleet import Capability

_CACHE = label("It configures OpenAI's cache.")
_SOURCES = label("Sources of an earlier answer; the model does not read them.")
_THEIRS = label("Engines and gateways add it to answers; the model does not read it.")
TEXT_PART = FieldTable(
    "text part",
    {
        "text": Field(Kind.BOUNDED, Text(TEXT_CHARS_MAX), required=True),
        "prompt_cache_breakpoint": _CACHE,
        "cache_control": ANTHROPIC,
        "annotations": _SOURCES,
    },
)
IMAGE_URL = FieldTable(
    "image_url",
    {
        "url": Field(Kind.BOUNDED, ImageUrl(), required=True),
        "detail": Field(Kind.PASSED, Word(("auto", "low", "high", "original"))),
    },
)
IMAGE_PART = FieldTable(
    "image part",
    {
        "image_url": Field(Kind.BOUNDED, Record(IMAGE_URL), required=True),
        "prompt_cache_breakpoint": _CACHE,
        "cache_control": ANTHROPIC,
        "uuid": Field(Kind.OURS, Text(1), "An engine would share the image between tenants by this name."),
    },
)
_FETCHED = "The gate accepts text, and images as `data:` URLs."
_REFUSED_PARTS = {
    name: Form(NO_FIELDS, refused=_FETCHED)
    for name in (
        *("input_audio", "audio_url", "audio_embeds", "video_url", "file", "input_file", "image_embeds", "image_pil"),
        *("prompt_embeds", "input_image", "input_text", "output_text", "refusal", "thinking"),
    )
}
_TEXT_ONLY = {"text": Form(TEXT_PART), "image_url": Form(NO_FIELDS, refused="Only a user's message has images.")}
_TEXTS = Tagged("type", {**_TEXT_ONLY, **_REFUSED_PARTS})
_TEXTS_AND_IMAGES = Tagged(
    "type", {"text": Form(TEXT_PART), "image_url": Form(IMAGE_PART, (Capability.IMAGES,)), **_REFUSED_PARTS}
)
_TEXT = Text(TEXT_CHARS_MAX)
_WRITTEN = Either({str: _TEXT, list: Items(_TEXTS, PARTS_MAX, 1)})

_NAME = Field(Kind.PASSED, Text(NAME_CHARS_MAX), neutral=("",))
_CONTENT = Field(Kind.BOUNDED, _WRITTEN, required=True)
_REASONING = Field(Kind.BOUNDED, _TEXT, "The model's chat template decides whether the model reads it.", neutral=("",))

INSTRUCTIONS = FieldTable(
    "system or developer message", {"content": _CONTENT, "name": _NAME, "cache_control": ANTHROPIC}
)
USER = FieldTable(
    "user message",
    {
        "content": Field(
            Kind.BOUNDED, Either({str: _TEXT, list: Items(_TEXTS_AND_IMAGES, PARTS_MAX, 1)}), required=True
        ),
        "name": _NAME,
        "cache_control": ANTHROPIC,
    },
)
TOOL_RESULT = FieldTable(
    "tool message",
    {
        "content": _CONTENT,
        "tool_call_id": Field(Kind.PASSED, Text(NAME_CHARS_MAX, 1), required=True),
        "name": _NAME,
        "cache_control": ANTHROPIC,
    },
)
ASSISTANT = FieldTable(
    "assistant message",
    {
        "content": Field(Kind.BOUNDED, _WRITTEN, "Without content, the message has the empty text.", neutral=([],)),
        "name": _NAME,
        "tool_calls": Field(Kind.BOUNDED, TOOL_CALLS, neutral=([],), capability=TOOLS_NEED),
        "reasoning": _REASONING,
        "reasoning_content": _REASONING,
        "refusal": _REASONING,
        "audio": refused("The gate accepts text.", {}),
        "function_call": refused("Use `tool_calls`.", {}),
        "tool_call_id": refused("Only a tool message has it."),
        "annotations": _SOURCES,
        "citations": _SOURCES,
        "provider_specific_fields": _THEIRS,
        "extra_content": _THEIRS,
        "reasoning_details": _THEIRS,
        "thinking_blocks": _THEIRS,
        "cache_control": ANTHROPIC,
        "parsed": label("The OpenAI SDK's `parse()` adds it; the content has the same value as text."),
    },
)
"""An answer's message with its null fields, as an SDK sends it back in the next turn, is such a message."""

MESSAGE = Tagged(
    "role",
    {
        "system": Form(INSTRUCTIONS),
        "developer": Form(INSTRUCTIONS),
        "user": Form(USER),
        "assistant": Form(ASSISTANT, defaults={"content": ""}),
        "tool": Form(TOOL_RESULT, TOOLS_NEED),
        "function": Form(NO_FIELDS, refused="Use the role `tool`."),
    },
)
MESSAGES = Items(MESSAGE, MESSAGES_MAX, 1)

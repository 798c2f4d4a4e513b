"""Write a tokenizer of 256 tokens, one for each byte, as the files that Hugging Face's libraries load.

The load tools build their prompts with the tokenizer of the model under test. The modelled engine has none, and no
tokenizer can be fetched without internet.
"""

from __future__ import annotations

import json
from pathlib import Path

CONTEXT_TOKENS = 4096
UNKNOWN = "<unk>"
CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"


def byte_characters() -> list[str]:
    """Return the character that stands for each byte in a byte-level tokenizer.

    Printable Latin-1 characters stand for themselves. The other bytes get the characters from U+0100 on, in order.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json into `folder`, which is created if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {character: token for token, character in enumerate(byte_characters())}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    content: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 256, "content": UNKNOWN, **special}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT_TOKENS,
        "unk_token": UNKNOWN,
        "eos_token": UNKNOWN,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))

"""A tiny Llama with random weights, for demos and tests: real tokens, real attention, nothing to download.

It has two layers of width 128 (or more: as random, only slower) and a byte-level BPE vocabulary trained on a paragraph
of our own. The weights come from a fixed seed, so the same seed generates the same text everywhere. Its tokens are
printable (random_llama.py), and max_tokens decides the length.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from gpu_worker.engines.models.random_llama import LlamaShape, build_llama
from gpu_worker.engines.models.tiny_text import CHAT_TEMPLATE, TRAINING_TEXT

BUILT_MODEL_NAME = "headgate-tiny"
BUILD = 2
"""Counts the changes of what is built, so that a folder of an older version is not used. 2: a template with tools."""
HEAD_WIDTH = 32
VOCABULARY_MAX = 768
CONTEXT_TOKENS = 2048
SPECIAL = ("<|begin|>", "<|end|>", "<|pad|>")


@dataclass(frozen=True, slots=True)
class TinySize:
    layers: int = 2
    width: int = 128

    @classmethod
    def parse(cls, text: str) -> TinySize | None:
        """Parse `random:LAYERSxWIDTH`; None for any other text. Raises ValueError for an impossible size."""
        if not text.startswith("random:"):
            return None
        found = re.fullmatch(r"random:([1-9]\d?)x([1-9]\d{0,4})", text)
        if found is None or int(found[2]) % HEAD_WIDTH:
            raise ValueError(f"{text!r} should be random:LAYERSxWIDTH, the width a multiple of {HEAD_WIDTH}")
        return cls(int(found[1]), int(found[2]))

    @property
    def shape(self) -> LlamaShape:
        heads = self.width // HEAD_WIDTH
        return LlamaShape(self.layers, self.width, HEAD_WIDTH, heads, heads, 2 * self.width, CONTEXT_TOKENS)


def model_folder(model: str | None, home: Path, *, weights_seed: int = 0) -> tuple[Path, str]:
    """Return the folder of a model and its name for tenants. `model`: a local folder, or `random:LAYERSxWIDTH` for a
    model built under `home`; None is `random:2x128`.

    Raises FileNotFoundError for a folder without a model, ValueError for an impossible size.
    """
    size = TinySize() if model is None else TinySize.parse(model)
    folder = Path(model or "") if size is None else ensure_tiny_model(home, size, weights_seed=weights_seed)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} is not a model's folder: it has no config.json")
    return folder, folder.name if size is None else BUILT_MODEL_NAME


def ensure_tiny_model(home: Path, size: TinySize, *, weights_seed: int = 0) -> Path:
    """Return the model's folder under `home`; build it if it is missing (under a second). Safe for concurrent
    callers."""
    folder = home / f"random-llama-{size.layers}x{size.width}-{weights_seed}-v{BUILD}"
    if not (folder / "config.json").exists():
        building = home / f".{folder.name}-{os.getpid()}-{id(folder)}"
        build_tiny_model(building, size, weights_seed=weights_seed)
        try:
            building.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(building)
    return folder


def build_tiny_model(folder: Path, size: TinySize, *, weights_seed: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    model = build_llama(tokenizer, size.shape, weights_seed)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE: any text is encoded and decoded without change."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_MAX,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TRAINING_TEXT], trainer)
    begin, end, pad = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        eos_token=end,
        pad_token=pad,
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )

"""A Llama with random weights, of any size, on any device: real attention and nothing to download.

Random weights would generate unprintable tokens, so the model has a bias against them: channel 0 of every embedding is
a constant that survives to the last norm, and the head's weight on it makes tokens unlikely that are not printable text
by themselves (single bytes, special tokens, the end of text). Therefore max_tokens decides the length.

`peak` makes the most likely token stand out, for comparisons in a number format with few digits: there the shape of a
batch decides between nearly equal logits. Every printable token has a fixed successor. _SUCCESSOR_CHANNELS channels of
the embeddings hold a random code of the token, no layer writes to them, and the head adds `peak` standard deviations to
the successor's logit. The context still decides some of the tokens: with peak 4.5 and 600 printable tokens, about a
tenth.

The tiny one is for demos and tests. It has two layers of width 128 (or more: as random, only slower) and a byte-level
BPE vocabulary trained on a paragraph of our own. The weights come from a fixed seed, so the same seed generates the
same text everywhere.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from gpu_worker.engines.calibration import TRAINING_TEXT

_SUCCESSOR_CHANNELS = 256
"""The number of the embeddings' channels for a token's code. A model uses at most a quarter of its width."""
_BIAS_CHANNEL = 0
_BIAS = 2.0
"""The constant in the embeddings' channel 0, and the size of the numbers in a token's code."""
_DEVIATION = 0.2
"""Standard deviation of all other weights, at width 128."""
_HEAD_SCALE = 0.6
"""Makes the distribution of the next token about as flat as a real model's: some tens of likely ones."""
_UNLIKELY = -20.0


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """`heads` query heads share `kv_heads` heads of keys and values, each `head_width` wide. `vocabulary`: tokens, at
    least the tokenizer's; 0 for as many. `peak`: standard deviations by which the logit of a token's successor stands
    out."""

    layers: int
    width: int
    head_width: int
    heads: int
    kv_heads: int
    intermediate: int
    context_tokens: int
    vocabulary: int = 0
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    peak: float = 0.0


def build_llama(tokenizer: PreTrainedTokenizerFast, shape: LlamaShape, weights_seed: int) -> LlamaForCausalLM:
    """Build the model directly on its device. The same seed gives the same weights on the same kind of device."""
    with torch.device(shape.device):
        model = LlamaForCausalLM._from_config(_config(tokenizer, shape), dtype=shape.dtype).eval()
    generator = torch.Generator(shape.device).manual_seed(weights_seed)
    deviation = _DEVIATION * (128 / shape.width) ** 0.5
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.endswith("norm.weight"):
                weight.normal_(0.0, deviation, generator=generator)
        head = model.lm_head.weight
        model.model.embed_tokens.weight[:, _BIAS_CHANNEL] = _BIAS
        _protect(model, slice(_BIAS_CHANNEL, _BIAS_CHANNEL + 1))
        head *= _HEAD_SCALE
        head[:, _BIAS_CHANNEL] = 0.0
        unlikely = [*unprintable_tokens(tokenizer), *range(len(tokenizer), model.config.vocab_size)]
        if shape.peak:
            logit_deviation = _HEAD_SCALE * deviation * shape.width**0.5
            _add_successors(model, unlikely, shape.peak * logit_deviation, generator)
        head[torch.tensor(unlikely, device=head.device), _BIAS_CHANNEL] = _UNLIKELY * shape.layers
    return model


def unprintable_tokens(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Return the tokens that are not printable ASCII text by themselves."""
    texts = (tokenizer.decode([token], skip_special_tokens=True) for token in range(len(tokenizer)))
    return [token for token, text in enumerate(texts) if not (text and text.isascii() and text.isprintable())]


def _config(tokenizer: PreTrainedTokenizerFast, shape: LlamaShape) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=shape.vocabulary or len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_width,
        max_position_embeddings=shape.context_tokens,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )


def _protect(model: Any, channels: slice) -> None:
    """Let no layer write to these channels."""
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[channels] = 0.0
        layer.mlp.down_proj.weight[channels] = 0.0


def _add_successors(model: Any, unlikely: list[int], logit: float, generator: torch.Generator) -> None:
    """Give each likely token another one as its successor, and add about `logit` to the successor's logit."""
    embeddings, head = model.model.embed_tokens.weight, model.lm_head.weight
    tokens, width = embeddings.shape
    count = min(_SUCCESSOR_CHANNELS, width // 4)
    channels = slice(_BIAS_CHANNEL + 1, _BIAS_CHANNEL + 1 + count)
    likely = torch.tensor(sorted(set(range(tokens)) - set(unlikely)), device=head.device)
    predecessor = likely[torch.randperm(len(likely), generator=generator, device=head.device)]
    coin = torch.randint(2, (tokens, count), generator=generator, device=head.device)
    code = (2 * coin - 1).to(head.dtype)
    embeddings[:, channels] = _BIAS * code
    _protect(model, channels)
    sample = likely[: min(len(likely), 64)].unsqueeze(0)
    # The last norm divides the constant channel by the size of the hidden state, as it divides the code.
    code_size = model.model(sample, use_cache=False).last_hidden_state[..., _BIAS_CHANNEL].float().mean().item()
    head[:, channels] = 0.0
    head[likely, channels] = code[predecessor] * (logit / (count * code_size))


BUILT_MODEL_NAME = "headgate-tiny"
_BUILD = 2
"""Counts the changes of what is built, so that a folder of an older version is not used. 2: a template with tools."""
_HEAD_WIDTH = 32
_VOCABULARY_MAX = 768
_CONTEXT_TOKENS = 2048
_SPECIAL = ("<|begin|>", "<|end|>", "<|pad|>")
_CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}system: call a tool as <tool_call>{name, arguments}</tool_call>\n"
    "{% for tool in tools %}tool: {{ tool['function'] | tojson }}\n{% endfor %}{% endif %}"
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}<tool_call>{{ call['function'] | tojson }}</tool_call>{% endfor %}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


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
        if found is None or int(found[2]) % _HEAD_WIDTH:
            raise ValueError(f"{text!r} should be random:LAYERSxWIDTH, the width a multiple of {_HEAD_WIDTH}")
        return cls(int(found[1]), int(found[2]))

    @property
    def shape(self) -> LlamaShape:
        heads = self.width // _HEAD_WIDTH
        return LlamaShape(self.layers, self.width, _HEAD_WIDTH, heads, heads, 2 * self.width, _CONTEXT_TOKENS)


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
    folder = home / f"random-llama-{size.layers}x{size.width}-{weights_seed}-v{_BUILD}"
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
        vocab_size=_VOCABULARY_MAX,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TRAINING_TEXT], trainer)
    begin, end, pad = _SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        eos_token=end,
        pad_token=pad,
        model_max_length=_CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
        chat_template=_CHAT_TEMPLATE,
    )

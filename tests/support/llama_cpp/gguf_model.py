"""Writes a Hugging Face Llama (random_llama.py) as a GGUF file for llama.cpp's server.

llama.cpp orders the rows of the query and key weights in another way. They are random here, so they stay as they are:
the file's model answers with other tokens than the folder's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
from safetensors.numpy import load_file

_WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_OF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(folder: Path, file: Path) -> None:
    """Write the model in `folder` to `file`."""
    writer = gguf.GGUFWriter(file, "llama")
    _add_shape(writer, json.loads((folder / "config.json").read_text()))
    _add_tokenizer(writer, folder)
    for name, tensor in load_file(folder / "model.safetensors").items():
        writer.add_tensor(_tensor_name(name), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])


def _add_tokenizer(writer: Any, folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    control = {token["id"] for token in tokenizer["added_tokens"]}
    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda entry: int(entry[1]))
    kinds = [gguf.TokenType.CONTROL if number in control else gguf.TokenType.NORMAL for _, number in vocabulary]
    writer.add_tokenizer_model("gpt2")  # byte-level BPE
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types(kinds)
    writer.add_token_merges(
        [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    )
    writer.add_chat_template((folder / "chat_template.jinja").read_text())


def _tensor_name(name: str) -> str:
    if name in _WHOLE:
        return _WHOLE[name]
    _, _, layer, *parts = name.split(".")
    return f"blk.{layer}.{_OF_LAYER['.'.join(parts[:-1])]}.weight"

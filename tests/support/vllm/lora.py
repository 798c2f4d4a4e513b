"""LoRA adapters with random weights for the tiny model, as folders that vLLM loads."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

RANK = 8
_SCALE = 0.5
"""Large enough that two adapters generate different tokens."""


def make_adapter(model: Path, folder: Path, seed: int) -> Path:
    """Write an adapter of the attention's queries and values into a new folder, and return it."""
    config = json.loads((model / "config.json").read_text())
    width, heads, kv_heads = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    head_width = config.get("head_dim") or width // heads
    chance = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for layer in range(config["num_hidden_layers"]):
        for name, outputs in (("q_proj", heads * head_width), ("v_proj", kv_heads * head_width)):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = _SCALE * torch.randn(RANK, width, generator=chance)
            weights[f"{prefix}.lora_B.weight"] = _SCALE * torch.randn(outputs, RANK, generator=chance)
    folder.mkdir(parents=True)
    save_file(weights, str(folder / "adapter_model.safetensors"))
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": RANK,
        "lora_alpha": RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder

"""What the engine takes of its device: the sizes of cache and steps, and the type of the numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

AUTO = "auto"
CPU_KV_TOKENS = 8192
"""A CPU's memory also belongs to everything else on the machine, so its cache does not take what is free."""
CPU_STEP_TOKENS = 512
CUDA_STEP_TOKENS = 2048
"""A step's attention mask has a row for each of its tokens, and a column for each token of the cache."""
MEMORY_SHARE = 0.8
"""Part of the GPU memory left by the model that the library plans with: cache, masks, activations. The rest is for our
sampling, with tensors of the vocabulary's size, and for fragmentation."""


@dataclass(frozen=True, slots=True)
class TransformersShape:
    """`batch`: sequences in a batch at most. `kv_tokens`: size of the cache; 0: what the GPU can hold, on a CPU
    CPU_KV_TOKENS. `step_tokens`: tokens of a step at most, longer prompts are prefilled in pieces; 0: by the device.
    `threads`: of torch, on a CPU. `swap_bytes`: host memory for swapped KV. `calibrate`: measure prompts, tokens and
    copies at the start."""

    batch: int = 4
    kv_tokens: int = 0
    block_tokens: int = 16
    step_tokens: int = 0
    threads: int = 1
    swap_bytes: int = 0
    calibrate: bool = False

    def fit_to(self, device_type: str) -> TransformersShape:
        """Return the shape with the device's sizes. `kv_tokens` stays 0 on a GPU, where the library measures."""
        on_cpu = device_type == "cpu"
        return replace(
            self,
            kv_tokens=self.kv_tokens or (CPU_KV_TOKENS if on_cpu else 0),
            step_tokens=self.step_tokens or (CPU_STEP_TOKENS if on_cpu else CUDA_STEP_TOKENS),
        )


def choose_dtype(name: str, device: str, *, is_built: bool) -> torch.dtype | str:
    """Return the type of weights and cache, as `from_pretrained` takes it.

    `auto` is float32 on a CPU. On a GPU it is the type of the checkpoint, and for a model that was built here bfloat16,
    or float16 if the GPU is too old for that.
    """
    if name != AUTO:
        found: torch.dtype = getattr(torch, name)
        return found
    if device == "cpu":
        return torch.float32
    if is_built:
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return AUTO


def describe_sizes(model: Any, cache: Any, *, kv_tokens: int, step_tokens: int) -> str:
    """Return a line for people: the device, the type, and the sizes of cache and steps."""
    device = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else "CPU"
    dtype = str(model.dtype).removeprefix("torch.")
    gigabytes = cache.num_sectors * cache.bytes_per_sector / 1e9
    return f"{device}, {dtype}: {kv_tokens:,} tokens of KV ({gigabytes:.1f} GB), at most {step_tokens:,} in a step"

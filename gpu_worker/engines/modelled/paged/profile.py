"""The machine of a paged model: how long its steps and its copies take, and what it can hold.

With seconds, tokens and requests, a step takes

    overhead + prefill_base + prefill_per_token x prompt tokens computed                  where prompts are computed
             + decode_base + decode_per_request x requests decoded + decode_per_kv_token x KV tokens held

(the form in which the VTC artifact's profile of an A10G was fitted). The second line counts in each step with
`chunk_tokens`; without, prompts and decodes have steps of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_worker.policies.preemption import Calibration


@dataclass(frozen=True, slots=True)
class PagedProfile:
    """Seconds, tokens, requests and bytes. The fields mean what they mean in the simulator's profile files
    (headgate/simulator/engines/profile.py).

    `reserve_outputs`: a request takes the blocks of its longest possible output when it enters, so that a running
    request never lacks a block; otherwise it takes them as its tokens come. `prefix_cache_tokens`: size of the prefix
    cache, in blocks of `prefix_block_tokens` (prefix_cache.py). `max_loras`: LoRA adapters in use at once; None: there
    are no adapters (adapters.py). `adapter_load_s`: for which a load stops the batch.
    """

    pool_tokens: int
    batch_max: int | None = None
    block_tokens: int = 1
    watermark: float = 0.0
    chunk_tokens: int | None = None
    minibatch_tokens_max: int = 1_000_000_000
    steps_between_admissions: int = 1
    prompt_extra_tokens: int = 0
    reserve_outputs: bool = False
    prefill_base_s: float = 0.0
    prefill_per_token_s: float = 0.0
    decode_base_s: float = 0.0
    decode_per_request_s: float = 0.0
    decode_per_kv_token_s: float = 0.0
    overhead_s: float = 0.0
    kv_bytes_per_token: float = 0.0
    copy_out_bytes_per_s: float = 0.0
    copy_in_bytes_per_s: float = 0.0
    copy_base_s: float = 0.0
    swap_bytes: float = 0.0
    prefix_cache_tokens: int = 0
    prefix_block_tokens: int = 512
    max_loras: int | None = None
    adapter_load_s: float = 0.0

    def step_s(self, decoding: int, prompt_tokens: int, kv_tokens: int) -> float:
        """Return the seconds of a step that decodes so many requests and computes so many prompt tokens."""
        seconds = self.overhead_s
        if decoding or self.chunk_tokens is not None:
            seconds += self.decode_base_s + self.decode_per_request_s * decoding
            seconds += self.decode_per_kv_token_s * kv_tokens
        if prompt_tokens:
            seconds += self.prefill_base_s + self.prefill_per_token_s * prompt_tokens
        return seconds

    def calibration(self) -> Calibration:
        """Return what such a machine would measure of itself at its start."""
        return Calibration(
            kv_bytes_per_token=self.kv_bytes_per_token,
            copy_out_bytes_per_s=self.copy_out_bytes_per_s,
            copy_in_bytes_per_s=self.copy_in_bytes_per_s,
            copy_base_s=self.copy_base_s,
            prefill_base_s=self.prefill_base_s,
            prefill_per_token_s=self.prefill_per_token_s,
            prefill_per_token2_s=0.0,
            decode_s=self.decode_base_s + self.overhead_s + self.decode_per_request_s,
        )


class Copies:
    """Copies of KV between GPU and host memory, in the time of the model.

    Each direction is a link of its own (PCIe is full duplex). The copies of a link follow one another; each takes

        copy_base_s + bytes / rate

    Copies run beside the computation: a copy engine does them, and they take about a hundredth of the memory bandwidth.
    Their cost is waiting. The blocks of a sequence that is swapped out belong to the newcomer at once, but the step
    that writes into them follows the copy layer by layer, so the step does not end before the copy does. A sequence
    that is swapped in holds its blocks from the beginning of the copy and decodes after its end; other sequences do not
    wait.

    `out_until_s`, `in_until_s`: when each link has finished all its copies.
    """

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self.out_until_s = 0.0
        self.in_until_s = 0.0

    def swap_out(self, tokens: int, now_s: float) -> float:
        """Start a copy to host memory; return its bytes."""
        self.out_until_s = max(self.out_until_s, now_s) + self._calibration.swap_out_s(tokens)
        return self._calibration.swap_bytes(tokens)

    def swap_in(self, tokens: int, now_s: float) -> None:
        """Start a copy to the GPU; it begins when every copy out has ended."""
        self.in_until_s = max(self.in_until_s, self.out_until_s, now_s) + self._calibration.swap_in_s(tokens)

"""The machine of a paged model: how long its steps take, and what it can hold.

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
    request never lacks a block; otherwise it takes them as its tokens come.
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

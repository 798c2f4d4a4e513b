"""Copies of KV between GPU and host memory, in virtual time.

Each direction is a link of its own (PCIe is full duplex), on which copies follow one another, each taking

    copy_base_s + bytes / rate

They run beside the computing: a copy engine does them, and of the memory bandwidth they take about a hundredth. What
they cost is waiting. The blocks of one that is swapped out belong to the newcomer at once, but the step that writes
into them follows the copy layer by layer, so it does not end before the copy does. One that is swapped in holds its
blocks from the beginning and decodes again when the copy has come; others do not wait for it.
"""

from __future__ import annotations

from gpu_worker.policies.preemption.costs import Calibration
from headgate.simulator.engines.profile import EngineProfile


class Copies:
    """`out_until_s`, `in_until_s`: when each link has done what was asked of it."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self.out_until_s = 0.0
        self.in_until_s = 0.0

    def swap_out(self, tokens: int, now_s: float) -> float:
        """Its bytes."""
        self.out_until_s = max(self.out_until_s, now_s) + self._calibration.swap_out_s(tokens)
        return self._calibration.swap_bytes(tokens)

    def swap_in(self, tokens: int, now_s: float) -> float:
        """Its bytes; not before all that is on its way out is there."""
        self.in_until_s = max(self.in_until_s, self.out_until_s, now_s) + self._calibration.swap_in_s(tokens)
        return self._calibration.swap_bytes(tokens)


def calibration_of(profile: EngineProfile) -> Calibration:
    """What a machine of this profile would have measured at its start."""
    return Calibration(
        kv_bytes_per_token=profile.kv_bytes_per_token,
        copy_out_bytes_per_s=profile.copy_out_bytes_per_s,
        copy_in_bytes_per_s=profile.copy_in_bytes_per_s,
        copy_base_s=profile.copy_base_s,
        prefill_base_s=profile.prefill_base_s,
        prefill_per_token_s=profile.prefill_per_token_s,
        prefill_per_token2_s=0.0,
        decode_s=profile.decode_base_s + profile.overhead_s + profile.decode_per_request_s,
    )

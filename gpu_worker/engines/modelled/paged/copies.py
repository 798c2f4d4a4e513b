"""Copies of KV between GPU and host memory, in the time of the model.

Each direction is a link of its own (PCIe is full duplex). The copies of a link follow one another; each takes

    copy_base_s + bytes / rate

Copies run beside the computation: a copy engine does them, and they take about a hundredth of the memory bandwidth.
Their cost is waiting. The blocks of a sequence that is swapped out belong to the newcomer at once, but the step that
writes into them follows the copy layer by layer, so the step does not end before the copy does. A sequence that is
swapped in holds its blocks from the beginning of the copy and decodes after its end; other sequences do not wait.
"""

from __future__ import annotations

from gpu_worker.policies.preemption import Calibration


class Copies:
    """`out_until_s`, `in_until_s`: when each link has finished all its copies."""

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

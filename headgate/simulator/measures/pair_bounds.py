"""The worst pair of tenants over all intervals: Theorems 4.4 and 4.9 of the VTC paper, exactly and in one pass.

With W_f(t) all that f received by t, the worst interval for the ordered pair (f, g) while f is backlogged is the
greatest rise of W_g - W_f from its lowest point since f's backlog began. Between two events of f or of g that
difference is a straight line over the steps, so looking at it before and after each of their events misses nothing, and
an event costs one look at each other tenant.
"""

from __future__ import annotations

from collections.abc import Sequence

Row = list[float]


class PairBounds:
    def __init__(self) -> None:
        self.backlogged_worst = 0.0
        """|W_f - W_g|, both backlogged (4.4)."""
        self.any_worst = 0.0
        """W_g - W_f, f backlogged (4.9)."""
        self.checked = 0
        self._backlogged: list[bool] = []
        self._lows: list[Row] = []
        """[f][g]: lowest W_g - W_f since f's backlog began…"""
        self._joint_lows: list[Row] = []
        """…and since the later of the two's began."""

    def enter(self) -> None:
        """One more tenant."""
        for rows in (self._lows, self._joint_lows):
            for row in rows:
                row.append(0.0)
            rows.append([0.0] * (len(rows) + 1))
        self._backlogged.append(False)

    def begin(self, f: int, received: Sequence[float]) -> None:
        """Of f's backlog. `received`: of all, now."""
        self._backlogged[f] = True
        own = received[f]
        self._lows[f] = [other - own for other in received]
        for g, other in enumerate(received):
            if self._backlogged[g]:
                self._joint_lows[f][g] = other - own
                self._joint_lows[g][f] = own - other

    def end(self, f: int) -> None:
        """Of f's backlog; what it received by then was looked at."""
        self._backlogged[f] = False

    def snapshot(self, f: int, received: Sequence[float]) -> None:
        """At the pairs of f, which is about to receive something at once or at another pace, or just did."""
        own, is_backlogged = received[f], self._backlogged[f]
        lows, joint_lows, backlogged = self._lows[f], self._joint_lows[f], self._backlogged
        self.checked += len(received) - 1
        for g, other in enumerate(received):
            if g == f:
                continue
            ahead = other - own
            if is_backlogged:
                self._rises(lows, g, ahead)
            if backlogged[g]:
                self._rises(self._lows[g], f, -ahead)
                if is_backlogged:
                    self._rises_jointly(joint_lows, g, ahead)
                    self._rises_jointly(self._joint_lows[g], f, -ahead)

    def _rises(self, lows: Row, at: int, ahead: float) -> None:
        if ahead < lows[at]:
            lows[at] = ahead
        elif ahead - lows[at] > self.any_worst:
            self.any_worst = ahead - lows[at]

    def _rises_jointly(self, lows: Row, at: int, ahead: float) -> None:
        if ahead < lows[at]:
            lows[at] = ahead
        elif ahead - lows[at] > self.backlogged_worst:
            self.backlogged_worst = ahead - lows[at]

"""The worst pair of tenants over all intervals: Theorems 4.4 and 4.9 of the VTC paper, exactly and in one pass.

Let W_f(t) be all that f received by t. For the ordered pair (f, g), the worst interval in which f is backlogged is the
greatest rise of W_g - W_f above its lowest value since f's backlog began. Between two events of f or g that difference
is linear in the steps. So comparing before and after each of their events misses nothing, and an event costs one
comparison with each other tenant.
"""

from __future__ import annotations

from collections.abc import Sequence

Row = list[float]


class PairBounds:
    def __init__(self) -> None:
        self.backlogged_worst = 0.0
        """Worst |W_f - W_g| while both are backlogged (4.4)."""
        self.any_worst = 0.0
        """Worst W_g - W_f while f is backlogged (4.9)."""
        self.checked = 0
        self._backlogged: list[bool] = []
        self._lows: list[Row] = []
        """[f][g]: the lowest W_g - W_f since f's backlog began."""
        self._joint_lows: list[Row] = []
        """[f][g]: the same, since the later of the two backlogs began."""

    def add_tenant(self) -> None:
        """Add a tenant."""
        for rows in (self._lows, self._joint_lows):
            for row in rows:
                row.append(0.0)
            rows.append([0.0] * (len(rows) + 1))
        self._backlogged.append(False)

    def begin(self, f: int, received: Sequence[float]) -> None:
        """Begin f's backlog. `received`: what each tenant has received by now."""
        self._backlogged[f] = True
        own = received[f]
        self._lows[f] = [other - own for other in received]
        for g, other in enumerate(received):
            if self._backlogged[g]:
                self._joint_lows[f][g] = other - own
                self._joint_lows[g][f] = own - other

    def end(self, f: int) -> None:
        """End f's backlog, after a `compare` of f."""
        self._backlogged[f] = False

    def compare(self, f: int, received: Sequence[float]) -> None:
        """Compare f with each other tenant, before and after each event that changes what f receives."""
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

"""Least squares with coefficients of zero or more, for a few columns and many rows.

Minimise |A x - b|² over x >= 0. The rows are added up to A'A and A'b, so a million of them take no memory. The best x
is the ordinary solution over some subset of the columns; there are few columns, so every subset is tried. Of subsets
that fit equally well, the one with the fewest columns is taken, and of these the first. So a column that another one
repeats gets zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import sqrt

_PIVOT_MIN = 1e-9
"""The matrix has a diagonal of 1, so a smaller pivot means that a column is a combination of others."""
_GAIN_MIN = 1e-12
"""A subset must be better by so much of |b|² than a smaller one: less is rounding."""


class LeastSquares:
    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._products = [[0.0] * columns for _ in range(columns)]
        self._right = [0.0] * columns
        self._square = 0.0
        self.rows = 0

    def add(self, row: Sequence[float], value: float) -> None:
        """Add the equation: the sum of row[k] x[k] should be `value`."""
        self.rows += 1
        self._square += value * value
        for place, factor in enumerate(row):
            if factor:
                self._right[place] += factor * value
                products = self._products[place]
                for other, second in enumerate(row):
                    products[other] += factor * second

    def solve(self) -> list[float]:
        """Return the coefficients; 0 for a column that the rows cannot tell from the others."""
        scales = [sqrt(self._products[place][place]) for place in range(self._columns)]
        used = [place for place in range(self._columns) if scales[place] > 0]
        best, least = [0.0] * self._columns, self._square
        for size in range(1, len(used) + 1):
            for subset in combinations(used, size):
                found = self._solve_subset(subset, scales)
                if found is None or min(found) < 0:
                    continue
                square = self._square - sum(x * self._right[place] for x, place in zip(found, subset, strict=True))
                if square < least - _GAIN_MIN * self._square:
                    least, best = square, [0.0] * self._columns
                    for x, place in zip(found, subset, strict=True):
                        best[place] = x
        return best

    def _solve_subset(self, subset: Sequence[int], scales: Sequence[float]) -> list[float] | None:
        """Solve the normal equations of these columns, each scaled to length 1. None: they depend on each other."""
        matrix = [
            [self._products[i][j] / scales[i] / scales[j] for j in subset] + [self._right[i] / scales[i]]
            for i in subset
        ]
        size = len(subset)
        for column in range(size):
            pivot = max(range(column, size), key=lambda row: abs(matrix[row][column]))
            if abs(matrix[pivot][column]) < _PIVOT_MIN:
                return None
            matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
            for row in range(column + 1, size):
                factor = matrix[row][column] / matrix[column][column]
                matrix[row] = [a - factor * b for a, b in zip(matrix[row], matrix[column], strict=True)]
        solution = [0.0] * size
        for row in reversed(range(size)):
            known = sum(matrix[row][other] * solution[other] for other in range(row + 1, size))
            solution[row] = (matrix[row][size] - known) / matrix[row][row]
        return [x / scales[place] for x, place in zip(solution, subset, strict=True)]

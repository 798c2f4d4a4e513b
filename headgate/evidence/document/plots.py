"""Plots as SVG files of the same bytes everywhere: fixed ids, no date, text as text, points to a fixed precision."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from math import isfinite
from typing import Any

from headgate.evidence.document.sections import Plot, Series

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, told apart by the colour-blind."""
DASHES = ("-", "--", ":", "-.")
POINTS_MAX = 240
"""Points of a line; of more every n-th is drawn."""
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "headgate",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "path.simplify": False,
}


def svg(plot: Plot) -> str:
    """Raises ConfigurationError where matplotlib is not installed."""
    figure = _figure(plot)
    drawn = StringIO()
    import matplotlib as mpl

    with mpl.rc_context(SETTINGS):
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    return "".join(f"{line.rstrip()}\n" for line in drawn.getvalue().splitlines())


def _figure(plot: Plot) -> Any:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        from dispatcher.model.errors import ConfigurationError

        raise ConfigurationError("plots need matplotlib: pip install 'headgate[plots]'") from None
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(7.2, 3.2), layout="constrained", facecolor="white")
        axes = figure.subplots()
        (_bars if plot.kind == "bars" else _lines)(axes, plot)
        axes.set_title(plot.title, fontsize=10, loc="left")
        axes.set_xlabel(plot.x_label)
        axes.set_ylabel(plot.y_label)
        if plot.log_x:
            axes.set_xscale("log")
        if plot.log_y:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        if len(plot.series) > 1:
            axes.legend(frameon=False, fontsize=8, ncols=1 + (len(plot.series) > 4))
    return figure


def _lines(axes: Any, plot: Plot) -> None:
    for number, series in enumerate(plot.series):
        xs, ys = _points(series)
        colour = COLOURS[number % len(COLOURS)]
        dash = "--" if series.dashed else DASHES[number // len(COLOURS) % len(DASHES)]
        marker = "o" if len(xs) <= 12 else None
        axes.plot(xs, ys, color=colour, linestyle=dash, linewidth=1.3, marker=marker, markersize=3, label=series.label)
        lone = [] if marker else _between_gaps(ys)
        if lone:
            axes.plot([xs[at] for at in lone], [ys[at] for at in lone], "o", color=colour, markersize=2)


def _between_gaps(ys: Sequence[float]) -> list[int]:
    """Where a point has no neighbour to draw a line to."""
    gap = [True, *(not isfinite(y) for y in ys), True]
    return [at for at in range(len(ys)) if gap[at] and not gap[at + 1] and gap[at + 2]]


def _points(series: Series) -> tuple[list[float], list[float]]:
    """Gaps (None) stay gaps."""
    every = -(-len(series.xs) // POINTS_MAX) or 1
    pairs = list(zip(series.xs, series.ys, strict=True))[::every]
    return [_short(x) for x, _ in pairs], [float("nan") if y is None else _short(y) for _, y in pairs]


def _short(value: float) -> float:
    """The last digits of a float are not the same on every machine."""
    return float(f"{value:.5g}") if isfinite(value) else float("nan")


def _bars(axes: Any, plot: Plot) -> None:
    width = 0.8 / max(1, len(plot.series))
    for number, series in enumerate(plot.series):
        xs = [at + width * (number - (len(plot.series) - 1) / 2) for at in range(len(series.ys))]
        heights: Sequence[float] = [0.0 if y is None else _short(y) for y in series.ys]
        axes.bar(xs, heights, width, color=COLOURS[number % len(COLOURS)], label=series.label)
    axes.set_xticks(range(len(plot.ticks)), plot.ticks, fontsize=8)

"""Plots as SVG, drawn by matplotlib: for docs/evidence and for the report page.

The same plot gives the same bytes on every machine: ids are fixed, there is no date, text stays text, and points have a
fixed precision. matplotlib is the optional dependency `headgate[plots]`, and nothing imports it before a plot is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal
from warnings import catch_warnings, filterwarnings

from dispatcher.model.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito: colour-blind readers can tell its colours apart."""
_DASHES = ("-", "--", ":", "-.")
"""The style of the first seven series, of the next seven, and so on."""
_SETTINGS: dict[Any, Any] = {
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


@dataclass(frozen=True, slots=True)
class Series:
    """`ys` None: a gap. `limit`: a bound to compare the other series with, drawn as a thin dotted line. `labels`: what
    stands above each bar; empty for nothing."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    dashed: bool = False
    limit: bool = False
    labels: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Plot:
    """`name` is the file's name: lower case, hyphens. Kind `bars` ignores xs and draws one bar per value and series,
    grouped and labelled by `ticks`; kind `points` joins no values but those of limits. `x_max`, `y_max`: the ends of
    the axes, so that several plots have one scale."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    kind: Literal["line", "bars", "points"] = "line"
    ticks: tuple[str, ...] = ()
    log_x: bool = False
    log_y: bool = False
    x_max: float | None = None
    y_max: float | None = None


def svg(plot: Plot) -> str:
    """Draw a plot with title and legend as an SVG file. Raises ConfigurationError if matplotlib is not installed."""
    with settings():
        figure = draw(plot, (7.2, 3.2))
        axes = figure.axes[0]
        axes.set_title(plot.title, fontsize=10, loc="left")
        if len(plot.series) > 1:
            axes.legend(frameon=False, fontsize=8, ncols=1 + (len(plot.series) > 4))
        return saved(figure)


def check_installed() -> None:
    """Raise ConfigurationError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise ConfigurationError("plots need matplotlib: pip install 'headgate[plots]'")


def settings() -> AbstractContextManager[None]:
    """Return the context to draw and save in. Raises ConfigurationError if matplotlib is not installed."""
    check_installed()
    import matplotlib as mpl

    return mpl.rc_context(_SETTINGS)


def draw(plot: Plot, size_in: tuple[float, float]) -> Figure:
    """Draw a plot without title and legend, within settings(). `size_in`: width and height in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size_in, layout="constrained", facecolor="white")
    axes = figure.subplots()
    (_bars if plot.kind == "bars" else _lines)(axes, plot)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    if plot.log_x:
        axes.set_xscale("log")
    if plot.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, plot.y_max)
    if plot.x_max is not None:
        axes.set_xlim(0, plot.x_max)
    return figure


def saved(figure: Figure) -> str:
    """Return the figure as SVG, within settings(). It keeps text as text, so it needs no font with every letter."""
    written = StringIO()
    with catch_warnings():
        filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return "".join(f"{line.rstrip()}\n" for line in written.getvalue().splitlines())


def pen(place: int, series: Series) -> tuple[str, str]:
    """Return colour and line style of the series at `place`, counted from 0."""
    if series.limit:
        return COLOURS[-1], ":"
    dash = "--" if series.dashed else _DASHES[place // len(COLOURS) % len(_DASHES)]
    return COLOURS[place % len(COLOURS)], dash


def _lines(axes: Axes, plot: Plot) -> None:
    for place, series in enumerate(plot.series):
        xs, ys = [_short(x) for x in series.xs], [_short(y) for y in series.ys]
        colour, dash = pen(place, series)
        if plot.kind == "points" and not series.limit:
            axes.plot(xs, ys, "o", color=colour, markersize=2.5, alpha=0.7, label=series.label)
            continue
        marker = "o" if len(xs) <= 12 and not series.limit else None
        axes.plot(xs, ys, color=colour, linestyle=dash, linewidth=1.3, marker=marker, markersize=3, label=series.label)
        lone = [] if marker else _between_gaps(ys)
        if lone:
            axes.plot([xs[at] for at in lone], [ys[at] for at in lone], "o", color=colour, markersize=2)


def _between_gaps(ys: Sequence[float]) -> list[int]:
    """Return where a point has a gap on both sides, so that no line shows it."""
    gap = [True, *(not isfinite(y) for y in ys), True]
    return [at for at in range(len(ys)) if gap[at] and not gap[at + 1] and gap[at + 2]]


def _bars(axes: Axes, plot: Plot) -> None:
    width = 0.8 / max(1, len(plot.series))
    for place, series in enumerate(plot.series):
        xs = [at + width * (place - (len(plot.series) - 1) / 2) for at in range(len(series.ys))]
        heights = [0.0 if y is None else _short(y) for y in series.ys]
        axes.bar(xs, heights, width, color=pen(place, series)[0], label=series.label)
        for x, height, label in zip(xs, heights, series.labels, strict=False):
            axes.text(x, height, label, ha="center", va="bottom", fontsize=7)
    axes.set_xticks(range(len(plot.ticks)), plot.ticks, fontsize=8, parse_math=False)


def _short(value: float | None) -> float:
    """Round to five digits, because the last digits of a float differ between machines; NaN for a gap."""
    return float(f"{value:.5g}") if value is not None and isfinite(value) else float("nan")

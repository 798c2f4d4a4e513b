"""Plots inside the report page: the SVG of drawing.py with the colours of page.css, so that it follows light and dark.

Colours become CSS variables, and the legend is HTML below the plot: long names of tenants wrap there.
"""

from __future__ import annotations

import re
from html import escape

from headgate.simulator.report.drawing import COLOURS, Plot, Series, draw, pen, saved, settings

VARIABLES = {colour.lower(): f"var(--c{number})" for number, colour in enumerate(COLOURS)}
VARIABLES |= {"#ffffff": "none", "#b0b0b0": "var(--soft)"}
"""Background and grid. matplotlib's axes are black, as is the last of COLOURS."""
BORDERS = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dashed"}
"""The border styles of CSS by the line styles of the plot, for the legend."""
SVG = re.compile(r'<svg[^>]* viewBox="([^"]+)"[^>]*>(.*)', re.DOTALL)
UNUSED = re.compile(r'<metadata>.*?</metadata>|<style.*?</style>| id="[\w.]+_\d+"|font-family: [^;"]*;?', re.DOTALL)
COLOUR = re.compile(r"#[0-9a-f]{6}\b")


def number(value: float) -> str:
    """Format with three significant digits and k, M or G."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{sign}"
    return f"{value:.3g}"


def inline(name: str, plot: Plot) -> str:
    """Draw a plot as HTML: <svg> and legend. Screen readers read `name` and the greatest value of each series.

    Raises ConfigurationError if matplotlib is not installed.
    """
    box, body = SVG.findall(_drawn(plot))[0]
    body = UNUSED.sub("", body).replace("xlink:href", "href")
    body = COLOUR.sub(lambda colour: VARIABLES.get(colour[0], colour[0]), body)
    values = "; ".join(f"{series.label}: at most {number(_highest(series))} {plot.y_label}" for series in plot.series)
    return (
        f'<svg role="img" viewBox="{box}" xmlns="http://www.w3.org/2000/svg"><title>{escape(name)}</title>'
        f"<desc>{escape(values)}</desc>{body.rstrip()}{_legend(plot)}"
    )


def _drawn(plot: Plot) -> str:
    with settings():
        figure = draw(plot, (5.6, 2.7))
        for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
            axis.set_major_formatter(lambda value, _: number(value))
        return saved(figure)


def _highest(series: Series) -> float:
    return max((y for y in series.ys if y is not None), default=0.0)


def _legend(plot: Plot) -> str:
    items = []
    for place, series in enumerate(plot.series):
        colour, dash = pen(place, series)
        style = f"--pen: {BORDERS[dash]} {VARIABLES[colour.lower()]}"
        items.append(f'<li style="{style}">{escape(series.label)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'

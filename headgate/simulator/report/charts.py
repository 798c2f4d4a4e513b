"""Line and bar charts as inline SVG: colours and text come from the page's style, so they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 14, 38
POINTS_MAX = 480
COLOURS = 8
"""Series beyond begin again with another dash."""
DASHES = ("", "6 3", "2 2", "8 3 2 3")


@dataclass(frozen=True, slots=True)
class Line:
    """`ys` None: a gap. `limit`: a bound that others are seen against, drawn apart from the series."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    limit: bool = False


def number(value: float) -> str:
    """Three significant digits, thousands and millions short."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{sign}"
    return f"{value:.3g}"


def highest(lines: Sequence[Line]) -> float:
    return max((y for line in lines for y in line.ys if y is not None), default=0.0)


def last_x(lines: Sequence[Line]) -> float:
    return max((x for line in lines for x in line.xs[-1:]), default=0.0)


def line_chart(
    name: str,
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    *,
    x_max: float | None = None,
    y_max: float | None = None,
) -> str:
    """`x_max`, `y_max`: for charts side by side; else of these lines. `name`: what a screen reader says."""
    top = _nice(highest(lines) if y_max is None else y_max)
    last = (last_x(lines) if x_max is None else x_max) or 1.0
    drawn = "".join(_path(line, place, last, top) for place, line in enumerate(lines))
    pens = [_pen(place, line.limit) for place, line in enumerate(lines)]
    told = "; ".join(f"{line.label}: at most {number(highest([line]))} {y_label}" for line in lines)
    return _svg(name, told, _axes(last, top, x_label, y_label) + drawn) + _legend([line.label for line in lines], pens)


def bar_chart(name: str, bars: Sequence[tuple[str, float]], y_label: str, *, y_max: float | None = None) -> str:
    top = _nice(max((value for _, value in bars), default=0.0) if y_max is None else y_max)
    wide = (WIDTH - LEFT - RIGHT) / max(1, len(bars))
    parts = [_y_axis(top, y_label)]
    for place, (label, value) in enumerate(bars):
        x, y = LEFT + wide * (place + 0.1), _y(value, top)
        height = HEIGHT - BOTTOM - y
        parts.append(
            f'<rect class="s{place % COLOURS} bar" x="{x:.1f}" y="{y:.1f}" width="{wide * 0.8:.1f}" '
            f'height="{height:.1f}"><title>{escape(label)}: {number(value)}</title></rect>'
        )
    labels = [f"{label} {number(value)}" for label, value in bars]
    return _svg(name, "; ".join(labels), "".join(parts)) + _legend(labels, [_pen(place) for place in range(len(bars))])


def _svg(name: str, told: str, body: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(name)}</title><desc>{escape(told)}</desc>{body}</svg>"
    )


def _legend(labels: Sequence[str], pens: Sequence[str]) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 22 8" aria-hidden="true" xmlns="http://www.w3.org/2000/svg">'
        f'<path {pen} d="M1 4H21"/></svg>{escape(label)}</li>'
        for label, pen in zip(labels, pens, strict=True)
    )
    return f'<ul class="legend">{items}</ul>'


def _pen(place: int, limit: bool = False) -> str:
    if limit:
        return 'class="limit"'
    dash = DASHES[place // COLOURS % len(DASHES)] or DASHES[place % 2]
    return f'class="s{place % COLOURS}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _path(line: Line, place: int, last: float, top: float) -> str:
    pen, moves = "M", []
    for x, y in _points(line):
        if y is None:
            pen = "M"
            continue
        # The stroke of no length is a dot, also where there is a gap on either side.
        moves.append(f"{pen}{_x(x, last):.1f} {_y(y, top):.1f}{'h0' if pen == 'M' else ''}")
        pen = "L"
    told = f"<title>{escape(line.label)}</title>"
    return f'<path {_pen(place, line.limit)} d="{"".join(moves)}">{told}</path>' if moves else ""


def _points(line: Line) -> list[tuple[float, float | None]]:
    """Of more than POINTS_MAX the means of neighbours: none is left out, and a gap is only where all of them are."""
    every = -(-len(line.xs) // POINTS_MAX)
    points = list(zip(line.xs, line.ys, strict=True))
    if every <= 1:
        return points
    return [_mean(points[at : at + every]) for at in range(0, len(points), every)]


def _mean(points: Sequence[tuple[float, float | None]]) -> tuple[float, float | None]:
    ys = [y for _, y in points if y is not None]
    return sum(x for x, _ in points) / len(points), sum(ys) / len(ys) if ys else None


def _x(value: float, last: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * value / last


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * min(value, top) / top


def _axes(last: float, top: float, x_label: str, y_label: str) -> str:
    step = _nice(last) / 5
    marks = [step * place for place in range(6) if step * place <= last * 1.0001]
    y = HEIGHT - BOTTOM + 16
    xs = "".join(_tick(_x(mark, last), y, "middle", mark) for mark in marks)
    middle = (LEFT + WIDTH - RIGHT) / 2
    label = f'<text class="label" x="{middle:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>'
    return _y_axis(top, y_label) + xs + label


def _tick(x: float, y: float, anchor: str, value: float) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{number(value)}</text>'


def _y_axis(top: float, label: str) -> str:
    parts = []
    for place in range(5):
        value = top * place / 4
        y = _y(value, top)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_tick(LEFT - 6, y + 4, "end", value))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'transform="rotate(-90 14 {middle:.0f})"'
    parts.append(
        f'<text class="label" x="14" y="{middle:.0f}" text-anchor="middle" {turned}>{escape(label)}</text>'
    )  # fmt: skip
    return "".join(parts)


def _nice(value: float) -> float:
    """The next of 1, 2, 2.5, 4, 5, 8, 10 times a power of ten; 1 for nothing."""
    if not 0 < value < math.inf:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 4, 5, 8, 10, 20) if step * power >= value * 0.9999)
